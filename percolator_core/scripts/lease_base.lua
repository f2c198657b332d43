-- Take, renew or end the lease of a maintainer for the base of one tablet. The lease only saves work: what a maintainer
-- does without the lease is harmless, or is refused because the manifest's reference has changed.
--   uses    clock
--   flags   allow-oom
--   KEYS    tag
--   ARGV    owner, milliseconds
--             milliseconds: from now to the end of the lease, 0 ends it now
--   reply   0 if another owner has the lease, or there is no tablet, else 1

local LONGEST = 600 * 1000000
-- Microseconds: a lease with more time left was taken before the clock was set back, and counts as ended.

local meta = KEYS[1] .. 'meta'
local found, owner = redis.call('HMGET', meta, 'version', 'maintainer'), ARGV[1]
if not found[1] then return 0 end
local deadline, holder = string.match(found[2] or '0 ', '^(%d+) (.*)$')
local left = deadline - now()
if holder ~= owner and left > 0 and left <= LONGEST then return 0 end
if ARGV[2] ~= '0' then
  redis.call('HSET', meta, 'maintainer', string.format('%.0f ', now() + 1000 * ARGV[2]) .. owner)
elseif holder == owner then
  redis.call('HDEL', meta, 'maintainer')
end
return 1
