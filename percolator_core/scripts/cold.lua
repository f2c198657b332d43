-- A bounded step of the search for rows that may move from the store to the tablet's base.
--   uses    clock, layout, dirty
--   flags   no-writes
--   KEYS    tag
--   ARGV    before, start, most_rows, most_bytes, observers …
--             before: a row with a version newer than this timestamp stays
--   reply   {resume, stamp, has_garbage, columns, keys, versions, rows, cells}
--             stamp: for evict.lua; has_garbage: 1 if a row, or a part of one, has to stay now but could move after a
--             garbage collection, otherwise 0; columns: a list of column names; keys, versions: two strings, the
--             joined keys and the joined versions of the rows that have no lock, no older versions, and no cell that
--             is dirty or in quarantine; versions of acknowledgements are left out
--             rows: three numbers for each row, as >I4: the length of its key, the number of its cells, and the number
--             of its fields, which is 0 if some of its fields do not leave with the cells
--             cells: two numbers for each cell, as >I4: the place of its column in the list, from 0, and the length of
--             its version
-- The reply has few long strings, because many short ones cost both sides many times more per byte.

local call, unpack_number = redis.call, struct.unpack
local tag, before, from, limit, budget = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local observers = busy_observers(tag, {unpack(ARGV, 5)})
local is_watched, size, has_garbage = #observers > 0, 0, 0

-- A cache. For each field: the place of its column, as the upper half of a number; false for a field that is no cell.
local columns = {}
local places = setmetatable({}, {__index = function(known, field)
  local column, place = string.sub(field, 2), false
  if string.byte(field) == 99 and not acknowledged(column) then
    columns[#columns + 1] = column
    place = (#columns - 1) * 2 ^ 32
  end
  known[field] = place
  return place
end})

-- A cache of packed numbers, because packing each number again would take longer. A number combines place and length.
local cell_texts = setmetatable({}, {__index = function(known, number)
  local text = struct.pack('>I8', number)
  known[number] = text
  return text
end})

local keys, versions, rows, cells, count = {}, {}, {}, {}, 0

-- Judge a field that is no cell. The first result is true if the row may leave although it has the field. The second
-- result is true if the field leaves with the cells.
local function judge(fields, field, value)
  local mark = string.byte(field)
  if mark == 120 then return true, false end
  if mark ~= 99 then return false end
  -- If the acknowledgement is deleted, the row stays: the rerun that deleted it may not have set its mark yet.
  if version_times(value) > before or is_unacknowledged(string.sub(field, 2), value) then return false end
  local observed = 'c' .. acknowledged(string.sub(field, 2))
  if observed == 'c' .. ROW then return true, not is_of_view(string.sub(field, 2)) end
  for i = 1, #fields, 2 do
    if fields[i] == observed then return true, true end
  end
  return true, false
end

-- Add a row to the reply unless it stays in the store.
local function read(row, has_history)
  if is_watched and is_dirty(tag, row, ROW, observers) then return end
  local fields = call('HGETALL', tag .. 'r:' .. row)
  local last, is_whole = count, #fields > 0
  for i = 1, #fields, 2 do
    local field, version = fields[i], fields[i + 1]
    local place = places[field]
    size = size + FIELD + #field + #version
    if place then
      if unpack_number('>I8', version) > before then return end
      if is_watched and is_dirty(tag, row, string.sub(field, 2), observers) then return end
      last = last + 1
      versions[last], cells[last] = version, cell_texts[place + #version]
    else
      local may_leave, leaves = judge(fields, field, version)
      if not may_leave then return end
      is_whole = is_whole and leaves
    end
  end
  if has_history or not is_whole then has_garbage = 1 end
  if has_history or last == count then return end
  keys[#keys + 1] = row
  rows[#rows + 1] = struct.pack('>I4I4I4', #row, last - count, is_whole and #fields / 2 or 0)
  count = last
end

local function reply(resume)
  return {resume, eviction_stamp(tag), has_garbage, columns, table.concat(keys),
    table.concat(versions, '', 1, count), table.concat(rows), table.concat(cells, '', 1, count)}
end

local found = call('ZRANGEBYLEX', tag .. 'rows', from, '+', 'LIMIT', 0, limit)
local histories = {}
for i, row in ipairs(found) do histories[i] = tag .. 'v:' .. row end
local some = #found > 0 and call('EXISTS', unpack(histories)) > 0
for i, row in ipairs(found) do
  if size > budget then return reply('(' .. found[i - 1]) end
  size = size + #row
  read(row, some and call('EXISTS', histories[i]) == 1)
end
return reply(#found == limit and '(' .. found[#found] or '')
