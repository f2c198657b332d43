-- Set the weak marks of a transaction that has only notifications. It writes no data that must commit together with
-- them, so it needs no lock. Setting a mark twice makes one mark.
--   uses    clock, layout, dirty
--   KEYS    tags …
--   ARGV    cells (position, row, column, kind, value) …, versions
--             value: names the observers for which the notification is a boost; versions: those of the tables, one for
--             each tag, joined by commas
--   reply   "notified" | "changed"
--             "changed": a table has another version

local metas, versions, fields = {}, {}, fields_for(1, 5, #ARGV - 1)
for i = 1, #KEYS do
  metas[i] = read_meta(KEYS[i], fields)
  versions[i] = metas[i].version
end
if table.concat(versions, ',') ~= ARGV[#ARGV] then return 'changed' end
for i = 1, #ARGV - 1, 5 do
  local position = tonumber(ARGV[i])
  mark_weakly(KEYS[position], metas[position]['o' .. ARGV[i + 2]], ARGV[i + 1], ARGV[i + 2], ARGV[i + 4])
end
return 'notified'
