-- Put cells of some rows of the tablet's base back into the store, as versions, except cells that the store has.
-- The store's version of a cell is newer, even if it is a deletion: when a row of a typed table is removed, each of its
-- cells gets a deletion.
--   uses    layout
--   KEYS    tag
--   ARGV    manifest, version, rows …
--             manifest: the valid one, from which the rows were read; version: of the table definition by which they
--             were read; rows: for each row its key, the number of its cells and, for each of these, column, commit_ts
--             and value
--   reply   "restored" | "changed"

local tag = KEYS[1]
local found = redis.call('HMGET', tag .. 'meta', 'base', 'version')
if found[1] ~= ARGV[1] or found[2] ~= ARGV[2] then return 'changed' end

local at = 3
while at < #ARGV do
  local row, count = ARGV[at], tonumber(ARGV[at + 1])
  local key = tag .. 'r:' .. row
  for i = at + 2, at + 3 * count, 3 do
    if redis.call('HEXISTS', key, 'c' .. ARGV[i]) == 0 then
      local commit_ts = tonumber(ARGV[i + 1])
      redis.call('HSET', key, 'c' .. ARGV[i], pack_version(commit_ts, PUT, commit_ts, ARGV[i + 2]))
    end
  end
  redis.call('ZADD', tag .. 'rows', 0, row)
  at = at + 2 + 3 * count
end
return 'restored'
