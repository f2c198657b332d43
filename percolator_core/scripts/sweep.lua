-- Remove the cells of dropped columns from a bounded number of rows, unless the tablet has another version.
--   uses    layout
--   flags   allow-oom
--   KEYS    tag
--   ARGV    version, start, most_rows, columns …
--   reply   resume | "changed"
--             "changed": the tablet has another version

local tag, limit = KEYS[1], tonumber(ARGV[3])
if redis.call('HGET', tag .. 'meta', 'version') ~= ARGV[1] then return 'changed' end
-- A step ends once it has removed this many versions, since other requests wait. It may exceed this by its last row.
local ENOUGH = 5000
local removed = 0
local rows = redis.call('ZRANGEBYLEX', tag .. 'rows', ARGV[2], '+', 'LIMIT', 0, limit)
for _, row in ipairs(rows) do
  for i = 4, #ARGV do
    local prefix = pack_column(ARGV[i])
    -- The newest version goes last: garbage collection finds the older versions only through it.
    removed = removed + redis.call('ZREMRANGEBYLEX', tag .. 'v:' .. row, '[' .. prefix,
      '(' .. prefix .. string.rep('\255', 9)) + redis.call('HDEL', tag .. 'r:' .. row, 'c' .. ARGV[i])
  end
  drop_if_empty(tag, row)
  if removed >= ENOUGH then return '(' .. row end
end
return #rows == limit and '(' .. rows[#rows] or ''
