-- A bounded step of the search for rows that may move from the store to the tablet's base.
--   uses    clock, layout, dirty
--   flags   no-writes
--   KEYS    tag
--   ARGV    before, start, most_rows, most_bytes, observers …
--             before: a row with a newer version of a cell stays; start: the bound to go on from, "-" at first; observers: of
--             the tablet's table
--   reply   {resume, (row, cells) …}
--             resume: the bound to go on from, "" at the end; cells: {column, version, …}, all cells of a row that has no
--             lock, no older versions, and no cell that is dirty or in quarantine; without acknowledgements

local tag, before, from, limit, budget = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local observers = {unpack(ARGV, 5)}
local size = 0
-- Bytes that a field counts beside its name and value: reading it takes as long as so many bytes.
local FIELD = 32

-- Return all cells of a row, or nil if the row stays in the store.
local function cells_of(row)
  if redis.call('EXISTS', tag .. 'v:' .. row) == 1 then return nil end
  local fields, cells = redis.call('HGETALL', tag .. 'r:' .. row), {}
  size = size + #row
  for i = 1, #fields, 2 do
    local mark, column = string.sub(fields[i], 1, 1), string.sub(fields[i], 2)
    size = size + FIELD + #fields[i] + #fields[i + 1]
    if mark == 'l' or mark == 'n' then return nil end
    if mark == 'c' then
      local commit_ts, _, kind = version_times(fields[i + 1])
      if commit_ts > before or (#observers > 0 and is_dirty(tag, row, column, observers)) then return nil end
      if acknowledged(column) then
        -- A rerun has deleted it, and may not have set its mark yet.
        if kind == DELETE then return nil end
      else
        cells[#cells + 1] = column
        cells[#cells + 1] = fields[i + 1]
      end
    end
  end
  return cells
end

local rows = redis.call('ZRANGEBYLEX', tag .. 'rows', from, '+', 'LIMIT', 0, limit)
local reply, last = {''}, nil
for _, row in ipairs(rows) do
  if size > budget then
    reply[1] = '(' .. last
    return reply
  end
  local cells = cells_of(row)
  if cells and #cells > 0 then
    reply[#reply + 1] = row
    reply[#reply + 1] = cells
  end
  last = row
end
if #rows == limit then reply[1] = '(' .. last end
return reply
