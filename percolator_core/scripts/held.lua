-- Locks of one tablet as they are now, without the values that they would write, which may be large.
--   uses    clock, layout
--   flags   no-writes
--   KEYS    tag
--   ARGV    cursor, most, untouched, entries …
--             entries: of the lock index. If none are given, the script looks at about `most` entries from `cursor` on,
--             which is "0" at first; untouched: only locks that were not refreshed for this many µs, "" for all
--   reply   {cursor, (entry …), (locks …)}
--             cursor: where to go on, "0" at the end; entry: found by the step, none if entries were given; locks: for
--             each entry, the locks of its cell that may belong to its transaction, each without its value. If values
--             are large, there may be fewer lists than entries: the script did not look at the last entries

local tag, next_cursor, entries = KEYS[1], '0', {}
local is_step = #ARGV == 3
if is_step then
  local untouched, step = tonumber(ARGV[3]), redis.call('ZSCAN', tag .. 'locks', ARGV[1], 'COUNT', ARGV[2])
  next_cursor = step[1]
  for i = 1, #step[2], 2 do
    local wall = tonumber(step[2][i + 1])
    -- Wall times are by this server's clock. A lock from the future was written before the clock was set back, and
    -- counts as not refreshed.
    if not untouched or wall < now() - untouched or wall > now() then entries[#entries + 1] = step[2][i] end
  end
else
  for i = 4, #ARGV do entries[i - 3] = ARGV[i] end
end

-- A lock can be read only with its value, and other requests wait for this step. So a step reads at most about as many
-- bytes as one prewrite may write.
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
return {next_cursor, is_step and entries or {}, lists}
