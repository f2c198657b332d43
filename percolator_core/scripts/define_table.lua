-- Add a table to the catalog, unless there is a table of that name. The first table founds the namespace and writes the
-- format of its data.
--   KEYS    catalog, format_key
--   ARGV    name, entry, data_format
--             entry: without a version
--   reply   {format, entry}
--             format: of the namespace; entry: as the catalog now holds it, only if the format is ours

redis.call('SETNX', KEYS[2], ARGV[3])
local format = redis.call('GET', KEYS[2])
if format ~= ARGV[3] then return {format} end
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then
  -- This field, which cannot be a table's name, counts the changes, so that no table gets the version of an earlier one.
  local version = string.format('%.0f', (redis.call('HGET', KEYS[1], '\255') or 0) + 1)
  entry = string.sub(ARGV[2], 1, -2) .. ', "version": ' .. version .. '}'
  redis.call('HSET', KEYS[1], '\255', version, ARGV[1], entry)
end
return {format, entry}
