-- Remove the dirty mark of a cell after its observer ran, unless something happened that the run did not see.
--   uses    clock, layout, dirty
--   flags   allow-oom
--   KEYS    tag
--   ARGV    observer, mode, row, column, deadline, before, start_ts
--   reply   "cleared" | "kept"

local tag, observer, row, column = KEYS[1], ARGV[1], ARGV[3], ARGV[4]
local key, mark = tag .. 'dirty:' .. observer, dirty_mark(column, row)
redis.call('HDEL', tag .. 'tries:' .. observer, mark)
redis.call('HDEL', tag .. 'failed:' .. observer, mark)
if mark_is_settled(tag, observer, ARGV[2], row, column, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])) then
  redis.call('ZREM', key, mark)
  return 'cleared'
end
end_lease(tag, observer, ARGV[2], mark, tonumber(ARGV[5]), tonumber(ARGV[6]))
return 'kept'
