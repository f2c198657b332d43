-- Add a table to the catalog, unless a table of that name is there. The first table founds the namespace:
-- with it goes the format of the data.
--   KEYS    catalog, format
--   ARGV    name, entry without a version, format
--   reply   the format of the namespace; if it is ours, the entry that the catalog now holds

redis.call('SETNX', KEYS[2], ARGV[3])
local format = redis.call('GET', KEYS[2])
if format ~= ARGV[3] then return {format} end
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then
  -- This field, no name of a table, counts the changes, so that no table ever gets the version of an earlier one.
  local version = string.format('%.0f', (redis.call('HGET', KEYS[1], '\255') or 0) + 1)
  entry = string.sub(ARGV[2], 1, -2) .. ', "version": ' .. version .. '}'
  redis.call('HSET', KEYS[1], '\255', version, ARGV[1], entry)
end
return {format, entry}
