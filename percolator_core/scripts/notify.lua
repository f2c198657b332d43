-- Set the weak marks of a transaction that has only notifications. It writes no data that must commit together with
-- them, so it needs no lock. Setting a mark twice makes one mark.
--   uses    clock, layout, dirty
--   KEYS    tags …
--   ARGV    cells (position, row, column, kind, value) …, versions
--             value: names the observers for which the notification is a boost; versions: those of the tables, one for
--             each tag, joined by commas
--   reply   "notified" | "changed"
--             "changed": a table has another version

local versions, _, observers = read_metas(#KEYS, 1, #ARGV - 1)
if versions ~= ARGV[#ARGV] then return 'changed' end
if not observers then return 'notified' end
for i = 1, #ARGV - 1, 5 do
  local tag, row, column = KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2]
  mark_weakly(tag, observers[tag .. 'o' .. column], row, column, ARGV[i + 4])
end
return 'notified'
