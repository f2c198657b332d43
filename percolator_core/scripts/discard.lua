-- Forget quarantined cells, each only while its record is the one that the caller looked at: a cell that was tried again
-- meanwhile, and failed on what it holds now, has another. Dirty marks stay: a cell that changed since is observed.
--   flags   allow-oom
--   KEYS    tag
--   ARGV    observer, then pairs: mark, SHA-1 of its record in hexadecimal
--   reply   number of cells forgotten

local failed, forgotten = KEYS[1] .. 'failed:' .. ARGV[1], 0
for i = 2, #ARGV, 2 do
  local record = redis.call('HGET', failed, ARGV[i])
  if record and redis.sha1hex(record) == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', failed, ARGV[i])
  end
end
return forgotten
