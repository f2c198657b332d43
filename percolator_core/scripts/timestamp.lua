-- Give out timestamps.
--   uses    clock, oracle
--   flags   allow-oom
--   KEYS    oracle, catalog
--   ARGV    count
--             count: how many timestamps. 0 only moves the high-water mark, which must be ahead of the clock before a
--             timestamp is requested
--   reply   {last, epoch}
--             last: the last timestamp; the caller owns (last - count, last]
--             epoch: how often the catalog was changed, or nil
-- Both are of one moment: a snapshot uses the definitions that the tables have at its timestamp.

return {next_timestamps(KEYS[1], tonumber(ARGV[1])), redis.call('HGET', KEYS[2], '\255')}
