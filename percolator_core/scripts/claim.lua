-- Lease dirty cells to a worker: no other worker gets them before the lease ends, and the cells of a dead worker become
-- due again by themselves. The lease is only advisory: the acknowledgement decides which run commits.
--   uses    clock, layout, dirty
--   KEYS    tags …
--   ARGV    most, lease_ms, horizon_ms, groups (tags, observers, (observer, most, wait_ms) …) …
--             most: limit of all cells to lease; horizon_ms: no mark is postponed for longer than this; groups: tags
--             and observers are counts; most of an observer: its own limit; wait_ms: a mark is due this much later than
--             its score says
--   reply   {deadline, next_due, (tag, observer, mark, due, tries, version) …}
--             deadline: of the leases, in µs; next_due: µs until the next cell is due, or -1; tag: its position from 0;
--             observer: its position in its group; due: in µs; tries: failed attempts; version: of the table

local remaining, time = tonumber(ARGV[1]), now()
-- A mark that is due later than this was set before the clock was set back: it counts as due now.
local horizon = string.format('(%.0f', time + tonumber(ARGV[3]) * 1000)
local time_text, deadline = string.format('%.0f', time), even(time) + tonumber(ARGV[2]) * 1000 + 1
local deadline_text = string.format('%.0f', deadline)
local reply, next_due = {deadline, -1}, math.huge

-- For each observer: how many more of its cells may be leased, and its places. A place is a range of one dirty index
-- that has due cells.
local waiting, order = {}, {}

local function found(observer, most, first, from, to, position, place, key)
  local one = waiting[observer]
  if not one then
    one = {most = most, first = first, places = {}}
    waiting[observer], order[#order + 1] = one, one
  end
  one.first = math.min(one.first, first)
  one.places[#one.places + 1] = {
    first = first, from = from, to = to, position = position, place = place, key = key,
    tries = KEYS[position] .. 'tries:' .. observer}
end

local function look(position, place, observer, most, wait)
  local key = KEYS[position] .. 'dirty:' .. observer
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not first then return end
  first = tonumber(first) + wait
  if first <= time then
    local due = wait == 0 and time_text or string.format('%.0f', time - wait)
    found(observer, most, first, '-inf', due, position, place, key)
  else
    next_due = math.min(next_due, first)
  end
  if redis.call('ZCOUNT', key, horizon, '+inf') > 0 then
    found(observer, most, 0, horizon, '+inf', position, place, key)
  end
end

-- Lease up to `most` cells of one place; return how many there were.
local function lease(place, most)
  local marks = redis.call('ZRANGEBYSCORE', place.key, place.from, place.to, 'WITHSCORES', 'LIMIT', 0, most)
  local version = redis.call('HGET', KEYS[place.position] .. 'meta', 'version') or ''
  -- In steps: Lua cannot unpack so many marks at once.
  for first = 1, #marks, 2000 do
    local taken, scored, final = {}, {}, math.min(first + 1998, #marks - 1)
    for i = first, final, 2 do
      taken[#taken + 1] = marks[i]
      scored[i - first + 1], scored[i - first + 2] = deadline_text, marks[i]
    end
    redis.call('ZADD', place.key, unpack(scored))
    local tries = redis.call('HMGET', place.tries, unpack(taken))
    for i, mark in ipairs(taken) do
      reply[#reply + 1] = place.position - 1
      reply[#reply + 1] = place.place
      reply[#reply + 1] = mark
      reply[#reply + 1] = tonumber(marks[first + 2 * i - 1])
      reply[#reply + 1] = tonumber(tries[i] or '0')
      reply[#reply + 1] = version
    end
  end
  return #marks / 2
end

-- Lease up to `most` cells of one observer, about as many from each of its places; return how many there were.
-- A place that had fewer cells than requested has no more.
local function serve(one, most)
  local rest, left = most, {}
  for i, place in ipairs(one.places) do
    if rest <= 0 then
      left[#left + 1] = place
    else
      local asked = math.ceil(rest / (#one.places - i + 1))
      local got = lease(place, asked)
      rest = rest - got
      if got == asked then left[#left + 1] = place end
    end
  end
  one.places = left
  return most - rest
end

local position, group = 1, 4
while group < #ARGV do
  local tags, observers = tonumber(ARGV[group]), tonumber(ARGV[group + 1])
  for place = 0, observers - 1 do
    local name = group + 2 + 3 * place
    local most, wait = tonumber(ARGV[name + 1]), tonumber(ARGV[name + 2]) * 1000
    if most > 0 then
      for i = position, position + tags - 1 do look(i, place, ARGV[name], most, wait) end
    end
  end
  position, group = position + tags, group + 2 + 3 * observers
end

-- The cells that became dirty first are leased first. So if the runs of several cells write one other cell, the
-- observer of that cell runs after all of them, and only once. But each observer gets an equal share of the leases, and
-- each of its tablets an equal part of the share, so that none waits for the backlog of another.
local function older(one, other) return one.first < other.first end
for _, one in ipairs(order) do table.sort(one.places, older) end
table.sort(order, older)
while remaining > 0 and #order > 0 do
  local left = {}
  for i, one in ipairs(order) do
    local share = math.min(one.most, math.ceil(remaining / (#order - i + 1)))
    if share > 0 then
      local got = serve(one, share)
      remaining, one.most = remaining - got, one.most - got
      if #one.places > 0 and one.most > 0 then left[#left + 1] = one end
    end
  end
  order = left
end
if next_due < math.huge then reply[2] = math.max(0, next_due - time) end
return reply
