-- Register, in one tablet, which observers watch which columns; replaces what was registered before, and
-- drops the marks of observers that no longer watch this tablet's table.
--   KEYS    tag
--   ARGV    number of retired observers, retired observers …, then pairs: column, observers joined by commas
--   reply   number of columns observed

local tag, retired = KEYS[1], tonumber(ARGV[1])
local watching, gone = {}, {}
for i = retired + 3, #ARGV, 2 do
  for observer in string.gmatch(ARGV[i], '[^,]+') do watching[observer] = true end
end
for i = 2, retired + 1 do gone[ARGV[i]] = true end
local fields = redis.call('HGETALL', tag .. 'meta')
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == 'o' then
    for observer in string.gmatch(fields[i + 1], '[^,]+') do
      if not watching[observer] then gone[observer] = true end
    end
    redis.call('HDEL', tag .. 'meta', fields[i])
  end
end
for observer in pairs(gone) do
  redis.call('DEL', tag .. 'dirty:' .. observer, tag .. 'tries:' .. observer, tag .. 'failed:' .. observer)
end
local columns = 0
for i = retired + 2, #ARGV, 2 do
  redis.call('HSET', tag .. 'meta', 'o' .. ARGV[i], ARGV[i + 1])
  columns = columns + 1
end
return columns
