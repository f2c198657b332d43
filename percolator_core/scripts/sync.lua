-- Write something that is gone at once: WAIT and WAITAOF speak for the last write of their connection.
--   flags   allow-oom
--   KEYS    tag
--   reply   "OK"

return redis.call('SET', KEYS[1] .. 'sync', '', 'PX', 1)
