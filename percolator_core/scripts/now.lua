-- The clock of the server that holds a key's tablet: the one by which its locks and marks are timed.
--   uses    clock
--   flags   no-writes
--   KEYS    tag or oracle
--   reply   microseconds since the epoch

return now()
