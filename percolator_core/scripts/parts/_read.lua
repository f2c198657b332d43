-- Read cells at a timestamp. Needs layout.

-- Read fields of a hash; in steps, because Lua cannot unpack so many at once.
local function read_fields(key, fields)
  if #fields <= 2000 then return redis.call('HMGET', key, unpack(fields)) end
  local all = {}
  for first = 1, #fields, 2000 do
    local found = redis.call('HMGET', key, unpack(fields, first, math.min(first + 1999, #fields)))
    for i = 1, #found do all[first + i - 1] = found[i] end
  end
  return all
end

-- Return the version of a cell that is visible at `at`, or false.
local function version_at(tag, row, column, newest, at)
  if not newest then return false end
  if version_times(newest) <= at then return newest end
  local prefix = pack_column(column)
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
