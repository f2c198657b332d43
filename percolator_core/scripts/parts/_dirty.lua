-- The dirty index: one sorted set per observer. A member is a cell, and its score is the earliest time at which the
-- cell may be claimed. The score of a leased cell is the deadline of the lease. A deadline is odd and every other score
-- is even, so that no mark is mistaken for a lease. Needs clock and layout.

local function dirty_mark(column, row)
  return pack_column(column) .. row
end

local function even(time)
  return time - time % 2
end

-- Read from the meta hashes of the first `count` tags in KEYS what the cells in ARGV[first] to ARGV[last] need. Each cell
-- has five arguments: position, row, column, kind, value. Return the versions, joined by commas; the highest safe point;
-- and a table with the observers of each tag .. 'o' .. column, or nil if no column is observed. The observers of whole
-- rows are those of tag .. 'o' .. ROW.
-- layout/keys.py lists the fields of the hash. A table with a base or observers has many, so they are read by name; only
-- if more than 16 are needed, all are read.
local function read_metas(count, first, last)
  local column = ARGV[first + 2]
  local fields, seen = {'version', 'safe', 'o' .. ROW, 'o' .. column}, nil
  for i = first + 7, last, 5 do
    if ARGV[i] ~= column then
      seen = seen or {[column] = true}
      column = ARGV[i]
      if not seen[column] then
        seen[column] = true
        fields[#fields + 1] = 'o' .. column
      end
    end
  end
  local versions, safe, observers = nil, 0, nil
  for i = 1, count do
    local tag, found = KEYS[i], nil
    if #fields <= 16 then
      found = redis.call('HMGET', tag .. 'meta', unpack(fields))
    else
      local all, values = redis.call('HGETALL', tag .. 'meta'), {}
      for at = 1, #all, 2 do values[all[at]] = all[at + 1] end
      found = {}
      for at, field in ipairs(fields) do found[at] = values[field] end
    end
    local version = found[1] or ''
    versions = versions and versions .. ',' .. version or version
    safe = math.max(safe, found[2] or 0)
    for at = 3, #fields do
      if found[at] then
        observers = observers or {}
        observers[tag .. fields[at]] = found[at]
      end
    end
  end
  return versions, safe, observers
end

-- Return a table with the names of the observers of each column, as the active chain registered them.
local function observed_columns(tag)
  local meta, columns = redis.call('HGETALL', tag .. 'meta'), {}
  for i = 1, #meta, 2 do
    if string.sub(meta[i], 1, 1) == 'o' then columns[string.sub(meta[i], 2)] = meta[i + 1] end
  end
  return columns
end

-- Wake the idle workers, once per call of a script. Workers also scan the index, so a lost message does no harm. An
-- error, for example of a user without the right to publish, is ignored: the script must not fail between two writes.
local woken = {}

local function wake(tag, observer)
  if woken[tag .. observer] then return end
  woken[tag .. observer] = true
  redis.pcall('PUBLISH', tag .. 'wake', observer)
end

-- True if the observer is one of those that a field of the meta hash names.
local function is_among(observers, observer)
  return observers and string.find(',' .. observers .. ',', ',' .. observer .. ',', 1, true) ~= nil
end

-- The observers of a column in the tablet's meta hash, read once per call: a string, or false.
local known = {}

local function observers_of(tag, column)
  local of_tablet = known[tag] or {}
  known[tag] = of_tablet
  if of_tablet[column] == nil then of_tablet[column] = redis.call('HGET', tag .. 'meta', 'o' .. column) end
  return of_tablet[column]
end

-- For each quarantine: the rows that this call has released, or false if the quarantine is empty.
local released = {}

-- An observer that failed on one cell of a row may succeed once another cell has changed. So a change takes the other
-- cells of the row out of the observer's quarantine and makes them due. An empty quarantine costs one EXISTS per call.
local function release_row(tag, observer, row, column)
  local failed = tag .. 'failed:' .. observer
  if released[failed] == nil then released[failed] = redis.call('EXISTS', failed) == 1 and {} end
  if not released[failed] or released[failed][row] then return end
  released[failed][row] = true
  local marks = {}
  for other, observers in pairs(observed_columns(tag)) do
    if other ~= column and is_among(observers, observer) then marks[#marks + 1] = dirty_mark(other, row) end
  end
  local records = #marks > 0 and redis.call('HMGET', failed, unpack(marks)) or {}
  for i, mark in ipairs(marks) do
    if records[i] then
      redis.call('HDEL', failed, mark)
      redis.call('ZADD', tag .. 'dirty:' .. observer, 'NX', even(now()), mark)
      wake(tag, observer)
    end
  end
end

-- Mark a cell for its observers. The prewrite marks it, so that an observer soon finds the lock if the owner of the
-- lock dies. The commit marks the cell again, because other observers may be registered by then.
-- An existing mark keeps its score: the holder of the lease reads the cell again before it clears the mark, and finds
-- this write. The cell is due at `time`, or now if that is nil.
local function mark_strongly(tag, observers, row, column, time, is_committed)
  if not observers then return end
  local mark, due = dirty_mark(column, row), even(time or now())
  for observer in string.gmatch(observers, '[^,]+') do
    if redis.call('ZADD', tag .. 'dirty:' .. observer, 'NX', due, mark) == 1 then
      wake(tag, observer)
    end
    if is_committed then release_row(tag, observer, row, column) end
  end
end

-- The rows that this call has marked as a whole.
local marked_rows = {}

-- Mark a whole row for the observers of whole rows, because its `column` is written.
local function mark_row(tag, observers, row, column, time, is_committed)
  if not observers or not is_data(column) or marked_rows[tag .. row] then return end
  marked_rows[tag .. row] = true
  mark_strongly(tag, observers, row, ROW, time, is_committed)
end

-- Set a weak mark; return true if there was none. A notification during a lease is recorded in no cell, so the score
-- records it: the score becomes the even number after the deadline. The holder of the lease finds the score changed and
-- makes the mark due again.
-- Until then no other run starts, because the two would conflict. If the holder dies, the mark is due at the end of the
-- lease. A mark that was postponed after a failure stays as it is: otherwise frequent notifications would use up the
-- cell's attempts at once. A mark that is due already stays, too, unless the notification is a boost for this observer:
-- then the mark moves ahead. So the cells that a loop notified most often run first, and the loop ends after fewer
-- runs. A boost moves a mark ahead by BOOST µs, but at most to MOST_BOOST µs before now.
local BOOST, MOST_BOOST = 1000000, 60000000

local function set_weakly(tag, observer, mark, is_boost)
  local key, time = tag .. 'dirty:' .. observer, even(now())
  local score = tonumber(redis.call('ZSCORE', key, mark) or '0')
  if score > 0 and score == even(score) then
    local earlier = math.max(score - BOOST, time - MOST_BOOST)
    if is_boost and score <= time and earlier < score then redis.call('ZADD', key, earlier, mark) end
    return false
  end
  if score > time then
    redis.call('ZADD', key, score + 1, mark)
  else
    redis.call('ZADD', key, time, mark)
    wake(tag, observer)
  end
  return score == 0
end

-- Set the weak marks of a cell. `boosted` is the value of the notification, which names the observers for which the
-- notification is a boost.
local function mark_weakly(tag, observers, row, column, boosted)
  if not observers then return end
  local mark = dirty_mark(column, row)
  for observer in string.gmatch(observers, '[^,]+') do
    set_weakly(tag, observer, mark, is_among(boosted, observer))
    release_row(tag, observer, row, column)
  end
end

-- True if a rerun replaced the acknowledgement after `start_ts`. After that, the rerun marks the cell, unless the cell
-- has a mark already. A run that began before must not clear this mark: the rerun needs a run that begins after it. The
-- acknowledgement of another run has the same effect: the mark stays for one idle run.
local function is_to_be_redone(acknowledgement, start_ts)
  if not acknowledgement then return false end
  local commit_ts, own_start = version_times(acknowledgement)
  return commit_ts > start_ts and own_start ~= start_ts
end

-- True if no transaction is committing to the row, and none has committed to it after `start_ts`.
local function row_is_settled(tag, row, start_ts)
  local fields = redis.call('HGETALL', tag .. 'r:' .. row)
  for i = 1, #fields, 2 do
    local mark = string.byte(fields[i])
    if (mark == 99 or mark == 108) and is_data(string.sub(fields[i], 2)) then
      if mark == 108 or version_times(fields[i + 1]) > start_ts then return false end
    end
  end
  return true
end

-- True if the mark may be removed after a run that began at `start_ts` under a lease.
-- A strong mark must stay while a transaction commits to the cell, and after a commit or a rerun that the run did not
-- see. A weak mark must stay if it was set again during the lease. Our lease has the score `deadline`, or `before` if
-- the last renewal was lost.
local function mark_is_settled(tag, observer, mode, row, column, deadline, before, start_ts)
  local score = tonumber(redis.call('ZSCORE', tag .. 'dirty:' .. observer, dirty_mark(column, row)) or '0')
  if score == 0 then return false end
  if mode == 'weak' then return score == deadline or score == before end
  local acked = 'c\255' .. observer .. '\255' .. column
  local found = redis.call('HMGET', tag .. 'r:' .. row, 'c' .. column, 'l' .. column, acked)
  if found[2] or is_to_be_redone(found[3], start_ts) then return false end
  if column == ROW then return row_is_settled(tag, row, start_ts) end
  return not found[1] or version_times(found[1]) <= start_ts
end

-- True if a mark with this score is leased to us. The score is one above the deadline if the weak mark was set again
-- during the lease.
local function is_ours(score, deadline, before)
  score = tonumber(score or '0')
  return score == deadline or score == before or score == deadline + 1 or score == before + 1
end

-- Make a mark due again: the run under its lease could not clear it. A strong mark becomes due even if the lease is not
-- ours any more: the acknowledgement lets only one run commit. A weak mark becomes due only if its score shows that the
-- lease is still ours.
local function end_lease(tag, observer, mode, mark, deadline, before)
  local key = tag .. 'dirty:' .. observer
  if mode == 'weak' then
    if not is_ours(redis.call('ZSCORE', key, mark), deadline, before) then return end
    wake(tag, observer)
  end
  redis.call('ZADD', key, 'XX', even(now()), mark)
end

-- True if one of the observers has not processed the cell yet, or the cell is in quarantine, from where it may be retried.
local function is_dirty(tag, row, column, observers)
  local mark = dirty_mark(column, row)
  for _, observer in ipairs(observers) do
    if redis.call('ZSCORE', tag .. 'dirty:' .. observer, mark) then return true end
    if redis.call('HEXISTS', tag .. 'failed:' .. observer, mark) == 1 then return true end
  end
  return false
end

-- Return the observers that have a dirty or quarantined cell in the tablet.
local function busy_observers(tag, observers)
  local busy = {}
  for _, observer in ipairs(observers) do
    if redis.call('EXISTS', tag .. 'dirty:' .. observer, tag .. 'failed:' .. observer) > 0 then busy[#busy + 1] = observer end
  end
  return busy
end
