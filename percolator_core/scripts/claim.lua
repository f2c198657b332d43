-- Lease dirty cells to a worker: no other worker is given them before the lease ends, and the cells of a dead
-- worker come back by themselves. The lease is advisory; the acknowledgement decides.
--   uses    clock, layout, dirty
--   KEYS    tags …
--   ARGV    cells at most, cells of one tablet and observer at most, lease in ms, ms for which a mark may be put
--           off at most, then groups: number of tags, number of observers, observers …
--   reply   {lease deadline in µs, µs until the next cell is due or -1,
--            tag's position, observer's position in its group, mark, time it was due in µs, failed attempts, …}

local room, share = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = now()
-- A mark further ahead than this was set before the clock was set back, and is due.
local horizon = string.format('(%.0f', time + tonumber(ARGV[4]) * 1000)
local time_text, deadline = string.format('%.0f', time), even(time) + tonumber(ARGV[3]) * 1000 + 1
local deadline_text = string.format('%.0f', deadline)
local reply, next_due = {deadline, -1}, math.huge

-- The oldest mark of every tablet and observer tells the order in which they are served: what became dirty
-- first runs first, so that what it wakes can be collapsed into one run.
local due = {}

local function look(position, place, observer)
  local key = KEYS[position] .. 'dirty:' .. observer
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not first then return end
  first = tonumber(first)
  if first <= time then
    due[#due + 1] = {
      first = first, from = '-inf', to = time_text, position = position, place = place, observer = observer, key = key}
  else
    next_due = math.min(next_due, first)
  end
  if redis.call('ZCOUNT', key, horizon, '+inf') > 0 then
    due[#due + 1] = {
      first = 0, from = horizon, to = '+inf', position = position, place = place, observer = observer, key = key}
  end
end

local function lease(found)
  local most = math.min(room, share)
  local marks = redis.call('ZRANGEBYSCORE', found.key, found.from, found.to, 'WITHSCORES', 'LIMIT', 0, most)
  local tries_key = KEYS[found.position] .. 'tries:' .. found.observer
  -- In steps: Lua cannot unpack any number of marks at once.
  for first = 1, #marks, 2000 do
    local taken, scored, final = {}, {}, math.min(first + 1998, #marks - 1)
    for i = first, final, 2 do
      taken[#taken + 1] = marks[i]
      scored[i - first + 1], scored[i - first + 2] = deadline_text, marks[i]
    end
    redis.call('ZADD', found.key, unpack(scored))
    local tries = redis.call('HMGET', tries_key, unpack(taken))
    for i, mark in ipairs(taken) do
      reply[#reply + 1] = found.position - 1
      reply[#reply + 1] = found.place
      reply[#reply + 1] = mark
      reply[#reply + 1] = tonumber(marks[first + 2 * i - 1])
      reply[#reply + 1] = tonumber(tries[i] or '0')
    end
    room = room - #taken
  end
end

local position, group = 1, 5
while group < #ARGV do
  local tags, observers = tonumber(ARGV[group]), tonumber(ARGV[group + 1])
  for i = position, position + tags - 1 do
    for place = 0, observers - 1 do look(i, place, ARGV[group + 2 + place]) end
  end
  position, group = position + tags, group + 2 + observers
end
table.sort(due, function(one, other) return one.first < other.first end)
for _, found in ipairs(due) do
  if room > 0 then lease(found) end
end
if next_due < math.huge then reply[2] = math.max(0, next_due - time) end
return reply
