-- Read cells of one row at a timestamp, if their newest versions alone are not the answer.
--   uses    layout, read
--   flags   no-writes
--   KEYS    tag
--   ARGV    at, row, columns …
--   reply   {"too old"} | {"cells", base, cell …}
--             base: it may have a cell that is not here
--             cell: {version}, {} where there is none, or {nil, lock} if a lock blocks the read

local tag, at, row = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local too_old, base = is_too_old(tag, at)
if too_old then return {'too old'} end
local reply = {'cells', base}
for i = 3, #ARGV do
  local column = ARGV[i]
  local found = redis.call('HMGET', tag .. 'r:' .. row, 'c' .. column, 'l' .. column)
  reply[#reply + 1] = read_cell(tag, row, column, found[1], found[2], at)
end
return reply
