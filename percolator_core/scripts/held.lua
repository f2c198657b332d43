-- What a transaction may hold of a cell, without the value that it would write, which may be large.
--   uses    layout
--   KEYS    tag
--   ARGV    start timestamp, row, column
--   reply   locks …, each cut in front of its value; the cell's may be another transaction's

local tag, start_ts, row, column = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local found = redis.call('HMGET', tag .. 'r:' .. row, lock_field(PUT, start_ts, column), lock_field(NOTIFY, start_ts, column))
local reply = {}
for i = 1, 2 do
  if found[i] then
    local _, _, _, _, owner_length, primary_length = struct.unpack('>BI7I8I4I2I4', found[i])
    reply[#reply + 1] = string.sub(found[i], 1, 26 + owner_length + primary_length)
  end
end
return reply
