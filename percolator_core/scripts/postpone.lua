-- Give a leased cell back, so that it can be claimed again after a delay. If its observer is no longer registered for
-- the column, remove the mark instead. The script does nothing if the lease is not ours any more: a request that
-- arrives twice counts only one attempt, and a run that ends late does not end the lease of the next run.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    observer, row, column, delay_ms, attempt, deadline, before
--             attempt: "failed" adds one to the failed attempts, "unharmed" does not
--   reply   failed attempts so far

local tag, observer = KEYS[1], ARGV[1]
local key, mark = tag .. 'dirty:' .. observer, dirty_mark(ARGV[3], ARGV[2])
local tries = tag .. 'tries:' .. observer
if is_ours(redis.call('ZSCORE', key, mark), tonumber(ARGV[6]), tonumber(ARGV[7])) then
  -- The check and the removal are one step: if the observer were registered again in between, the mark might belong to
  -- a later write.
  if not is_among(observers_of(tag, ARGV[3]), observer) then
    redis.call('HDEL', tries, mark)
    redis.call('ZREM', key, mark)
    return 0
  end
  redis.call('ZADD', key, 'XX', even(now() + tonumber(ARGV[4]) * 1000), mark)
  if ARGV[4] == '0' then wake(tag, observer) end
  if ARGV[5] == 'failed' then return redis.call('HINCRBY', tries, mark, 1) end
end
return tonumber(redis.call('HGET', tries, mark) or '0')
