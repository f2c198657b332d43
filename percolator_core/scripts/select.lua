-- A bounded step of a scan over one tablet of a typed table, in row order, at a timestamp: some columns of the rows for
-- which a predicate is true.
--   uses    layout, read
--   flags   no-writes
--   KEYS    tag
--   ARGV    at, start, stop, direction, most_rows, most_looked_at, most_bytes, solid, columns (counted) …, predicate …
--             start, stop: bounds as ZRANGEBYLEX takes them
--             direction: "forward" or "backward"
--             solid: the number of leading columns that are never null and of fixed width
--             predicate: as schema/predicates.py encodes it, in this order:
--             the number of parts of a row key (0 if the predicate asks for none); the width of each part, 0 if it
--             varies; the number of columns that the predicate asks for; the name of each column, followed by "=" and
--             the value that stands for a missing cell, or by "" without such a value; the predicate, each connective
--             in front of its parts; nothing if there is no predicate
--   reply   {"too old"} | {"based", base} | {"rows", resume, row_keys, cells, lengths, unsettled …}
--             base: the store may have only a part of a row, so the caller evaluates the predicate
--             row_keys: the keys of the rows, joined
--             cells: the versions of the columns, row by row, joined; a null adds nothing
--             lengths: for each row, the length of its key and of each cell that is not solid, as >I4
--             unsettled: keys of rows with a lock in the way, or without a solid cell; the caller reads these rows
-- The reply has a few long strings, because many short ones cost both sides many times more per byte.

local call, unpack_numbers, sub, concat = redis.call, struct.unpack, string.sub, table.concat
local tag, at, from, to, backward = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4] == 'backward'
local most, most_looked, budget = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local too_old, base = is_too_old(tag, at)
if too_old then return {'too old'} end
if base ~= '' then return {'based', base} end

local position = 7
local function argument()
  position = position + 1
  return ARGV[position]
end

local solid = tonumber(argument())
local wanted, mine = {}, {['\255'] = true}
for i = 1, tonumber(argument()) do
  local column = argument()
  wanted[i], mine[column] = 'c' .. column, true
end

-- The predicate. `text` has the values of the current row, false for null: first the cells as they are stored, with 16
-- bytes in front of the value, then the parts of the row key.
local widths, asked, absent, text = {}, {}, {}, {}
for i = 1, tonumber(argument()) do widths[i] = tonumber(argument()) end
for i = 1, tonumber(argument()) do
  local column, default = argument(), argument()
  asked[i], mine[column] = 'c' .. column, true
  absent[i] = default ~= '' and string.rep('\0', 15) .. default  -- 15 bytes and "=" are the 16 in front
end

-- Return six bytes of a string, padded with zeros, as a number that Lua holds exactly. Lua's own < depends on the locale.
local function six_bytes(bytes, first)
  if #bytes >= first + 5 then return (unpack_numbers('>I6', bytes, first)) end
  if #bytes < first then return 0 end
  return (unpack_numbers('>I6', sub(bytes, first) .. '\0\0\0\0\0\0'))
end

local function in_sixes(bytes)
  local found = {length = #bytes}
  for i = 1, #bytes, 6 do found[#found + 1] = six_bytes(bytes, i) end
  return found
end

-- Compare the bytes from `first` on with those of `sixes`; return a number below 0, 0, or a number above 0. The length
-- decides between strings that differ only by zeros at their end.
local function compare(bytes, first, sixes)
  for i = 1, #sixes do
    local found = six_bytes(bytes, first + 6 * (i - 1))
    if found ~= sixes[i] then return found - sixes[i] end
  end
  return #bytes - first + 1 - sixes.length
end

-- Return a function that tests the current row. It returns true or false, or nil if the answer depends on a null.
local function read_test(op)
  local column = tonumber(argument())
  local first = column > #asked and 1 or 17
  if op == 'null' then return function() return not text[column] end end
  if op == 'in' then
    local values = {}
    for _ = 1, tonumber(argument()) do values[argument()] = true end
    return function()
      local found = text[column]
      if found then return values[sub(found, first)] == true end
    end
  end
  local value = argument()
  local last = first + #value - 1
  if op == '^=' then
    return function()
      local found = text[column]
      if found then return sub(found, first, last) == value end
    end
  elseif op == '=' or op == '!=' then
    local same = op == '='
    return function()
      local found = text[column]
      if found then return (#found == last and sub(found, first) == value) == same end
    end
  end
  -- Most values differ in their first eight bytes, which one call unpacks as two numbers.
  local sixes, high, low = in_sixes(value), nil, nil
  if #value >= 8 then high, low = unpack_numbers('>I4I4', value) end
  local is_below, meant = op == '<' or op == '>=', op == '<' or op == '>'
  return function()
    local found = text[column]
    if not found then return nil end
    local order
    if high and #found >= first + 7 then
      local high_found, low_found = unpack_numbers('>I4I4', found, first)
      if high_found ~= high then
        order = high_found - high
      elseif low_found ~= low then
        order = low_found - low
      else
        order = compare(found, first, sixes)
      end
    else
      order = compare(found, first, sixes)
    end
    if is_below then return (order < 0) == meant end
    return (order > 0) == meant
  end
end

local function read_predicate()
  local op = argument()
  if op == 'not' then
    local part = read_predicate()
    return function()
      local found = part()
      if found ~= nil then return not found end
    end
  elseif op ~= 'and' and op ~= 'or' then
    return read_test(op)
  end
  local parts, settled = {}, op == 'or'
  for i = 1, tonumber(argument()) do parts[i] = read_predicate() end
  return function()
    local unknown = false
    for i = 1, #parts do
      local found = parts[i]()
      if found == settled then return settled end
      if found == nil then unknown = true end
    end
    if not unknown then return not settled end
  end
end

local holds = position < #ARGV and read_predicate()

-- Split a row key as schema/row_keys.py encodes it: a part of variable length ends with 00 01, unless it is the last, and
-- has 00 FF for a zero.
local function split(row)
  local first = 1
  for i, width in ipairs(widths) do
    local part = false
    if width > 0 then
      part, first = sub(row, first, first + width - 1), first + width
    elseif i == #widths then
      part = sub(row, first)
    else
      local mark = string.find(row, '\0\1', first, true)
      if mark then part, first = string.gsub(sub(row, first, mark - 1), '%z\255', '\0'), mark + 2 end
    end
    text[#asked + i] = part
  end
end

-- The rows that have a lock from before `at` on one of the scanned columns. The lock index lists these rows. If the
-- index is long, the script looks at each row instead.
local KNOWN = 200
local locks = call('ZRANGE', tag .. 'locks', 0, KNOWN)
local locked, lock_fields = {}, #locks > KNOWN and {}
if lock_fields then
  for column in pairs(mine) do lock_fields[#lock_fields + 1] = 'l' .. column end
else
  for _, mark in ipairs(locks) do
    local start_ts, column, row = split_lock_mark(mark)
    if start_ts < at and mine[column] then locked[row] = true end
  end
end

local single = {}
local function read_some(key, fields)
  if #fields > 1 then return read_fields(key, fields) end
  single[1] = call('HGET', key, fields[1])
  return single
end

-- A lookup in the history counts as this many bytes: it takes as long as reading them.
local SEARCH = 1500
local size = 0

local function is_locked(row, key)
  if not lock_fields then return locked[row] end
  size = size + SEARCH
  for _, lock in ipairs(read_some(key, lock_fields)) do
    if lock and lock_start(lock) < at then return true end
  end
  return false
end

-- Return the version that is visible at `at`, '' if the cell is null. Only a version of 16 bytes can be a deletion.
local function seen_version(row, field, newest)
  if newest and unpack_numbers('>I8', newest) > at then
    size = size + SEARCH
    newest = version_at(tag, row, sub(field, 2), newest, at)
  end
  if not newest or #newest == 16 and string.byte(newest, 9) ~= PUT then return '' end
  return newest
end

-- Return two booleans: true if the predicate holds; true if a cell that this function read shows that the row exists.
local function is_wanted(row, key)
  local exists = false
  if #widths > 0 then split(row) end
  if #asked > 0 then
    local found = read_some(key, asked)
    for i = 1, #asked do
      local version = found[i]
      if not version or #version == 16 or unpack_numbers('>I8', version) > at then
        version = seen_version(row, asked[i], version)
      end
      if version == '' then
        text[i] = absent[i]
      else
        text[i], exists = version, true
      end
    end
  end
  return holds() == true, exists
end

local keys, cells, lengths, count, lengths_count = {}, {}, {}, 0, 0
local packed = setmetatable({}, {__index = function(known, length)
  local made = struct.pack('>I4', length)
  known[length] = made
  return made
end})
local reply = {'rows', ''}

local function add_row(row, key, exists)
  local found, hollow = {}, false
  if #wanted > 0 then found = read_some(key, wanted) end
  for i = 1, #wanted do
    local version = found[i]
    if version and #version ~= 16 and unpack_numbers('>I8', version) <= at then
      exists = true
    else
      found[i] = seen_version(row, wanted[i], version)
      if found[i] ~= '' then exists = true elseif i <= solid then hollow = true end
    end
  end
  if not exists then
    size = size + SEARCH
    if seen_version(row, 'c\255', call('HGET', key, 'c\255')) == '' then return end
  end
  if hollow then
    reply[#reply + 1] = row
    return
  end
  count = count + 1
  keys[count], cells[count] = row, concat(found)
  size = size + #cells[count] + #row
  lengths_count = lengths_count + 1
  lengths[lengths_count] = packed[#row]
  for i = solid + 1, #wanted do
    lengths_count = lengths_count + 1
    lengths[lengths_count] = packed[#found[i]]
  end
end

local rows
if backward then
  rows = call('ZREVRANGEBYLEX', tag .. 'rows', to, from, 'LIMIT', 0, most_looked)
else
  rows = call('ZRANGEBYLEX', tag .. 'rows', from, to, 'LIMIT', 0, most_looked)
end
local prefix, last = tag .. 'r:', nil
local any_locks = #locks > 0
for i = 1, #rows do
  if size > budget or count + #reply - 2 >= most then
    reply[2] = '(' .. last
    break
  end
  local row = rows[i]
  local key = prefix .. row
  last = row
  if any_locks and is_locked(row, key) then
    reply[#reply + 1] = row
  elseif holds then
    local wants, exists = is_wanted(row, key)
    if wants then add_row(row, key, exists) end
  else
    add_row(row, key, false)
  end
end
if #rows == most_looked and reply[2] == '' then reply[2] = '(' .. last end

table.insert(reply, 3, concat(keys))
table.insert(reply, 4, concat(cells))
table.insert(reply, 5, concat(lengths))
return reply
