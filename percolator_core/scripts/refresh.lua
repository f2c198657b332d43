-- Renew the wall time in a primary lock during a long commit (paper, section 2.2).
--   uses    clock, layout
--   KEYS    tag
--   ARGV    start_ts, row, column
--             row, column: of the primary
--   reply   "refreshed" | "lost"

local tag, start_ts, row, column = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local lock = redis.call('HGET', tag .. 'r:' .. row, 'l' .. column)
if not lock or lock_start(lock) ~= start_ts then return 'lost' end
local wall = now()
redis.call('HSET', tag .. 'r:' .. row, 'l' .. column, string.sub(lock, 1, 8) .. struct.pack('>I8', wall) .. string.sub(lock, 17))
redis.call('ZADD', tag .. 'locks', 'XX', wall, lock_mark(start_ts, column, row))
return 'refreshed'
