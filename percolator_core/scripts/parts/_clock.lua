-- The server's clock, in microseconds since the epoch. All that a script knows of time comes from here, so that a
-- test can give a server another clock.

-- Asked once a call: each mark and lock needs it.
local time_of_this_call

local function now()
  if not time_of_this_call then
    local time = redis.call('TIME')
    time_of_this_call = time[1] * 1000000 + time[2]
  end
  return time_of_this_call
end
