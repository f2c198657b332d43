-- Remove cells of some rows that the tablet's base has.
-- The manifest was published before this call. It has each of these rows as it was at `before`. A cell may be removed
-- if its newest version is at or below that time: no commit at or below it can follow, because that time is at or below
-- the safe point and all older locks were resolved.
--   uses    clock, layout, dirty
--   flags   allow-oom
--   KEYS    tag
--   ARGV    manifest, version, before, observers (counted) …, rows …
--             manifest: the valid one, otherwise nothing is removed; version: of the table, which keeps its base as long as it has
--             this version; before: the manifest's timestamp; observers: of the tablet's table
--   reply   {"evicted", cells, rows} | {"overtaken"}
--             cells, rows: how many were removed

local tag, before, count = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local valid = redis.call('HMGET', tag .. 'meta', 'base', 'version')
if valid[1] ~= ARGV[1] or valid[2] ~= ARGV[2] then return {'overtaken'} end
local evicted, dropped = 0, 0

-- By column, the observers that may have to process its cells: also those that were registered since the caller has read
-- their names.
local observers = setmetatable({}, {__index = function(known, column)
  local names = {unpack(ARGV, 5, 4 + count)}
  for observer in string.gmatch(observers_of(tag, column) or '', '[^,]+') do names[#names + 1] = observer end
  known[column] = names
  return names
end})

local function is_awaited(row, column)
  return #observers[column] > 0 and is_dirty(tag, row, column, observers[column])
end

-- True if a cell may be removed: its newest version is in the base, and nobody needs the cell in the store.
local function is_idle(row, cells, column, older)
  local version = cells['c' .. column]
  if version_times(version) > before or cells['l' .. column] or is_awaited(row, column) then return false end
  -- Older versions are for collection to remove: the newest one goes last.
  local prefix = history_prefix(column)
  return older == 0 or #redis.call('ZRANGEBYLEX', tag .. 'v:' .. row, '[' .. prefix, '(' .. prefix .. string.rep('\255', 9),
    'LIMIT', 0, 1) == 0
end

local function evict_row(row)
  local key, older = tag .. 'r:' .. row, redis.call('ZCARD', tag .. 'v:' .. row)
  local fields, cells, idle, gone = redis.call('HGETALL', key), {}, {}, {}
  for i = 1, #fields, 2 do cells[fields[i]] = fields[i + 1] end
  for field in pairs(cells) do
    local column = string.sub(field, 2)
    if string.byte(field) == 99 and not acknowledged(column) then idle[column] = is_idle(row, cells, column, older) end
  end
  for field in pairs(cells) do
    local column = string.sub(field, 2)
    local observed = string.byte(field) == 99 and acknowledged(column)
    -- An acknowledgement goes with the cell that it acknowledges.
    if string.byte(field) == 99 and (idle[column] or (observed and idle[observed] and is_idle(row, cells, column, older))) then
      gone[#gone + 1] = field
    end
  end
  -- In steps: Lua cannot unpack so many fields at once.
  for first = 1, #gone, 2000 do
    evicted = evicted + redis.call('HDEL', key, unpack(gone, first, math.min(first + 1999, #gone)))
  end
  dropped = dropped + drop_if_empty(tag, row)
end

for i = 5 + count, #ARGV do evict_row(ARGV[i]) end
return {'evicted', evicted, dropped}
