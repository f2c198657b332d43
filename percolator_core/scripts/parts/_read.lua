-- Read one cell at a timestamp. Needs layout.

-- Return the version of a cell that is visible at `at`, or false.
local function version_at(tag, row, column, newest, at)
  if not newest then return false end
  if version_times(newest) <= at then return newest end
  local prefix = history_prefix(column)
  local older = redis.call('ZREVRANGEBYLEX', tag .. 'v:' .. row,
    '(' .. prefix .. struct.pack('>I8', at + 1), '[' .. prefix, 'LIMIT', 0, 1)[1]
  return older and string.sub(older, #prefix + 1) or false
end

-- Return {version} | {}, or {false, lock} if the lock's transaction began before `at`, so that it may still commit
-- below `at`.
local function read_cell(tag, row, column, newest, lock, at)
  if lock and lock_start(lock) < at then return {false, lock} end
  local version = version_at(tag, row, column, newest, at)
  return version and {version} or {}
end
