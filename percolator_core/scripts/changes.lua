-- A bounded step through the rows that changed after one timestamp and up to another, in one tablet of a typed table.
--   uses    layout, read
--   flags   no-writes
--   KEYS    tag
--   ARGV    since, at, start, stop, most_rows, most_bytes, columns …
--             since: 0 for every row that ever existed; start, stop: bounds as ZRANGEBYLEX takes them; most_rows: limit
--             of the rows to look at
--   reply   {"too old"} | {"rows", resume, base, (row, commit_ts) …}
--             base: rows that did not change after the safe point may be only there; commit_ts: of the row's newest
--             change up to `at`, "" if a lock is in the way: the caller resolves it and asks again

local tag, since, at, from, to = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local limit, budget = tonumber(ARGV[5]), tonumber(ARGV[6])
local too_old, base = is_too_old(tag, since > 0 and math.min(since, at) or at)
if too_old then return {'too old'} end

local fields = {}
for i = 7, #ARGV do
  fields[#fields + 1] = 'c' .. ARGV[i]
  fields[#fields + 1] = 'l' .. ARGV[i]
end

local size = 0

-- Return the commit timestamp of a row's newest change up to `at`, and true if a lock may add another change.
local function newest_change(row)
  local newest, found = 0, read_fields(tag .. 'r:' .. row, fields)
  for i = 1, #found, 2 do
    local version, lock = found[i], found[i + 1]
    if lock and lock_start(lock) < at then return 0, true end
    if version then
      size = size + #version
      local commit_ts = version_times(version)
      if commit_ts > at then
        version = version_at(tag, row, string.sub(fields[i], 2), version, at)
        commit_ts = version and version_times(version) or 0
      end
      newest = math.max(newest, commit_ts)
    end
  end
  return newest, false
end

local reply, last = {'rows', '', base}, nil
local rows = redis.call('ZRANGEBYLEX', tag .. 'rows', from, to, 'LIMIT', 0, limit)
for _, row in ipairs(rows) do
  if size > budget then
    reply[2] = '(' .. last
    return reply
  end
  local newest, locked = newest_change(row)
  if locked or newest > since then
    reply[#reply + 1] = row
    reply[#reply + 1] = locked and '' or string.format('%.0f', newest)
  end
  last = row
end
if #rows == limit then reply[2] = '(' .. last end
return reply
