-- Give a leased cell back, to be claimed again after a delay.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    observer, row, column, delay in ms, "failed" to count an attempt or "unharmed"
--   reply   failed attempts so far

local tag, observer = KEYS[1], ARGV[1]
local key, mark = tag .. 'dirty:' .. observer, dirty_mark(ARGV[3], ARGV[2])
-- Without a mark another run has dealt with the cell meanwhile, and there is nothing to try again.
if not redis.call('ZSCORE', key, mark) then return 0 end
redis.call('ZADD', key, 'XX', even(now() + tonumber(ARGV[4]) * 1000), mark)
if ARGV[4] == '0' then wake(tag, observer) end
if ARGV[5] == 'failed' then return redis.call('HINCRBY', tag .. 'tries:' .. observer, mark, 1) end
return tonumber(redis.call('HGET', tag .. 'tries:' .. observer, mark) or '0')
