-- Make quarantined cells dirty again.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    observer, cursor, most, marks …
--             marks: of the cells. If none are given, the script takes about `most` cells of the observer's quarantine
--             from `cursor` on, which is "0" at first
--   reply   {cursor, put_back}
--             cursor: where to go on, "0" at the end; put_back: how many cells

local tag, observer = KEYS[1], ARGV[1]
local failed, put_back = tag .. 'failed:' .. observer, 0
local cursor, marks = '0', {}
for i = 4, #ARGV do marks[#marks + 1] = ARGV[i] end
if #marks == 0 then
  -- The scan continues from its cursor: if each step began at the start, it would pass all slots that earlier steps
  -- emptied.
  local page = redis.call('HSCAN', failed, ARGV[2], 'COUNT', ARGV[3])
  cursor = page[1]
  for i = 1, #page[2], 2 do marks[#marks + 1] = page[2][i] end
end
for _, mark in ipairs(marks) do
  if redis.call('HDEL', failed, mark) == 1 then
    redis.call('ZADD', tag .. 'dirty:' .. observer, 'NX', even(now()), mark)
    put_back = put_back + 1
  end
end
if put_back > 0 then wake(tag, observer) end
return {cursor, put_back}
