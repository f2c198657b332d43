-- Remove cells from quarantine, each only if its record is still the one that the caller has read: a cell that was
-- tried again and failed again has another record. Dirty marks stay, so the observer still runs for a cell that has
-- changed.
--   flags   allow-oom
--   KEYS    tag
--   ARGV    observer, records (mark, sha1) …
--             sha1: of the record, in hexadecimal
--   reply   how many cells were removed

local failed, forgotten = KEYS[1] .. 'failed:' .. ARGV[1], 0
for i = 2, #ARGV, 2 do
  local record = redis.call('HGET', failed, ARGV[i])
  if record and redis.sha1hex(record) == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', failed, ARGV[i])
  end
end
return forgotten
