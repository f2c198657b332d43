-- A bounded step through the cells of one tablet that a snapshot sees, internal cells included, each with its version.
-- Before the first step the caller resolves all locks of transactions that began at or below `at`: then no commit at or
-- below `at` can follow.
--   uses    layout, read
--   flags   no-writes
--   KEYS    tag
--   ARGV    since, at, start, most_rows, most_bytes
--             since: cells that did not change after this timestamp are left out, 0 leaves out none
--   reply   {"too old"} | {"rows", resume, base, (row, cells, later) …}
--             cells: {column, version, …}, deletions included; later: acknowledgements with versions above `at`

local tag, since, at, from = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local limit, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local too_old, base = is_too_old(tag, since > 0 and math.min(since, at) or at)
if too_old then return {'too old'} end

local size = 0

local function cells_of(row)
  local fields, cells, later = redis.call('HGETALL', tag .. 'r:' .. row), {}, {}
  size = size + #row
  for i = 1, #fields, 2 do
    local newest = fields[i + 1]
    size = size + FIELD + #fields[i] + #newest
    if string.byte(fields[i]) == 99 then
      local column = string.sub(fields[i], 2)
      local version = version_at(tag, row, column, newest, at)
      if version and version_times(version) > since then
        cells[#cells + 1] = column
        cells[#cells + 1] = version
      end
      if version ~= newest and acknowledged(column) then later[#later + 1] = column end
    end
  end
  return cells, later
end

local rows = redis.call('ZRANGEBYLEX', tag .. 'rows', from, '+', 'LIMIT', 0, limit)
local reply, last = {'rows', '', base}, nil
for _, row in ipairs(rows) do
  if size > budget then
    reply[2] = '(' .. last
    return reply
  end
  local cells, later = cells_of(row)
  if #cells + #later > 0 then
    reply[#reply + 1] = row
    reply[#reply + 1] = cells
    reply[#reply + 1] = later
  end
  last = row
end
if #rows == limit then reply[2] = '(' .. last end
return reply
