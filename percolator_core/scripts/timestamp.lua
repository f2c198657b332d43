-- Hand out timestamps.
--   uses    clock, oracle
--   KEYS    oracle
--   ARGV    count; 0 is for the mark alone, which has to lie ahead of the clock when a timestamp is asked for
--   reply   the last of count timestamps; the caller owns (reply - count, reply]

return next_timestamps(KEYS[1], tonumber(ARGV[1]))
