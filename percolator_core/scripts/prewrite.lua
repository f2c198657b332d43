-- First phase of the commit (paper, figure 6, Prewrite); or both phases at once when one call covers the whole
-- transaction. All cells are checked before the first is written: Redis does not undo what a failed script wrote.
--   uses    clock, layout, dirty, oracle, commit
--   KEYS    tags …, [oracle]
--             oracle: only if the same server has it; "both" needs it
--   ARGV    role, start_ts, cells (position, row, column, kind, value) …, [lock (ttl_ms, owner, primary)], versions
--             role: "both" if the call covers everything, "primary" if its first cell is the transaction's primary,
--             "secondaries" if it is another part; lock: left out if the role is "both"; versions: those of the tables,
--             one for each tag, joined by commas
--   reply   {"prewritten"} | {"committed", commit_ts} | {"newer commit", cell} | {"locked", cell, lock}
--           | {"rolled back", cell} | {"too old"} | {"changed"} | {"failed over"}
--             cell: the position, from 0, of the cell that refuses; "rolled back": the primary has a tombstone;
--             "changed": a table has another version; "failed over": the transaction began before the last failover

local role, start_ts = ARGV[1], tonumber(ARGV[2])
local both = role == 'both'
local last = both and #ARGV - 1 or #ARGV - 4

local tags, metas, versions, is_late, fields = {}, {}, '', false, fields_for(3, 5, last)
-- The oracle's key is no tag: it does not end in a brace.
for i = 1, string.byte(KEYS[#KEYS], -1) == 125 and #KEYS or #KEYS - 1 do
  local position, meta = string.format('%d', i), read_meta(KEYS[i], fields)
  tags[position], metas[position] = KEYS[i], meta
  versions = i == 1 and meta.version or versions .. ',' .. meta.version
  is_late = is_late or start_ts <= tonumber(meta.safe)
end
-- A schema change first fences the tablets, then waits for the locks in them. After that, no transaction writes by the
-- old definition, or to a dropped table.
if versions ~= ARGV[#ARGV] then return {'changed'} end
-- Below the safe point the tombstone of an earlier rollback may have been removed: refuse a prewrite that arrives so late.
if is_late then return {'too old'} end

-- A transaction from before the failover may have read writes that were lost: it must not build on them.
local oracle = both and redis.call('HMGET', KEYS[#KEYS], 'last', 'limit', 'floor')
if failed_over(start_ts, oracle) then return {'failed over'} end

-- Adjacent cells of one row are read by one command, and published by one.
local function end_of_row(i)
  local position, row = ARGV[i], ARGV[i + 1]
  while i < last - 4 and ARGV[i + 6] == row and ARGV[i + 5] == position do i = i + 5 end
  return i
end

-- Return the newest version and the lock of each cell; for the primary, its tombstone comes last.
local function read_row(key, first, final)
  local column = ARGV[first + 2]
  local tombstone = first == 3 and role ~= 'secondaries' and tombstone_field(start_ts, column)
  if first == final and ARGV[first + 3] == '2' then return {} end
  if first == final and not tombstone then return redis.call('HMGET', key, 'c' .. column, 'l' .. column) end
  if first == final then return redis.call('HMGET', key, 'c' .. column, 'l' .. column, tombstone) end
  local fields = {}
  for i = first, final, 5 do
    fields[#fields + 1] = 'c' .. ARGV[i + 2]
    fields[#fields + 1] = 'l' .. ARGV[i + 2]
  end
  fields[#fields + 1] = tombstone or nil
  return redis.call('HMGET', key, unpack(fields))
end

local newest, fresh, is_observed, first = {}, {}, false, 3
while first <= last do
  local tag, meta, row, final, is_fresh = tags[ARGV[first]], metas[ARGV[first]], ARGV[first + 1], first, false
  if ARGV[first + 6] == row then final = end_of_row(first) end
  local found, at = read_row(tag .. 'r:' .. row, first, final), 1
  if found[(final - first) / 5 * 2 + 3] then return {'rolled back', 0} end
  for i = first, final, 5 do
    local version, lock = found[at], found[at + 1]
    at = at + 2
    is_observed = is_observed or meta['o' .. ARGV[i + 2]]
    if ARGV[i + 3] == '2' then
      is_fresh = true
    else
      if version and version_times(version) > start_ts then
        local mine = find_commit(tag, row, ARGV[i + 2], start_ts, version)
        if not mine then return {'newer commit', (i - 3) / 5} end
        -- The library may send a request twice: the second one finds the work done and changes nothing.
        return both and {'committed', mine} or {'prewritten'}
      end
      if lock then
        if lock_start(lock) ~= start_ts then return {'locked', (i - 3) / 5, lock} end
      elseif not version then
        is_fresh = true
      end
      newest[i] = version
    end
  end
  if is_fresh and not both then fresh[#fresh + 1] = first end
  first = final + 5
end

-- The row index has a row from its first lock on, so that scans find that lock.
for _, i in ipairs(fresh) do
  redis.call('ZADD', tags[ARGV[i]] .. 'rows', '0', ARGV[i + 1])
end

-- A mark is set with the lock, so that an observer finds a lock whose owner died. After a rollback the mark causes an
-- idle run.
if is_observed then
  -- The functions that are needed only from here on are created here.
  for i = 3, last, 5 do
    local tag, row, column = tags[ARGV[i]], ARGV[i + 1], ARGV[i + 2]
    local observers = metas[ARGV[i]]['o' .. column]
    if ARGV[i + 3] ~= '2' then
      mark_strongly(tag, observers, row, column, nil, both)
    elseif both then
      mark_weakly(tag, observers, row, column, ARGV[i + 4])
    end
  end
end

if both then
  -- The functions that are needed only from here on are created here.
  local commit_ts = next_timestamps(KEYS[#KEYS], 1, oracle)
  local published, moved, written, older = {}, {}, 0, 0
  for i = 3, last, 5 do
    local tag, row, column, kind = tags[ARGV[i]], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    if kind ~= '2' then
      published[written + 1] = 'c' .. column
      published[written + 2] = pack_version(commit_ts, kind, start_ts, ARGV[i + 4])
      written = written + 2
      if newest[i] then
        moved[older + 1], moved[older + 2] = '0', pack_column(column) .. newest[i]
        older = older + 2
      end
    end
    if written > 0 and not (ARGV[i + 6] == row and ARGV[i + 5] == ARGV[i]) then
      if older > 0 then redis.call('ZADD', tag .. 'v:' .. row, unpack(moved, 1, older)) end
      local added = redis.call('HSET', tag .. 'r:' .. row, unpack(published, 1, written))
      if added > 0 then redis.call('ZADD', tag .. 'rows', '0', row) end
      written, older = 0, 0
    end
  end
  return {'committed', commit_ts}
end

-- The functions that are needed only from here on are created here.
local wall, ttl, owner, primary = string.format('%.0f', now()), ARGV[last + 1], ARGV[last + 2], ARGV[last + 3]
-- Apart from its value, the lock is the same for all cells of one kind.
local heads = {}
for i = 3, last, 5 do
  local tag, row, column, kind = tags[ARGV[i]], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  heads[kind] = heads[kind] or pack_lock(kind, start_ts, wall, ttl, owner, primary, '')
  redis.call('HSET', tag .. 'r:' .. row, lock_field(kind, start_ts, column), heads[kind] .. ARGV[i + 4])
  redis.call('ZADD', tag .. 'locks', wall, lock_mark(start_ts, column, row))
end
return {'prewritten'}
