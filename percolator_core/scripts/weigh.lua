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
-- Bytes of a key in the server's table, with its entry in the row index, beside the names themselves.
local KEY = 200
-- Bytes of a field, in a small hash and in another one, beside its name and value (the server's own defaults).
local SMALL_FIELDS, SMALL_BYTES = 128, 64
local IN_SMALL, IN_LARGE = 6, 72

local function weigh(row)
  local fields = redis.call('HGETALL', tag .. 'r:' .. row)
  local size, newest, each = 0, 0, #fields / 2 <= SMALL_FIELDS and IN_SMALL or IN_LARGE
  for i = 1, #fields, 2 do
    size = size + #fields[i] + #fields[i + 1]
    if math.max(#fields[i], #fields[i + 1]) > SMALL_BYTES then each = IN_LARGE end
    local column = string.sub(fields[i], 2)
    if string.byte(fields[i]) == 99 and not acknowledged(column) then
      newest = math.max(newest, (version_times(fields[i + 1])))
    end
  end
  return KEY + #tag + 2 * #row + size + each * #fields / 2, newest
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
