-- Mark cells of one column dirty for one observer, whatever they hold: a rerun has deleted their acknowledgements. A
-- strong mark that exists keeps its score. A weak mark is set as a notification sets it. The failed attempts on the
-- cells count from 0 again.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    observer, mode, column, rows …
--   reply   {"marked", count} | {"not observed"}
--             count: cells that were not dirty; "not observed": the active chain has no such observer

local tag, observer, strong, column = KEYS[1], ARGV[1], ARGV[2] == 'strong', ARGV[3]
if not is_among(observers_of(tag, column), observer) then return {'not observed'} end

local key, marked = tag .. 'dirty:' .. observer, 0
for i = 4, #ARGV do
  local mark = dirty_mark(column, ARGV[i])
  if strong then
    marked = marked + redis.call('ZADD', key, 'NX', even(now()), mark)
  else
    marked = marked + (set_weakly(tag, observer, mark) and 1 or 0)
  end
  redis.call('HDEL', tag .. 'tries:' .. observer, mark)
end
if #ARGV > 3 then wake(tag, observer) end
return {'marked', marked}
