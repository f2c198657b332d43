-- Quarantine a cell after its last attempt, unless its row has changed since that attempt began, or another run has
-- processed the cell.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    observer, mode, row, column, deadline, before, start_ts, record
--   reply   "quarantined" | "kept"

local tag, observer, row, column = KEYS[1], ARGV[1], ARGV[3], ARGV[4]
local key, mark = tag .. 'dirty:' .. observer, dirty_mark(column, row)
redis.call('HDEL', tag .. 'tries:' .. observer, mark)

-- True if the run committed before its process died, or if another run processed the cell first. Then the cell is not
-- quarantined: the next run finds the acknowledgement and clears the mark.
local function is_acknowledged()
  local acknowledgement = redis.call('HGET', tag .. 'r:' .. row, 'c\255' .. observer .. '\255' .. column)
  if ARGV[2] == 'weak' or not acknowledgement then return false end
  local commit_ts, _, kind = version_times(acknowledgement)
  return kind == PUT and commit_ts > tonumber(ARGV[7])
end

-- True if another cell of the row changed after the run began. Such a change releases the row's cells from quarantine,
-- but it came before this cell was in quarantine, so it did not release this cell.
local function has_changed_beside()
  if ARGV[2] == 'weak' then return false end
  for other, observers in pairs(observed_columns(tag)) do
    local newest = is_among(observers, observer) and redis.call('HGET', tag .. 'r:' .. row, 'c' .. other)
    if newest and version_times(newest) > tonumber(ARGV[7]) then return true end
  end
  return false
end

if not is_acknowledged() and not has_changed_beside() and
  mark_is_settled(tag, observer, ARGV[2], row, column, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])) then
  redis.call('HSET', tag .. 'failed:' .. observer, mark, ARGV[8])
  redis.call('ZREM', key, mark)
  return 'quarantined'
end
end_lease(tag, observer, ARGV[2], mark, tonumber(ARGV[5]), tonumber(ARGV[6]))
return 'kept'
