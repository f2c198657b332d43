-- Move the oracle above a timestamp of another store, whose versions are to be written into this one.
--   uses    clock, oracle
--   KEYS    oracle
--   ARGV    timestamp
--   reply   a timestamp above it, which no client gets

local state = redis.call('HMGET', KEYS[1], 'last', 'limit')
state[1] = math.max(tonumber(state[1] or '0'), tonumber(ARGV[1]))
return next_timestamps(KEYS[1], 1, state)
