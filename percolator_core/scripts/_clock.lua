-- The server's clock, in microseconds since the epoch. All that a script knows of time comes from here, so that a
-- test can give a server another clock.

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
