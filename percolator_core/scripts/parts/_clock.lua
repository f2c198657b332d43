-- The server's clock, in microseconds since the epoch. Scripts read the time only here, so that a test can replace
-- the clock.

-- The time is read once per call, because each mark and lock needs it.
local time_of_this_call

local function now()
  if not time_of_this_call then
    local time = redis.call('TIME')
    time_of_this_call = time[1] * 1000000 + time[2]
  end
  return time_of_this_call
end
