-- Replace or remove a table's entry in the catalog, if it is still the entry that the caller has read.
--   flags   allow-oom
--   KEYS    catalog
--   ARGV    name, entry, replacement, numbered
--             entry: as it was read; replacement: "" removes the entry
--             numbered: "numbered" gives the entry a new version, "" does not
--   reply   the entry that the catalog now holds, "" if there is none

local entry = redis.call('HGET', KEYS[1], ARGV[1])
if entry ~= ARGV[2] then return entry or '' end
local count = string.format('%.0f', (redis.call('HGET', KEYS[1], '\255') or 0) + 1)
redis.call('HSET', KEYS[1], '\255', count)
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return ''
end
entry = ARGV[3]
if ARGV[4] == 'numbered' then entry = string.sub(entry, 1, -2) .. ', "version": ' .. count .. '}' end
redis.call('HSET', KEYS[1], ARGV[1], entry)
return entry
