-- Remove the tablet's base. All rows of the base are in the store again. A reader may have looked for a cell in the
-- store before the cell came back, and may look for it in the base only now. So the safe point rises above the reader's
-- snapshot, which is then refused.
--   uses    layout
--   flags   allow-oom
--   KEYS    tag
--   ARGV    manifest, version, safe_point
--             manifest: the valid one; safe_point: from after the last row was restored
--   reply   "left" | "changed"

local meta = KEYS[1] .. 'meta'
local found = redis.call('HMGET', meta, 'base', 'version')
if found[2] ~= ARGV[2] then return 'changed' end
-- This call was sent again.
if not found[1] then return 'left' end
if found[1] ~= ARGV[1] then return 'changed' end
if safe_point(KEYS[1]) < tonumber(ARGV[3]) then redis.call('HSET', meta, 'safe', ARGV[3]) end
redis.call('HDEL', meta, 'base')
return 'left'
