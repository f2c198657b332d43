-- Add a table to the catalog, unless a table of that name is there. The first table founds the namespace:
-- with it goes the format of the data.
--   KEYS    catalog, format
--   ARGV    name, definition, format
--   reply   the format of the namespace; if it is ours, the definition that the catalog now holds

redis.call('SETNX', KEYS[2], ARGV[3])
local format = redis.call('GET', KEYS[2])
if format ~= ARGV[3] then return {format} end
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return {format, redis.call('HGET', KEYS[1], ARGV[1])}
