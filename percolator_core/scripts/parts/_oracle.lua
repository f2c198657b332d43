-- The timestamp oracle (paper, section 2.3).
--   oracle  hash: last = newest timestamp handed out, limit = durable high-water mark,
--           server = which server has it (see recover_oracle.lua), floor = transactions that began below it are
--           refused since the last failover
-- limit is written a window ahead of last. A server that comes back without its latest writes has lost
-- `last`, but not a limit written WINDOW microseconds earlier; recover_oracle.lua then jumps to it.

local WINDOW = 10000000

-- `state` is last and limit, where the caller has read them already.
local function next_timestamps(key, count, state)
  state = state or redis.call('HMGET', key, 'last', 'limit')
  local last = math.max(tonumber(state[1] or '0') + count, now())
  if last + WINDOW / 2 > tonumber(state[2] or '0') then
    redis.call('HSET', key, 'last', string.format('%.0f', last), 'limit', string.format('%.0f', last + WINDOW))
  else
    redis.call('HSET', key, 'last', string.format('%.0f', last))
  end
  return last
end
