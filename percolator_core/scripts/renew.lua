-- Prolong the leases of cells whose observers still run.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    per cell: observer, row, column, deadline so far, new deadline
--   reply   number of leases prolonged; the others were lost

local tag, renewed = KEYS[1], 0
for i = 1, #ARGV, 5 do
  local key, mark = tag .. 'dirty:' .. ARGV[i], dirty_mark(ARGV[i + 2], ARGV[i + 1])
  -- One more than the deadline: a weak mark that was set again since. It stays that.
  local more = tonumber(redis.call('ZSCORE', key, mark) or '0') - tonumber(ARGV[i + 3])
  if more == 0 or more == 1 then
    redis.call('ZADD', key, 'XX', tonumber(ARGV[i + 4]) + more, mark)
    renewed = renewed + 1
  end
end
return renewed
