-- The timestamp oracle (paper, section 2.3).
--   oracle  hash: last = newest timestamp handed out, limit = durable high-water mark,
--           server = the identity of its server (see recover_oracle.lua), floor = the timestamp of the last
--           failover: transactions that began before it are refused
-- `limit` is written WINDOW microseconds ahead of `last`. A server that restarts may have lost its latest writes, and
-- so the newest `last`. It still has a `limit` that was written WINDOW ahead of an earlier `last`; recover_oracle.lua
-- moves `last` up to that limit.

local WINDOW = 10000000

-- `state` is {last, limit} if the caller has read them.
local function next_timestamps(key, count, state)
  state = state or redis.call('HMGET', key, 'last', 'limit')
  local last = math.max((state[1] or 0) + count, now())
  if last + WINDOW / 2 > (state[2] or 0) + 0 then
    redis.call('HSET', key, 'last', last, 'limit', last + WINDOW)
  else
    redis.call('HSET', key, 'last', last)
  end
  return last
end
