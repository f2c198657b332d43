-- Put a cell aside after its last attempt, unless it changed since that attempt began, or another run dealt with it.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    observer, "strong" or "weak", row, column, lease deadline, lease deadline before its last renewal,
--           start_ts of the run, record
--   reply   "quarantined" or "kept"

local tag, observer, row, column = KEYS[1], ARGV[1], ARGV[3], ARGV[4]
local key, mark = tag .. 'dirty:' .. observer, dirty_mark(column, row)
redis.call('HDEL', tag .. 'tries:' .. observer, mark)
if mark_is_settled(tag, observer, ARGV[2], row, column, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])) then
  redis.call('HSET', tag .. 'failed:' .. observer, mark, ARGV[8])
  redis.call('ZREM', key, mark)
  return 'quarantined'
end
end_lease(tag, observer, ARGV[2], mark, tonumber(ARGV[5]), tonumber(ARGV[6]))
return 'kept'
