-- Locks of one tablet as they stand now, without the values that they would write, which may be large.
--   uses    clock, layout
--   flags   no-writes
--   KEYS    tag
--   ARGV    "index", where to go on in the lock index ("0" at first), entries that are looked at, about, and the
--           microseconds for which a lock is untouched ("" for all); or "entries", entries of the lock index …
--   reply   {where to go on, "0" at the end, entries …, lists of locks …}: per entry that which its transaction may hold of
--           the cell, each lock cut in front of its value; the cell's may be another transaction's. Entries that were given
--           are not repeated. Where values are large there are fewer lists than entries: the last ones were not looked at

local tag, next_cursor, entries = KEYS[1], '0', {}
if ARGV[1] == 'index' then
  local untouched, step = tonumber(ARGV[4]), redis.call('ZSCAN', tag .. 'locks', ARGV[2], 'COUNT', ARGV[3])
  next_cursor = step[1]
  for i = 1, #step[2], 2 do
    local wall = tonumber(step[2][i + 1])
    -- By the clock of the server that wrote them. What lies ahead is from before it was set back.
    if not untouched or wall < now() - untouched or wall > now() then entries[#entries + 1] = step[2][i] end
  end
else
  for i = 2, #ARGV do entries[i - 1] = ARGV[i] end
end

-- A lock can be read only as a whole. Others wait meanwhile, and it is read again to be settled: so as much as one
-- prewrite brings.
local ENOUGH = 4 * 1024 * 1024
local lists, size = {}, 0
for i, entry in ipairs(entries) do
  if size > ENOUGH then break end
  local start_ts, column, row = split_lock_mark(entry)
  local found = redis.call('HMGET', tag .. 'r:' .. row, lock_field(PUT, start_ts, column), lock_field(NOTIFY, start_ts, column))
  local locks = {}
  size = size + #entry
  for j = 1, 2 do
    if found[j] then
      locks[#locks + 1] = lock_without_value(found[j])
      size = size + #found[j]
    end
  end
  lists[i] = locks
end
return {next_cursor, ARGV[1] == 'index' and entries or {}, lists}
