-- Decide the fate of a transaction at its primary (paper, section 2.2).
-- A rollback leaves a tombstone, so that a prewrite of the primary that arrives later is refused.
--   uses    clock, layout, dirty, commit
--   flags   allow-oom
--   KEYS    tag
--   ARGV    start_ts, row, column, owner, wall, ttl_ms
--             row, column: of the primary; owner: "dead" if the liveness token of the transaction's owner is gone, else
--             "alive"; wall, ttl_ms: those of the lock that the caller found, used if the primary is not locked yet
--   reply   {"committed", commit_ts} | {"rolled back"} | {"live", wait}
--             wait: ms until the lock may be cleaned up

local tag, start_ts, row, column = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local found = redis.call('HMGET', tag .. 'r:' .. row, 'l' .. column, 'c' .. column, tombstone_field(start_ts, column))
local lock, newest, tombstone = found[1], found[2], found[3]

local held = lock and lock_start(lock) == start_ts
if not held then
  local commit_ts = find_commit(tag, row, column, start_ts, newest)
  if commit_ts then return {'committed', commit_ts} end
  if tombstone or start_ts <= safe_point(tag) then return {'rolled back'} end
  -- A dropped tablet needs no tombstone: it refuses all prewrites, and nothing would ever remove the tombstone.
  if redis.call('HGET', tag .. 'meta', 'gone') then return {'rolled back'} end
end

local wall, ttl
if held then wall, ttl = lock_age(lock) else wall, ttl = tonumber(ARGV[5]), tonumber(ARGV[6]) end
local left = wall + ttl * 1000 - now()
-- If more than the whole time to live is left, the clock was set back. The lock then ends now, which is always safe.
if left > ttl * 1000 then left = 0 end
if left > 0 and ARGV[4] == 'alive' then return {'live', math.ceil(left / 1000)} end

redis.call('HSET', tag .. 'r:' .. row, tombstone_field(start_ts, column), '')
redis.call('ZADD', tag .. 'rows', 0, row)
if held then
  redis.call('HDEL', tag .. 'r:' .. row, 'l' .. column)
  redis.call('ZREM', tag .. 'locks', lock_mark(start_ts, column, row))
end
return {'rolled back'}
