-- The clock of the server that has a key. The times in that server's locks and marks are of this clock.
--   uses    clock
--   flags   no-writes
--   KEYS    key
--   reply   microseconds since 1970

return now()
