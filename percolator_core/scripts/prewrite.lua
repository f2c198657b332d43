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

-- Locals are read faster than globals.
local KEYS, ARGV = KEYS, ARGV
local role, start_ts = ARGV[1], ARGV[2] + 0
local both = role == 'both'
local last = both and #ARGV - 1 or #ARGV - 4

-- The oracle's key is no tag: it does not end in a brace.
local tags = string.byte(KEYS[#KEYS], -1) == 125 and #KEYS or #KEYS - 1
local versions, safe, observers = read_metas(tags, 3, last)
-- A schema change first fences the tablets, then waits for the locks in them. After that, no transaction writes by the
-- old definition, or to a dropped table.
if versions ~= ARGV[#ARGV] then return {'changed'} end
-- Below the safe point the tombstone of an earlier rollback may have been removed: refuse a prewrite that arrives so late.
if start_ts <= safe then return {'too old'} end

-- A transaction from before the failover may have read writes that were lost: it must not build on them.
local oracle = both and redis.call('HMGET', KEYS[#KEYS], 'last', 'limit', 'floor')
if failed_over(start_ts, oracle) then return {'failed over'} end

-- Adjacent cells of one row are read by one command, and published by one. `groups` has two lists for each such group of
-- cells: the arguments of the command, and what it found. Here and below, a table that is created with room for four
-- values need not grow at the first ones.
local groups, fresh, i = {nil, nil, nil, nil}, {}, 3
while i <= last do
  local first, position, row, is_fresh = i, ARGV[i], ARGV[i + 1], ARGV[i + 3] == '2'
  i = i + 5
  if not is_fresh then
    local tag, column = KEYS[position + 0], ARGV[first + 2]
    -- The newest version and the lock of each cell; for the primary, its tombstone comes last.
    local arguments = {tag .. 'r:' .. row, 'c' .. column, 'l' .. column, nil}
    while ARGV[i + 1] == row and i < last and ARGV[i] == position and ARGV[i + 3] ~= '2' do
      arguments[#arguments + 1] = 'c' .. ARGV[i + 2]
      arguments[#arguments + 1] = 'l' .. ARGV[i + 2]
      i = i + 5
    end
    if first == 3 and role ~= 'secondaries' then arguments[#arguments + 1] = tombstone_field(start_ts, column) end
    local found, at = redis.call('HMGET', unpack(arguments)), 1
    if found[(i - first) / 5 * 2 + 1] then return {'rolled back', 0} end
    for cell = first, i - 5, 5 do
      local version, lock = found[at], found[at + 1]
      at = at + 2
      if version and version_times(version) > start_ts then
        -- The functions that are needed only from here on are created here.
        local mine = find_commit(tag, row, ARGV[cell + 2], start_ts, version)
        if not mine then return {'newer commit', (cell - 3) / 5} end
        -- The library may send a request twice: the second one finds the work done and changes nothing.
        return both and {'committed', mine} or {'prewritten'}
      end
      if lock then
        -- The functions that are needed only from here on are created here.
        if lock_start(lock) ~= start_ts then return {'locked', (cell - 3) / 5, lock} end
      elseif not version then
        is_fresh = true
      end
    end
    groups[#groups + 1] = arguments
    groups[#groups + 1] = found
  end
  if is_fresh and not both then fresh[#fresh + 1] = first end
end

-- The row index has a row from its first lock on, so that scans find that lock.
for n = 1, #fresh do
  redis.call('ZADD', KEYS[ARGV[fresh[n]] + 0] .. 'rows', '0', ARGV[fresh[n] + 1])
end

-- A mark is set with the lock, so that an observer finds a lock whose owner died. After a rollback the mark causes an
-- idle run.
if observers then
  -- The functions that are needed only from here on are created here.
  for i = 3, last, 5 do
    local tag, row, column = KEYS[ARGV[i] + 0], ARGV[i + 1], ARGV[i + 2]
    local names = column ~= ROW and observers[tag .. 'o' .. column]
    if ARGV[i + 3] ~= '2' then
      mark_strongly(tag, names, row, column, nil, both)
      mark_row(tag, observers[tag .. 'o' .. ROW], row, column, nil, both)
    elseif both then
      mark_weakly(tag, names, row, column, ARGV[i + 4])
    end
  end
end

if both then
  -- The functions that are needed only from here on are created here.
  local commit_ts, i, head_kind, head = next_timestamps(KEYS[#KEYS], 1, oracle), 3, nil, nil
  for group = 1, #groups, 2 do
    while ARGV[i + 3] == '2' do i = i + 5 end
    local arguments, found, tag, row = groups[group], groups[group + 1], KEYS[ARGV[i] + 0], ARGV[i + 1]
    -- In the lists, the new version takes the place of the lock, and older versions take the place of what was found.
    local written, older = 1, 0
    for at = 3, #arguments, 2 do
      local kind, newest = ARGV[i + 3], found[at - 2]
      if newest then
        found[older + 1], found[older + 2] = '0', pack_column(ARGV[i + 2]) .. newest
        older = older + 2
      end
      -- Apart from its value, the version is the same for all cells of one kind.
      if kind ~= head_kind then head_kind, head = kind, pack_version(commit_ts, kind, start_ts, '') end
      arguments[at] = head .. ARGV[i + 4]
      written, i = at, i + 5
    end
    if older > 0 then redis.call('ZADD', tag .. 'v:' .. row, unpack(found, 1, older)) end
    local added = redis.call('HSET', unpack(arguments, 1, written))
    if added > 0 then redis.call('ZADD', tag .. 'rows', '0', row) end
  end
  return {'committed', commit_ts}
end

-- The functions that are needed only from here on are created here.
local wall, ttl, owner, primary = string.format('%.0f', now()), ARGV[last + 1], ARGV[last + 2], ARGV[last + 3]
-- Apart from its value, the lock is the same for all cells of one kind.
local heads = {}
for i = 3, last, 5 do
  local tag, row, column, kind = KEYS[ARGV[i] + 0], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  heads[kind] = heads[kind] or pack_lock(kind, start_ts, wall, ttl, owner, primary, '')
  redis.call('HSET', tag .. 'r:' .. row, lock_field(kind, start_ts, column), heads[kind] .. ARGV[i + 4])
  redis.call('ZADD', tag .. 'locks', wall, lock_mark(start_ts, column, row))
end
return {'prewritten'}
