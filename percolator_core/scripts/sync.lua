-- Write a key that expires at once: WAIT and WAITAOF wait for the last write of their connection.
--   flags   allow-oom
--   KEYS    tag
--   reply   OK

return redis.call('SET', KEYS[1] .. 'sync', '', 'PX', 1)
