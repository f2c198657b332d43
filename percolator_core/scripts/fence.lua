-- Give a tablet the version of its table, unless it has this one or a later one: from then on it refuses who
-- writes by an earlier definition. A tablet that is new is given what the others have in their meta hashes, too.
--   KEYS    tag
--   ARGV    version, then fields and values of a new tablet's meta hash
--   reply   1 if the tablet had an earlier version, else 0

local meta = KEYS[1] .. 'meta'
if tonumber(redis.call('HGET', meta, 'version') or '0') >= tonumber(ARGV[1]) then return 0 end
if #ARGV > 1 then
  -- Left by a change that was not made after all.
  local left = redis.call('HGETALL', meta)
  for i = 1, #left, 2 do redis.call('HDEL', meta, left[i]) end
  redis.call('HSET', meta, unpack(ARGV, 2))
end
redis.call('HSET', meta, 'version', ARGV[1])
return 1
