-- Remove the dirty marks of cells after their observer ran, unless something happened that the run did not see.
--   uses    clock, layout, dirty
--   flags   allow-oom
--   KEYS    tag
--   ARGV    observer, mode, start_ts, cells (row, column, deadline, before) …
--   reply   how many marks were removed; the others are kept

local tag, observer, mode, start_ts, cleared = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), 0
local key = tag .. 'dirty:' .. observer
for i = 4, #ARGV, 4 do
  local row, column, deadline, before = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local mark = dirty_mark(column, row)
  redis.call('HDEL', tag .. 'tries:' .. observer, mark)
  redis.call('HDEL', tag .. 'failed:' .. observer, mark)
  if mark_is_settled(tag, observer, mode, row, column, deadline, before, start_ts) then
    redis.call('ZREM', key, mark)
    cleared = cleared + 1
  else
    end_lease(tag, observer, mode, mark, deadline, before)
  end
end
return cleared
