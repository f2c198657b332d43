-- The committed versions of one cell, newest first.
--   uses    layout
--   flags   no-writes
--   KEYS    tag
--   ARGV    row, column, most_versions, most_bytes
--             most_bytes: each version is cut to this many bytes, -1 for no limit
--   reply   {version …}

local tag, row, column, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local most = tonumber(ARGV[4])
local newest = redis.call('HGET', tag .. 'r:' .. row, 'c' .. column)
if not newest then return {} end
local prefix = pack_column(column)
local reply = {string.sub(newest, 1, most)}
local older = redis.call('ZREVRANGEBYLEX', tag .. 'v:' .. row,
  '(' .. prefix .. string.rep('\255', 9), '[' .. prefix, 'LIMIT', 0, limit - 1)
for _, member in ipairs(older) do
  reply[#reply + 1] = string.sub(member, #prefix + 1, most < 0 and -1 or #prefix + most)
end
return reply
