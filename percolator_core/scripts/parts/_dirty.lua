-- Needs clock and layout. The dirty index: one sorted set per observer, member = cell, score = the earliest time it may be claimed.
-- The score of a lease (its deadline) is odd and every other score is even, so that no mark is taken for a lease.

local function dirty_mark(column, row)
  return pack_column(column) .. row
end

local function even(time)
  return time - time % 2
end

-- What a tablet's meta hash says: the safe point, the version of its table, and column -> names of its observers as
-- the active chain registered them.
local function read_meta(tag)
  local fields, meta = redis.call('HGETALL', tag .. 'meta'), {safe = 0, version = '', observers = {}}
  for i = 1, #fields, 2 do
    if fields[i] == 'version' then
      meta.version = fields[i + 1]
    elseif fields[i] == 'safe' then
      meta.safe = tonumber(fields[i + 1])
    elseif string.sub(fields[i], 1, 1) == 'o' then
      meta.observers[string.sub(fields[i], 2)] = fields[i + 1]
    end
  end
  return meta
end

-- Idle workers listen; a message that nobody hears is made up for by the scan of the index. So a user who may not
-- send one does without: the script must not fail here, between two writes. One call serves all marks of a script.
local woken = {}

local function wake(tag, observer)
  if woken[tag .. observer] then return end
  woken[tag .. observer] = true
  redis.pcall('PUBLISH', tag .. 'wake', observer)
end

-- Whether an observer is among those that a field of the meta hash names.
local function is_among(observers, observer)
  return observers and string.find(',' .. observers .. ',', ',' .. observer .. ',', 1, true) ~= nil
end

-- The observers of a column as the tablet's meta hash says, asked for once a call: a string, or false.
local known = {}

local function observers_of(tag, column)
  local of_tablet = known[tag] or {}
  known[tag] = of_tablet
  if of_tablet[column] == nil then of_tablet[column] = redis.call('HGET', tag .. 'meta', 'o' .. column) end
  return of_tablet[column]
end

-- The rows that were released in this call, by quarantine; false for a quarantine that is empty.
local released = {}

-- An observer that failed on one cell of a row may succeed once another cell has changed. So a change makes the other
-- cells of the row due again that are in quarantine for the same observer. Where none is, one EXISTS a call shows it.
local function release_row(tag, observer, row, column)
  local failed = tag .. 'failed:' .. observer
  if released[failed] == nil then released[failed] = redis.call('EXISTS', failed) == 1 and {} end
  if not released[failed] or released[failed][row] then return end
  released[failed][row] = true
  local marks = {}
  for other, observers in pairs(read_meta(tag).observers) do
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

-- Mark a cell for its observers: at the prewrite, so that a lock which its owner leaves behind is found at once; and when
-- it is committed, since other observers may be registered by then.
-- A strong mark keeps the score of a mark that is there already: whoever holds the lease looks at the cell
-- again before it clears the mark, and the cell will show this write. The cell is due from `time` on, nil for now.
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

-- A weak mark has no cell behind it, so one that is leased is told: by the even score behind its deadline. The holder
-- finds it changed and makes it due again, and nobody runs it before that, only to collide; should the holder die, it is
-- due when the lease would have ended. One that is due already, or put off after a failure, stays as it is: a cell that
-- is notified often would use up its attempts at once. Returns whether there was no mark.
local function set_weakly(tag, observer, mark)
  local key, time = tag .. 'dirty:' .. observer, even(now())
  local score = tonumber(redis.call('ZSCORE', key, mark) or '0')
  if score > 0 and score == even(score) then return false end
  if score > time then
    redis.call('ZADD', key, score + 1, mark)
  else
    redis.call('ZADD', key, time, mark)
    wake(tag, observer)
  end
  return score == 0
end

local function mark_weakly(tag, observers, row, column)
  if not observers then return end
  local mark = dirty_mark(column, row)
  for observer in string.gmatch(observers, '[^,]+') do
    set_weakly(tag, observer, mark)
    release_row(tag, observer, row, column)
  end
end

-- Did a rerun take the acknowledgement away after `start_ts`? It sets its mark behind that, but leaves one that is
-- there; a run which began before must not clear that one, for the rerun asks for a run that begins after it.
local function is_to_be_redone(acknowledgement, start_ts)
  if not acknowledgement then return false end
  local commit_ts, _, kind = version_times(acknowledgement)
  return kind == DELETE and commit_ts > start_ts
end

-- May a mark go, now that a run which began at `start_ts` under a lease has dealt with it?
-- Strong: not while somebody is committing to the cell, nor after a commit or a rerun which that run did not see.
-- Weak: not when it was set again since the lease. Two deadlines are ours: the last one, and the one before it for
-- when the renewal got lost.
local function mark_is_settled(tag, observer, mode, row, column, deadline, before, start_ts)
  local score = tonumber(redis.call('ZSCORE', tag .. 'dirty:' .. observer, dirty_mark(column, row)) or '0')
  if score == 0 then return false end
  if mode == 'weak' then return score == deadline or score == before end
  local acked = 'c\255' .. observer .. '\255' .. column
  local found = redis.call('HMGET', tag .. 'r:' .. row, 'c' .. column, 'l' .. column, acked)
  if found[2] or is_to_be_redone(found[3], start_ts) then return false end
  return not found[1] or version_times(found[1]) <= start_ts
end

-- Is a mark with this score leased to us? One more than the deadline: it was set again since.
local function is_ours(score, deadline, before)
  score = tonumber(score or '0')
  return score == deadline or score == before or score == deadline + 1 or score == before + 1
end

-- Make a mark that a run could not clear due again. A strong one still carries the score of our lease; of a weak one
-- the score tells whether it is ours.
local function end_lease(tag, observer, mode, mark, deadline, before)
  local key = tag .. 'dirty:' .. observer
  if mode == 'weak' then
    if not is_ours(redis.call('ZSCORE', key, mark), deadline, before) then return end
    wake(tag, observer)
  end
  redis.call('ZADD', key, 'XX', even(now()), mark)
end
