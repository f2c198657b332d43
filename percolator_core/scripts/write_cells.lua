-- Write cells with the versions that they had in another store. Call it only while nobody else uses the tablet. A
-- repeated call changes nothing.
--   KEYS    tag
--   ARGV    version, rows …
--             rows: for each row its key, the number of its cells, and column and version of each
--   reply   "written" | "changed"

local tag = KEYS[1]
if redis.call('HGET', tag .. 'meta', 'version') ~= ARGV[1] then return 'changed' end

local at = 2
while at < #ARGV do
  local row, last = ARGV[at], at + 1 + 2 * tonumber(ARGV[at + 1])
  for i = at + 2, last, 2 do redis.call('HSET', tag .. 'r:' .. row, 'c' .. ARGV[i], ARGV[i + 1]) end
  redis.call('ZADD', tag .. 'rows', 0, row)
  at = last + 1
end
return 'written'
