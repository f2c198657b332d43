-- Jump to the durable high-water mark when the server is another one than before.
-- Every connection runs this before anything else, so no timestamp is handed out by a restarted or
-- promoted server that may have lost the newest ones. Transactions that began below the floor set here may have
-- read writes that are lost: prewrite.lua refuses them.
--   uses    clock, oracle
--   KEYS    oracle
--   ARGV    run id of the server, "in order" when its predecessor is known to have lost nothing, else "unknown"
--   reply   "same" or "recovered"

local state = redis.call('HMGET', KEYS[1], 'server', 'limit')
if state[1] == ARGV[1] then return 'same' end
redis.call('HSET', KEYS[1], 'server', ARGV[1])
if ARGV[2] ~= 'in order' and (state[1] or state[2]) then
  -- Also past the clock: should this recovery itself be lost, the next one comes later, and goes further.
  local last = math.max(tonumber(state[2] or '0'), now() + WINDOW)
  redis.call('HSET', KEYS[1], 'last', string.format('%.0f', last))
  redis.call('HSET', KEYS[1], 'floor', string.format('%.0f', next_timestamps(KEYS[1], 1)))
end
return 'recovered'
