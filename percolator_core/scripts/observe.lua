-- Register the observers of columns in one tablet. "replace" removes what was registered before, and the marks of
-- observers that no longer observe this table; "add" keeps both, for workers that still run another chain.
--   uses    clock, layout, dirty
--   KEYS    tag
--   ARGV    how, version, activation, retired (counted) …, columns (column, observers) …
--             how: "replace" or "add"; version: of the table; activation: the number of the activation, 0 in a schema
--             change; retired: observers whose marks are removed in any case; columns: with their observers, joined by
--             commas
--   reply   "observed" | "changed" | "overtaken"
--             "changed": the table has another version; "overtaken": a later activation has changed this tablet

local tag, replace, activation, retired = KEYS[1], ARGV[1] == 'replace', tonumber(ARGV[3]), tonumber(ARGV[4])
-- In a table that was dropped and created again a column may have another stored name; and a tablet that is gone must not
-- be recreated.
if (redis.call('HGET', tag .. 'meta', 'version') or '') ~= ARGV[2] then return 'changed' end
-- A request that was delayed or repeated must not undo a later activation of another chain.
if activation > 0 then
  if tonumber(redis.call('HGET', tag .. 'meta', 'activation') or '0') > activation then return 'overtaken' end
  redis.call('HSET', tag .. 'meta', 'activation', ARGV[3])
end
local observing, gone, before = {}, {}, {}
for i = retired + 6, #ARGV, 2 do
  for observer in string.gmatch(ARGV[i], '[^,]+') do observing[observer] = true end
end
for i = 5, retired + 4 do gone[ARGV[i]] = true end
local fields = redis.call('HGETALL', tag .. 'meta')
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == 'o' then
    if replace then
      for observer in string.gmatch(fields[i + 1], '[^,]+') do
        if not observing[observer] then gone[observer] = true end
      end
      redis.call('HDEL', tag .. 'meta', fields[i])
    else
      before[fields[i]] = fields[i + 1]
    end
  end
end
for observer in pairs(gone) do
  redis.call('UNLINK', tag .. 'dirty:' .. observer, tag .. 'tries:' .. observer, tag .. 'failed:' .. observer)
end
for i = retired + 5, #ARGV, 2 do
  local field, observers = 'o' .. ARGV[i], ARGV[i + 1]
  for observer in string.gmatch(before[field] or '', '[^,]+') do
    if not is_among(observers, observer) then observers = observers .. ',' .. observer end
  end
  redis.call('HSET', tag .. 'meta', field, observers)
end
return 'observed'
