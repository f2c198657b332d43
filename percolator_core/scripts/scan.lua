-- A bounded step of a scan over one tablet, in row order, at a timestamp.
--   uses    layout, read
--   KEYS    tag
--   ARGV    at, from, to (bounds as ZRANGEBYLEX takes them), rows at most, bytes at most, "forward" or "backward",
--           columns … (none: all of the row)
--   reply   {"too old"} | {"rows", bound to resume from or "", row, {column, cell, …}, row, …}
--           cell as read.lua replies it; rows with no visible cell are left out

local tag, at, from, to = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local limit, budget, backward = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == 'backward'
if at < safe_point(tag) then return {'too old'} end

local rows
if backward then
  rows = redis.call('ZREVRANGEBYLEX', tag .. 'rows', to, from, 'LIMIT', 0, limit)
else
  rows = redis.call('ZRANGEBYLEX', tag .. 'rows', from, to, 'LIMIT', 0, limit)
end

local fields = {}
for i = 7, #ARGV do
  fields[#fields + 1] = 'c' .. ARGV[i]
  fields[#fields + 1] = 'l' .. ARGV[i]
end

-- All columns of a row: {column -> {newest, lock}}; internal columns start with a byte no text starts with.
local function whole_row(row)
  local hash, cells, order = redis.call('HGETALL', tag .. 'r:' .. row), {}, {}
  for i = 1, #hash, 2 do
    local mark, column = string.sub(hash[i], 1, 1), string.sub(hash[i], 2)
    if (mark == 'c' or mark == 'l') and string.byte(column) ~= 255 then
      if not cells[column] then
        cells[column] = {false, false}
        order[#order + 1] = column
      end
      cells[column][mark == 'c' and 1 or 2] = hash[i + 1]
    end
  end
  return cells, order
end

local reply, size, last = {'rows', ''}, 0, nil
for _, row in ipairs(rows) do
  if size > budget then
    reply[2] = '(' .. last
    return reply
  end
  local cells = {}
  local function add(column, newest, lock)
    local cell = read_cell(tag, row, column, newest, lock, at)
    if cell[1] or cell[2] then
      cells[#cells + 1] = column
      cells[#cells + 1] = cell
      size = size + #(cell[1] or '')
    end
  end
  if #fields > 0 then
    -- In steps: Lua cannot unpack any number of fields at once.
    for first = 1, #fields, 2000 do
      local found = redis.call('HMGET', tag .. 'r:' .. row, unpack(fields, first, math.min(first + 1999, #fields)))
      for i = 1, #found, 2 do add(string.sub(fields[first + i - 1], 2), found[i], found[i + 1]) end
    end
  else
    local by_column, order = whole_row(row)
    for _, column in ipairs(order) do add(column, by_column[column][1], by_column[column][2]) end
  end
  if #cells > 0 then
    reply[#reply + 1] = row
    reply[#reply + 1] = cells
    size = size + #row
  end
  last = row
end
if #rows == limit then reply[2] = '(' .. last end
return reply
