-- A bounded step of a scan over one tablet, in row order, at a timestamp.
--   uses    layout, read
--   flags   no-writes
--   KEYS    tag
--   ARGV    at, start, stop, most_rows, most_bytes, direction, most_of_each, columns …
--             start, stop: bounds as ZRANGEBYLEX takes them; direction: "forward" or "backward"; most_of_each: versions
--             of whole rows are cut to this many bytes, 0 for no limit; columns: none for whole rows
--   reply   {"too old"} | {"rows", resume, base, (row, cells) …}
--             rows without fields are left out
--             cells of named columns: {version, nil, …}; if a newest version is not the answer, a cell in the form of
--             read.lua replaces it
--             cells of a whole row: {field, version, …} as the hash has them; but if some newest version is not the
--             answer, {"judged", column, cell, …}, with all cells in the form of read.lua. To bring all versions into
--             this form would take longer than the rest of the script

local tag, at, from, to = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local limit, budget, backward = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == 'backward'
local too_old, base = is_too_old(tag, at)
if too_old then return {'too old'} end

local rows
if backward then
  rows = redis.call('ZREVRANGEBYLEX', tag .. 'rows', to, from, 'LIMIT', 0, limit)
else
  rows = redis.call('ZRANGEBYLEX', tag .. 'rows', from, to, 'LIMIT', 0, limit)
end

local size, fields, names = 0, {}, 0
for i = 8, #ARGV do
  fields[#fields + 1] = 'c' .. ARGV[i]
  fields[#fields + 1] = 'l' .. ARGV[i]
  names = names + 2 * #ARGV[i]
end

-- Return the cells of the named columns, and true if the row has any of these cells.
local function named_cells(row)
  local cells, any = read_fields(tag .. 'r:' .. row, fields), false
  size = size + names + FIELD * #cells
  for i = 1, #cells, 2 do
    local newest, lock = cells[i], cells[i + 1]
    if lock or newest then
      any = true
      size = size + #(newest or '')
      if lock or version_times(newest) > at then
        cells[i] = read_cell(tag, row, string.sub(fields[i], 2), newest, lock, at)
        cells[i + 1] = false
        size = size + #(cells[i][1] or '')
      end
    end
  end
  return cells, any
end

-- Return all columns of a row, judged one by one, and the marker of a typed row. The names of other internal columns
-- start with the marker's name, a byte that no text starts with.
local function judged_row(row, hash)
  local versions, locks, order, cells = {}, {}, {}, {'judged'}
  for i = 1, #hash, 2 do
    local mark, internal = string.byte(hash[i], 1, 2)
    if (mark == 99 or mark == 108) and (internal ~= 255 or #hash[i] == 2) then
      local column = string.sub(hash[i], 2)
      if not versions[column] and not locks[column] then order[#order + 1] = column end
      if mark == 99 then versions[column] = hash[i + 1] else locks[column] = hash[i + 1] end
    end
  end
  for _, column in ipairs(order) do
    local cell = read_cell(tag, row, column, versions[column], locks[column], at)
    cells[#cells + 1] = column
    cells[#cells + 1] = cell
    size = size + #(cell[1] or '')
  end
  return cells
end

local function whole_row(row)
  local hash = redis.call('HGETALL', tag .. 'r:' .. row)
  local settled = true
  for i = 1, #hash, 2 do
    local mark, value = string.byte(hash[i]), hash[i + 1]
    size = size + 2 * FIELD + #hash[i] + #value
    settled = settled and mark ~= 108 and (mark ~= 99 or version_times(value) <= at)
  end
  return settled and hash or judged_row(row, hash), #hash > 0
end

-- Cut versions for a caller who needs only their beginnings, so that large values are not sent.
local function cut_off(cells, most)
  if cells[1] == 'judged' then
    for i = 3, #cells, 2 do
      if #cells[i] == 1 then cells[i][1] = string.sub(cells[i][1], 1, most) end
    end
  else
    for i = 2, #cells, 2 do cells[i] = string.sub(cells[i], 1, most) end
  end
end

local longest = tonumber(ARGV[7])
local reply, last = {'rows', '', base}, nil
for _, row in ipairs(rows) do
  if size > budget then
    reply[2] = '(' .. last
    return reply
  end
  local cells, any
  if #fields > 0 then cells, any = named_cells(row) else cells, any = whole_row(row) end
  if longest > 0 and #fields == 0 then cut_off(cells, longest) end
  if any then
    reply[#reply + 1] = row
    reply[#reply + 1] = cells
    size = size + #row
  end
  last = row
end
if #rows == limit then reply[2] = '(' .. last end
return reply
