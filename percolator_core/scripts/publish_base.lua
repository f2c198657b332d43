-- Make a manifest the valid one of a tablet. Before the call, the manifest's files must be complete and on disk.
--   uses    layout
--   flags   allow-oom
--   KEYS    tag
--   ARGV    expected, manifest, timestamp, version
--             expected: the reference of the manifest to replace, "" if the tablet has none; timestamp: that of the new
--             manifest, at or below the safe point; version: of the table definition by which the rows were read
--   reply   "published" | "overtaken" | "changed"
--             overtaken: another maintainer has published; changed: the table was changed or dropped

local meta = KEYS[1] .. 'meta'
local found = redis.call('HMGET', meta, 'version', 'base')
if found[1] ~= ARGV[4] then return 'changed' end
-- This call was sent again.
if found[2] == ARGV[2] then return 'published' end
if (found[2] or '') ~= ARGV[1] or tonumber(ARGV[3]) > safe_point(KEYS[1]) then return 'overtaken' end
redis.call('HSET', meta, 'base', ARGV[2])
return 'published'
