-- Raise the safe point of one tablet; it never falls. A tablet that does not exist is left alone.
--   uses    layout
--   flags   allow-oom
--   KEYS    tag
--   ARGV    safe_point
--   reply   the safe point afterwards

local safe = math.max(safe_point(KEYS[1]), tonumber(ARGV[1]))
if redis.call('HEXISTS', KEYS[1] .. 'meta', 'version') == 1 then
  redis.call('HSET', KEYS[1] .. 'meta', 'safe', string.format('%.0f', safe))
end
return safe
