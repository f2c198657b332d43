-- Jump to the durable high-water mark when the server is another one than before.
-- Every connection runs this before anything else, so no timestamp is handed out by a restarted or
-- promoted server that may have lost the newest ones. Transactions that began below the floor set here may have
-- read writes that are lost: prewrite.lua refuses them.
--   uses    clock, oracle
--   KEYS    oracle
--   ARGV    run id of the server and, where it can have replicas, the replication id of its reign;
--           "in order" when its predecessor is known to have lost nothing, else "unknown"; the newest timestamp that
--           the client has seen
--   reply   "same" or "recovered"

local state = redis.call('HMGET', KEYS[1], 'server', 'limit')
if state[1] == ARGV[1] then
  -- After a pause the mark lies behind: move it before a timestamp is asked for, not along with it.
  if now() + WINDOW / 2 > tonumber(state[2] or '0') then next_timestamps(KEYS[1], 0) end
  return 'same'
end
redis.call('HSET', KEYS[1], 'server', ARGV[1])
if ARGV[2] ~= 'in order' and (state[1] or state[2]) then
  -- Also past the clock: should this recovery itself be lost, the next one comes later, and goes further.
  local last = math.max(tonumber(state[2] or '0'), now() + WINDOW, tonumber(ARGV[3]))
  redis.call('HSET', KEYS[1], 'last', string.format('%.0f', last))
  redis.call('HSET', KEYS[1], 'floor', string.format('%.0f', next_timestamps(KEYS[1], 1)))
end
return 'recovered'
