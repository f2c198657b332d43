-- Prolong the leases of cells whose observers still run.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    per cell: observer, row, column, deadline so far, new deadline
--   reply   number of leases prolonged; the others were lost

local tag, renewed = KEYS[1], 0
for i = 1, #ARGV, 5 do
  local key, mark = tag .. 'dirty:' .. ARGV[i], dirty_mark(ARGV[i + 2], ARGV[i + 1])
  if tonumber(redis.call('ZSCORE', key, mark) or '0') == tonumber(ARGV[i + 3]) then
    redis.call('ZADD', key, 'XX', ARGV[i + 4], mark)
    renewed = renewed + 1
  end
end
return renewed
