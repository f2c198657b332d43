-- The clock of the server that has a key: its locks and marks are timed by it.
--   uses    clock
--   flags   no-writes
--   KEYS    key
--   reply   microseconds since 1970

return now()
