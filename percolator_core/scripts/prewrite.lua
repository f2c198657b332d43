-- First phase of the commit (paper, figure 6, Prewrite); or both phases at once when one call covers the whole
-- transaction. All cells are checked before the first is written: a script keeps what it wrote before a failure.
--   uses    clock, layout, dirty, oracle, commit
--   KEYS    tags … ; then the oracle where the same server has it, which "both" needs
--   ARGV    "both", "primary" or "secondaries" (what the call covers: everything, or the part that has the primary as
--           its first cell, or another part), start_ts, then per cell: position of its tag, row, column, kind, value;
--           unless "both": ttl in ms, owner, primary
--   reply   {"prewritten"} | {"committed", commit_ts} | {"newer commit", i} | {"locked", i, lock}
--           | {"rolled back", 0}, the primary has a tombstone | {"too old"} | {"failed over"}: it began at a server
--           that this one has replaced;  i counts cells from 0

local role, start_ts = ARGV[1], tonumber(ARGV[2])
local both = role == 'both'
local last = both and #ARGV or #ARGV - 3

-- Below the safe point the tombstone of an earlier rollback may be gone: refuse whatever arrives so late.
local metas = {}
for i = 1, both and #KEYS - 1 or #KEYS do
  metas[i] = read_meta(KEYS[i])
  if start_ts <= metas[i].safe then return {'too old'} end
end

-- What it read there may be lost, and would live on in what it writes here. A tag ends in a brace.
local oracle = string.sub(KEYS[#KEYS], -1) ~= '}' and KEYS[#KEYS]
if oracle and start_ts < tonumber(redis.call('HGET', oracle, 'floor') or '0') then return {'failed over'} end

local newest, fresh = {}, {}
for i = 3, last, 5 do
  local position = tonumber(ARGV[i])
  local tag, row, column, kind = KEYS[position], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  if kind ~= NOTIFY then
    local found
    if i == 3 and role ~= 'secondaries' then
      found = redis.call('HMGET', tag .. 'r:' .. row, 'c' .. column, 'l' .. column, tombstone_field(start_ts, column))
      if found[3] then return {'rolled back', 0} end
    else
      found = redis.call('HMGET', tag .. 'r:' .. row, 'c' .. column, 'l' .. column)
    end
    local version, lock = found[1], found[2]
    if version and version_times(version) > start_ts then
      local mine = find_commit(tag, row, column, start_ts, version)
      if not mine then return {'newer commit', (i - 3) / 5} end
      -- The library may send a request twice: it finds its own work done and changes nothing.
      return both and {'committed', mine} or {'prewritten'}
    end
    if lock then
      if lock_start(lock) ~= start_ts then return {'locked', (i - 3) / 5, lock} end
    elseif not version then
      fresh[#fresh + 1] = i
    end
    newest[i] = version
  elseif not both then
    fresh[#fresh + 1] = i
  end
end

-- Readers and scans find a row through the index from its first lock on.
for _, i in ipairs(fresh) do
  redis.call('ZADD', KEYS[tonumber(ARGV[i])] .. 'rows', 0, ARGV[i + 1])
end

if both then
  local commit_ts = next_timestamps(KEYS[#KEYS], 1)
  for i = 3, last, 5 do
    local position = tonumber(ARGV[i])
    local tag, row, column, kind = KEYS[position], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
    if kind == NOTIFY then
      mark_weakly(tag, metas[position], row, column)
    else
      mark_strongly(tag, metas[position], row, column)
      publish(tag, row, column, newest[i], commit_ts, kind, start_ts, ARGV[i + 4])
    end
  end
  return {'committed', commit_ts}
end

local wall, ttl, owner, primary = now(), tonumber(ARGV[last + 1]), ARGV[last + 2], ARGV[last + 3]
for i = 3, last, 5 do
  local position = tonumber(ARGV[i])
  local tag, row, column, kind = KEYS[position], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  -- The mark is set with the lock, not with the commit: it may prove idle, it is never lost.
  if kind ~= NOTIFY then mark_strongly(tag, metas[position], row, column) end
  redis.call('HSET', tag .. 'r:' .. row, lock_field(kind, start_ts, column),
    pack_lock(kind, start_ts, wall, ttl, owner, primary, ARGV[i + 4]))
  redis.call('ZADD', tag .. 'locks', wall, lock_mark(start_ts, column, row))
end
return {'prewritten'}
