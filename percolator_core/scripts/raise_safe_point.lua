-- Raise the safe point of one tablet; it never falls.
--   uses    layout
--   KEYS    tag
--   ARGV    safe point
--   reply   the safe point that counts

local safe = math.max(safe_point(KEYS[1]), tonumber(ARGV[1]))
redis.call('HSET', KEYS[1] .. 'meta', 'safe', string.format('%.0f', safe))
return safe
