-- Remove a bounded number of rows, and at last everything else, of one tablet of a table that is being dropped.
--   KEYS    tag
--   ARGV    version that the drop gave the tablet, rows at most, observers …
--   reply   rows removed; 0 when the tablet is gone, or belongs to a table that was made since

local tag, limit = KEYS[1], tonumber(ARGV[2])
if redis.call('HGET', tag .. 'meta', 'version') ~= ARGV[1] then return 0 end
local rows = redis.call('ZRANGE', tag .. 'rows', 0, limit - 1)
-- Fields and versions that one step frees are so many, or as many as the last row has: others wait meanwhile.
local ENOUGH = 50000
local removed, freed = 0, 0
for _, row in ipairs(rows) do
  if freed >= ENOUGH then break end
  local cells, versions = tag .. 'r:' .. row, tag .. 'v:' .. row
  freed = freed + redis.call('HLEN', cells) + redis.call('ZCARD', versions)
  redis.call('DEL', cells, versions)
  redis.call('ZREM', tag .. 'rows', row)
  removed = removed + 1
end
if #rows == 0 then
  redis.call('DEL', tag .. 'rows', tag .. 'locks', tag .. 'meta')
  for i = 3, #ARGV do
    redis.call('DEL', tag .. 'dirty:' .. ARGV[i], tag .. 'tries:' .. ARGV[i], tag .. 'failed:' .. ARGV[i])
  end
end
return removed
