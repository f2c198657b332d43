-- Remove the cells of dropped columns from a bounded number of rows of one tablet, unless its table has changed since.
--   uses    layout
--   flags   allow-oom
--   KEYS    tag
--   ARGV    version, start, most_rows, columns …
--             start: the bound to go on from, "-" at first
--   reply   resume | "changed"
--             resume: the bound to go on from, "" at the end; "changed": the tablet has another version

local tag, limit = KEYS[1], tonumber(ARGV[3])
if redis.call('HGET', tag .. 'meta', 'version') ~= ARGV[1] then return 'changed' end
-- Versions that one step removes are so many, or as many as the last row has: others wait meanwhile.
local ENOUGH = 5000
local removed = 0
local rows = redis.call('ZRANGEBYLEX', tag .. 'rows', ARGV[2], '+', 'LIMIT', 0, limit)
for _, row in ipairs(rows) do
  for i = 4, #ARGV do
    local prefix = history_prefix(ARGV[i])
    -- The newest version leads to those in the history, so it goes last.
    removed = removed + redis.call('ZREMRANGEBYLEX', tag .. 'v:' .. row, '[' .. prefix,
      '(' .. prefix .. string.rep('\255', 9)) + redis.call('HDEL', tag .. 'r:' .. row, 'c' .. ARGV[i])
  end
  if redis.call('EXISTS', tag .. 'r:' .. row, tag .. 'v:' .. row) == 0 then
    redis.call('ZREM', tag .. 'rows', row)
  end
  if removed >= ENOUGH then return '(' .. row end
end
return #rows == limit and '(' .. rows[#rows] or ''
