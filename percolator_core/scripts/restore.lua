-- Put cells of some rows of the tablet's base back into the store, as versions, where the store has none of the cell.
-- A cell that the store has is newer, also if it is a deletion. A typed row whose marker is deleted stays away as a whole.
--   uses    layout
--   KEYS    tag
--   ARGV    manifest, version, rows …
--             manifest: the valid one, from which the rows were read; version: of the table, by whose definition they were read;
--             rows: for each row its key, the number of its cells and, for each of these, column, commit_ts and value
--   reply   "restored" | "changed"

local tag = KEYS[1]
local found = redis.call('HMGET', tag .. 'meta', 'base', 'version')
if found[1] ~= ARGV[1] or found[2] ~= ARGV[2] then return 'changed' end

local at = 3
while at < #ARGV do
  local row, count = ARGV[at], tonumber(ARGV[at + 1])
  local key, marker = tag .. 'r:' .. row, redis.call('HGET', tag .. 'r:' .. row, 'c\255')
  local _, _, kind = version_times(marker or pack_version(0, PUT, 0, ''))
  for i = at + 2, at + 3 * count, 3 do
    if kind ~= DELETE then
      local commit_ts = tonumber(ARGV[i + 1])
      if redis.call('HEXISTS', key, 'c' .. ARGV[i]) == 0 then
        redis.call('HSET', key, 'c' .. ARGV[i], pack_version(commit_ts, PUT, commit_ts, ARGV[i + 2]))
      end
    end
  end
  if kind ~= DELETE then redis.call('ZADD', tag .. 'rows', 0, row) end
  at = at + 2 + 3 * count
end
return 'restored'
