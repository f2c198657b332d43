-- Hand out timestamps.
--   uses    clock, oracle
--   KEYS    oracle
--   ARGV    count
--   reply   the last of count timestamps; the caller owns (reply - count, reply]

return next_timestamps(KEYS[1], tonumber(ARGV[1]))
