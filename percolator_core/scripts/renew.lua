-- Prolong the leases of cells whose observers are still running.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    leases (observer, row, column, deadline, new_deadline) …
--   reply   how many leases were prolonged; the others are lost

local tag, renewed = KEYS[1], 0
for i = 1, #ARGV, 5 do
  local key, mark = tag .. 'dirty:' .. ARGV[i], dirty_mark(ARGV[i + 2], ARGV[i + 1])
  -- The score is one above the deadline if the weak mark was set again during the lease. The new score stays one above
  -- the new deadline.
  local more = tonumber(redis.call('ZSCORE', key, mark) or '0') - tonumber(ARGV[i + 3])
  if more == 0 or more == 1 then
    redis.call('ZADD', key, 'XX', tonumber(ARGV[i + 4]) + more, mark)
    renewed = renewed + 1
  end
end
return renewed
