-- Move the oracle to the durable high-water mark if the server has changed.
-- Every connection runs this first, so a restarted or promoted server that may have lost the newest timestamps gives out
-- none of them again. Transactions that began below the floor set here may have read writes that are lost: prewrite.lua
-- and commit.lua refuse them.
--   uses    clock, oracle
--   flags   allow-oom
--   KEYS    oracle, catalog
--   ARGV    server, newest
--             server: its run id and replication id, or the name of an embedded server's history, which stays the same
--             over each stop that lost nothing; newest: the newest timestamp that the client has seen
--   reply   "recovered" | "same"

local state = redis.call('HMGET', KEYS[1], 'server', 'limit')
if state[1] == ARGV[1] then
  -- After an idle time the high-water mark is below the clock. It must be ahead before a timestamp is requested: raise
  -- it.
  if now() + WINDOW / 2 > tonumber(state[2] or '0') then next_timestamps(KEYS[1], 0) end
  return 'same'
end
if state[1] or state[2] then
  -- Changes of the catalog may be lost as well. Its count moves far beyond the lost changes, so no number of a change
  -- and no version of a table is used twice.
  if redis.call('HGET', KEYS[2], '\255') then redis.call('HINCRBY', KEYS[2], '\255', 1000000) end
  -- Move `last` beyond the clock too. If this recovery is also lost, the next one runs later and moves further.
  local last = math.max(tonumber(state[2] or '0'), now() + WINDOW, tonumber(ARGV[2]))
  redis.call('HSET', KEYS[1], 'last', string.format('%.0f', last))
  redis.call('HSET', KEYS[1], 'floor', string.format('%.0f', next_timestamps(KEYS[1], 1)))
end
-- This comes last: if an access rule stops the script midway, the next connection repeats all of it.
redis.call('HSET', KEYS[1], 'server', ARGV[1])
return 'recovered'
