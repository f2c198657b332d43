-- The dirty index: one sorted set per observer, member = cell, score = the earliest time it may be claimed.
-- The score of a lease (its deadline) is odd and every other score is even, so that no mark is taken for a lease.

local function dirty_mark(column, row)
  return struct.pack('>I2', #column) .. column .. row
end

local function even(time)
  return time - time % 2
end

-- What a tablet's meta hash says: the safe point, and column -> names of its observers as the active chain
-- registered them.
local function read_meta(tag)
  local fields, meta = redis.call('HGETALL', tag .. 'meta'), {safe = 0, observers = {}}
  for i = 1, #fields, 2 do
    if fields[i] == 'safe' then
      meta.safe = tonumber(fields[i + 1])
    else
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

-- A strong mark keeps the score of a mark that is there already: whoever holds the lease looks at the cell
-- again before it clears the mark, and the cell will show this write.
local function mark_strongly(tag, meta, row, column)
  local observers = meta.observers[column]
  if not observers then return end
  for observer in string.gmatch(observers, '[^,]+') do
    if redis.call('ZADD', tag .. 'dirty:' .. observer, 'NX', even(now()), dirty_mark(column, row)) == 1 then
      wake(tag, observer)
    end
  end
end

-- A weak mark has no cell behind it, so it always takes a new score: the holder of an older lease
-- finds the score changed and leaves the mark alone.
local function mark_weakly(tag, meta, row, column)
  for observer in string.gmatch(meta.observers[column] or '', '[^,]+') do
    redis.call('ZADD', tag .. 'dirty:' .. observer, even(now()), dirty_mark(column, row))
    wake(tag, observer)
  end
end

-- May a mark go, now that a run which began at `start_ts` under a lease has dealt with it?
-- Strong: not while somebody is committing to the cell, nor after a commit which that run did not see.
-- Weak: not when it was set again since the lease. Two deadlines are ours: the last one, and the one before it for
-- when the renewal got lost.
local function mark_is_settled(tag, observer, mode, row, column, deadline, before, start_ts)
  local score = tonumber(redis.call('ZSCORE', tag .. 'dirty:' .. observer, dirty_mark(column, row)) or '0')
  if score == 0 then return false end
  if mode == 'weak' then return score == deadline or score == before end
  local found = redis.call('HMGET', tag .. 'r:' .. row, 'c' .. column, 'l' .. column)
  if found[2] then return false end
  return not found[1] or version_times(found[1]) <= start_ts
end
