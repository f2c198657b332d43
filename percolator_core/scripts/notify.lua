-- Set the weak marks of a transaction that has nothing but notifications: no data shares their fate, so no lock
-- is needed. A mark set twice is one mark.
--   uses    clock, layout, dirty
--   KEYS    tags …
--   ARGV    per cell: position of its tag, row, column, kind; at the end the versions of the tables, one a tag, joined
--           by commas
--   reply   "notified" | "changed": a table is no longer what the caller takes it for

local metas, versions = {}, {}
for i = 1, #KEYS do
  metas[i] = read_meta(KEYS[i])
  versions[i] = metas[i].version
end
if table.concat(versions, ',') ~= ARGV[#ARGV] then return 'changed' end
for i = 1, #ARGV - 1, 4 do
  local position = tonumber(ARGV[i])
  mark_weakly(KEYS[position], metas[position].observers[ARGV[i + 2]], ARGV[i + 1], ARGV[i + 2])
end
return 'notified'
