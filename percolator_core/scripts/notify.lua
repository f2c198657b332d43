-- Set the weak marks of a transaction that has nothing but notifications: no data shares their fate, so no lock
-- is needed. A mark set twice is one mark.
--   uses    clock, dirty
--   KEYS    tags …
--   ARGV    per cell: position of its tag, row, column, kind
--   reply   "notified"

local metas = {}
for i = 1, #KEYS do metas[i] = read_meta(KEYS[i]) end
for i = 1, #ARGV, 4 do
  local position = tonumber(ARGV[i])
  mark_weakly(KEYS[position], metas[position], ARGV[i + 1], ARGV[i + 2])
end
return 'notified'
