-- Give a tablet the version of its table, unless it has this version or a later one. From then on the tablet refuses
-- writes by an earlier definition. A late or repeated request changes nothing: a tablet whose table was dropped remembers
-- the version of the drop.
--   flags   allow-oom
--   KEYS    tag
--   ARGV    version, safe_point, how, fields (field, value) …
--             safe_point: raises the tablet's safe point to at least this, 0 does not change it; how: "raise" for a
--             tablet that exists, "found" for a new one, "mend" for one that exists or has lost its meta hash in a
--             failover; fields: of a new tablet's meta hash
--   reply   1 if the tablet had an earlier version, else 0

local meta = KEYS[1] .. 'meta'
local found = redis.call('HMGET', meta, 'version', 'gone')
if tonumber(found[1] or found[2] or '0') >= tonumber(ARGV[1]) then return 0 end
if ARGV[3] == 'raise' and not found[1] then return 0 end
if ARGV[3] == 'found' or not found[1] then
  -- Remove fields that an incomplete schema change, or an earlier table of this name, has left.
  local left = redis.call('HGETALL', meta)
  for i = 1, #left, 2 do redis.call('HDEL', meta, left[i]) end
  for i = 4, #ARGV, 2 do redis.call('HSET', meta, ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', meta, 'version', ARGV[1])
if tonumber(redis.call('HGET', meta, 'safe') or '0') < tonumber(ARGV[2]) then redis.call('HSET', meta, 'safe', ARGV[2]) end
return 1
