-- Remove a bounded number of rows, and at last everything else, of one tablet.
--   KEYS    tag
--   ARGV    rows at most, observers …
--   reply   rows removed; 0 when the tablet is gone

local tag, limit = KEYS[1], tonumber(ARGV[1])
local rows = redis.call('ZRANGE', tag .. 'rows', 0, limit - 1)
for _, row in ipairs(rows) do
  redis.call('DEL', tag .. 'r:' .. row, tag .. 'v:' .. row)
  redis.call('ZREM', tag .. 'rows', row)
end
if #rows == 0 then
  redis.call('DEL', tag .. 'rows', tag .. 'locks', tag .. 'meta')
  for i = 2, #ARGV do
    redis.call('DEL', tag .. 'dirty:' .. ARGV[i], tag .. 'tries:' .. ARGV[i], tag .. 'failed:' .. ARGV[i])
  end
end
return #rows
