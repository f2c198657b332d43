-- Remove the locks of one transaction.
-- Unlike resolve_primary.lua it leaves no tombstone. Call it only if the primary is known to be rolled back, or if the
-- transaction's own client has not tried to commit.
--   uses    layout
--   flags   allow-oom
--   KEYS    tags …
--   ARGV    start_ts, cells (position, row, column, kind) …
--   reply   how many locks were removed

local start_ts, removed = tonumber(ARGV[1]), 0
for i = 2, #ARGV, 4 do
  local tag, row, column = KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2]
  local field = lock_field(tonumber(ARGV[i + 3]), start_ts, column)
  local lock = redis.call('HGET', tag .. 'r:' .. row, field)
  if lock and lock_start(lock) == start_ts then
    redis.call('HDEL', tag .. 'r:' .. row, field)
    redis.call('ZREM', tag .. 'locks', lock_mark(start_ts, column, row))
    removed = removed + 1
  end
end
return removed
