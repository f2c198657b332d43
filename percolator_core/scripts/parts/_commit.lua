-- Find the commit of a transaction, and publish versions. Needs layout and dirty.

-- True if the transaction began before the last failover: writes that it read, or its other locks, may be lost. The
-- oracle's `floor` decides. `oracle` is {last, limit, floor} if the caller has read it. Otherwise the last of KEYS may
-- be the oracle's key: unlike a tag, it does not end in a brace. Without that key the answer is false.
local function failed_over(start_ts, oracle)
  local key = KEYS[#KEYS]
  if not oracle and string.sub(key, -1) == '}' then return false end
  local floor = oracle and oracle[3] or not oracle and redis.call('HGET', key, 'floor')
  return start_ts < (floor or 0) + 0
end

-- Return the commit timestamp of the version that the transaction start_ts wrote to a cell, or nil. Between the start
-- and the commit of this transaction, no other one can commit to the cell. So only the first version above start_ts can
-- be the transaction's own.
local function find_commit(tag, row, column, start_ts, newest)
  if not newest then return nil end
  local commit_ts, version_start = version_times(newest)
  if commit_ts <= start_ts then return nil end
  if version_start == start_ts then return commit_ts end
  local prefix = pack_column(column)
  local first = redis.call('ZRANGEBYLEX', tag .. 'v:' .. row,
    '[' .. prefix .. struct.pack('>I8', start_ts + 1), '(' .. prefix .. string.rep('\255', 9), 'LIMIT', 0, 1)[1]
  if not first then return nil end
  commit_ts, version_start = version_times(string.sub(first, #prefix + 1))
  return version_start == start_ts and commit_ts or nil
end

-- Replace the lock of start_ts on a cell by the version that it contains, and mark the cell for the observers that are
-- registered at the commit. The version that was newest so far moves to the history. Without such a lock, do nothing.
local function commit_cell(tag, row, column, kind, start_ts, commit_ts)
  local field = lock_field(kind, start_ts, column)
  local found = redis.call('HMGET', tag .. 'r:' .. row, field, 'c' .. column)
  local lock, newest = found[1], found[2]
  if not lock or lock_start(lock) ~= start_ts then return end
  local written, value = lock_write(lock)
  if kind == NOTIFY then
    mark_weakly(tag, observers_of(tag, column), row, column, value)
  else
    if newest then redis.call('ZADD', tag .. 'v:' .. row, '0', pack_column(column) .. newest) end
    redis.call('HSET', tag .. 'r:' .. row, 'c' .. column, pack_version(commit_ts, written, start_ts, value))
    -- No observer watches internal columns, such as an acknowledgement's.
    if string.byte(column) ~= 255 then
      mark_strongly(tag, observers_of(tag, column), row, column, lock_age(lock), true)
    end
    mark_row(tag, observers_of(tag, ROW), row, column, lock_age(lock), true)
  end
  redis.call('HDEL', tag .. 'r:' .. row, field)
  redis.call('ZREM', tag .. 'locks', lock_mark(start_ts, column, row))
end
