-- Weigh a sample of one tablet's rows.
--   uses    layout
--   flags   no-writes
--   KEYS    tag
--   ARGV    places …
--             places: in the row index, from 0 at its beginning to below a million at its end
--   reply   {rows, (row, bytes, newest) …}
--             rows: of the tablet; bytes: an estimate of the memory that the row takes; newest: commit timestamp of its cells

local tag = KEYS[1]
local rows = redis.call('ZCARD', tag .. 'rows')
local reply = {rows}
-- Bytes of a row's entry in the row index, beside its key.
local ENTRY = 100

local function weigh(row)
  local key, newest = tag .. 'r:' .. row, 0
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if string.byte(fields[i]) == 99 and not acknowledged(string.sub(fields[i], 2)) then
      newest = math.max(newest, (version_times(fields[i + 1])))
    end
  end
  local bytes = (redis.call('MEMORY', 'USAGE', key) or 0) + (redis.call('MEMORY', 'USAGE', tag .. 'v:' .. row) or 0)
  return bytes + #row + ENTRY, newest
end

for _, place in ipairs(ARGV) do
  local rank = math.floor(tonumber(place) * rows / 1000000)
  local row = redis.call('ZRANGE', tag .. 'rows', rank, rank)[1]
  if row then
    local bytes, newest = weigh(row)
    reply[#reply + 1] = row
    reply[#reply + 1] = string.format('%.0f', bytes)
    reply[#reply + 1] = string.format('%.0f', newest)
  end
end
return reply
