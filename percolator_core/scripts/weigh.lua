-- Weigh a sample of one tablet's rows.
--   uses    clock, layout, dirty
--   flags   no-writes
--   KEYS    tag
--   ARGV    observers (counted) …, places …
--             places: in the row index, from 0 at its beginning to below a million at its end
--   reply   {rows, (row, bytes, newest) …}
--             rows: how many the tablet has; bytes: an estimate of the row's memory; newest: the newest commit
--             timestamp of its cells and acknowledgements, or 2^53 if the row has to stay in the store now, even if old

local tag = KEYS[1]
local rows = redis.call('ZCARD', tag .. 'rows')
local reply = {rows}
local count = tonumber(ARGV[1])
local observers = busy_observers(tag, {unpack(ARGV, 2, 1 + count)})
-- Bytes of a row's entry in the row index, in addition to its key.
local ENTRY = 100

-- Return the newest commit timestamp among the fields of a row. A row stays in the store if an observer has not
-- processed one of its cells, or if a field is no cell (such as a lock). Such a row counts as newer than all others.
local function newest_of(row, fields)
  if is_dirty(tag, row, ROW, observers) then return 2 ^ 53 end
  local newest = 0
  for i = 1, #fields, 2 do
    local mark, column = string.sub(fields[i], 1, 1), string.sub(fields[i], 2)
    if mark ~= 'c' or is_dirty(tag, row, column, observers) then return 2 ^ 53 end
    newest = math.max(newest, (version_times(fields[i + 1])))
  end
  return newest
end

local function weigh(row)
  local key = tag .. 'r:' .. row
  local bytes = (redis.call('MEMORY', 'USAGE', key) or 0) + (redis.call('MEMORY', 'USAGE', tag .. 'v:' .. row) or 0)
  return bytes + #row + ENTRY, newest_of(row, redis.call('HGETALL', key))
end

for i = 2 + count, #ARGV do
  local rank = math.floor(tonumber(ARGV[i]) * rows / 1000000)
  local row = redis.call('ZRANGE', tag .. 'rows', rank, rank)[1]
  if row then
    local bytes, newest = weigh(row)
    reply[#reply + 1] = row
    reply[#reply + 1] = string.format('%.0f', bytes)
    reply[#reply + 1] = string.format('%.0f', newest)
  end
end
return reply
