-- Remove cells of some rows that the tablet's base has.
-- The manifest was published before this call. It has each of these rows as the row was at the timestamp `before`. A
-- cell may be removed if its newest version is at or below `before`. No later commit can get a timestamp at or below
-- `before`, because `before` is at or below the safe point and all older locks were resolved.
--   uses    clock, layout, dirty
--   flags   allow-oom
--   KEYS    tag
--   ARGV    base, version, before, stamp, observers (counted) …, rows …
--             base: the reference of the manifest: if another one is valid, nothing is removed; version: of the table, which
--             keeps its base as long as it has this version; before: the manifest's timestamp; stamp: from the reply to the
--             call before this one; for the first call, from the reply of cold.lua with the first rows; observers: of the
--             tablet's table; rows: each with the number of its fields, or 0, as in the reply of cold.lua
--   reply   {"evicted", stamp, cells, rows} | {"overtaken"}
--             stamp: for the next call; cells, rows: how many were removed

local tag, before, count = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[5])
local valid = redis.call('HMGET', tag .. 'meta', 'base', 'version')
if valid[1] ~= ARGV[1] or valid[2] ~= ARGV[2] then return {'overtaken'} end
local evicted, dropped = 0, 0

-- The observers that have something to process: also those that were registered after the caller read their names.
local observers = {unpack(ARGV, 6, 5 + count)}
for _, names in pairs(observed_columns(tag)) do
  for observer in string.gmatch(names, '[^,]+') do observers[#observers + 1] = observer end
end
observers = busy_observers(tag, observers)

-- True if a cell may be removed: its newest version is in the base, and nobody needs the cell in the store.
local function is_idle(row, cells, column, older)
  local version = cells['c' .. column]
  if version_times(version) > before or cells['l' .. column] or is_dirty(tag, row, column, observers) then return false end
  -- A cell with older versions stays until garbage collection has removed them: the newest version goes last.
  local prefix = pack_column(column)
  return older == 0 or #redis.call('ZRANGEBYLEX', tag .. 'v:' .. row, '[' .. prefix, '(' .. prefix .. string.rep('\255', 9),
    'LIMIT', 0, 1) == 0
end

local function evict_row(row)
  local key, older = tag .. 'r:' .. row, redis.call('ZCARD', tag .. 'v:' .. row)
  local fields, cells, idle, gone = redis.call('HGETALL', key), {}, {}, {}
  for i = 1, #fields, 2 do cells[fields[i]] = fields[i + 1] end
  for field in pairs(cells) do
    local column = string.sub(field, 2)
    if string.byte(field) == 99 and not acknowledged(column) then
      idle[column] = is_idle(row, cells, column, older)
    end
  end
  for field in pairs(cells) do
    local column = string.sub(field, 2)
    local observed = string.byte(field) == 99 and acknowledged(column)
    -- An acknowledgement goes with the cell that it acknowledges. One of the whole row may go because the base has the
    -- row as the observer saw it: a flush takes no row that an observer has still to process.
    local is_processed = observed and (observed == ROW or idle[observed]) and not is_of_view(column) and
      not is_unacknowledged(column, cells[field])
    if string.byte(field) == 99 and (idle[column] or (is_processed and is_idle(row, cells, column, older))) then
      gone[#gone + 1] = field
    end
  end
  -- In steps: Lua cannot unpack so many fields at once.
  for first = 1, #gone, 2000 do
    evicted = evicted + redis.call('HDEL', key, unpack(gone, first, math.min(first + 1999, #gone)))
  end
  dropped = dropped + drop_if_empty(tag, row)
end

-- Most rows have not changed since they were read, and are removed as a whole. A row has not changed if it has the same
-- number of fields and no older versions, because each commit adds a field or an older version. A collection keeps this
-- older version, the newest one below the safe point: an equal stamp shows that the safe point has not moved. Fields
-- are removed only by an eviction (an equal stamp shows that there was none), a collection in a tablet without a base,
-- and a schema change. A call that is sent again finds another stamp, and looks at each cell. The number of an eviction
-- is a time: a failover may lose evictions, and no later eviction may get the number of a lost one.
local is_unchanged = eviction_stamp(tag) == ARGV[4]
local is_quiet = is_unchanged and #observers == 0
local last = redis.call('HGET', tag .. 'meta', 'evictions') or 0
redis.call('HSET', tag .. 'meta', 'evictions', string.format('%.0f', math.max(last + 1, now())))

-- Evict the rows in ARGV from `first` to `last`.
local function evict_rows(first, last)
  local histories, keys, rows = {}, {}, {}
  for i = first, last, 2 do histories[#histories + 1] = tag .. 'v:' .. ARGV[i] end
  local some = is_quiet and redis.call('EXISTS', unpack(histories)) > 0
  for i = first, last, 2 do
    local row, fields = ARGV[i], tonumber(ARGV[i + 1])
    local key = tag .. 'r:' .. row
    if is_quiet and fields > 0 and redis.call('HLEN', key) == fields and
      not (some and redis.call('EXISTS', tag .. 'v:' .. row) == 1) then
      keys[#keys + 1], rows[#rows + 1] = key, row
      evicted = evicted + fields
    else
      evict_row(row)
    end
  end
  if #keys == 0 then return end
  redis.call('UNLINK', unpack(keys))
  dropped = dropped + redis.call('ZREM', tag .. 'rows', unpack(rows))
end

for first = 6 + count, #ARGV, 2000 do evict_rows(first, math.min(first + 1999, #ARGV)) end
return {'evicted', is_unchanged and eviction_stamp(tag) or ARGV[4], evicted, dropped}
