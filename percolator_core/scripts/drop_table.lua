-- Remove a bounded number of rows of one tablet of a dropped table; if the tablet has none, remove all its other keys.
--   uses    clock, layout, dirty
--   flags   allow-oom
--   KEYS    tag
--   ARGV    version, most_rows, observers …
--             version: the one that the drop gave to the tablet; observers: those that may have left marks
--   reply   how many rows were removed; 0 if the tablet is gone, or belongs to a table that was created later

local tag, limit = KEYS[1], tonumber(ARGV[2])
if redis.call('HGET', tag .. 'meta', 'version') ~= ARGV[1] then return 0 end
local rows = redis.call('ZRANGE', tag .. 'rows', 0, limit - 1)
-- A step stops once it has freed this many fields and versions: the server runs nothing else during a script.
local ENOUGH = 50000
local removed, freed = 0, 0
for _, row in ipairs(rows) do
  if freed >= ENOUGH then break end
  local cells, versions = tag .. 'r:' .. row, tag .. 'v:' .. row
  freed = freed + redis.call('HLEN', cells) + redis.call('ZCARD', versions)
  redis.call('DEL', cells, versions)
  redis.call('ZREM', tag .. 'rows', row)
  removed = removed + 1
end
if #rows == 0 then
  -- Remove the marks of the registered observers, too: the next table of this name must not have the marks of this one.
  local observers = {unpack(ARGV, 3)}
  for _, names in pairs(observed_columns(tag)) do
    for observer in string.gmatch(names, '[^,]+') do observers[#observers + 1] = observer end
  end
  redis.call('DEL', tag .. 'rows', tag .. 'locks', tag .. 'meta', tag .. 'attempts')
  for _, observer in ipairs(observers) do
    redis.call('UNLINK', tag .. 'dirty:' .. observer, tag .. 'tries:' .. observer, tag .. 'failed:' .. observer)
  end
  -- A fence from before the drop that arrives late, or twice, must not recreate the tablet.
  redis.call('HSET', tag .. 'meta', 'gone', ARGV[1])
end
return removed
