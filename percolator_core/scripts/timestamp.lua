-- Hand out timestamps.
--   uses    clock, oracle
--   flags   allow-oom
--   KEYS    oracle, catalog
--   ARGV    count; 0 is for the mark alone, which has to lie ahead of the clock when a timestamp is asked for
--   reply   {the last of count timestamps, how often the catalog was changed or nil}; the caller owns
--           (last - count, last]
-- Both of one moment: a snapshot reads by the tables as they are at its timestamp.

return {next_timestamps(KEYS[1], tonumber(ARGV[1])), redis.call('HGET', KEYS[2], '\255')}
