-- Second phase of the commit (paper, figure 6, lines 48 to 65).
--   uses    clock, layout, dirty, commit
--   flags   allow-oom
--   KEYS    tags …, [oracle]
--             oracle: only for the primary, and only if the same server has it
--   ARGV    role, start_ts, commit_ts, cells (position, row, column, kind) …
--             role: "primary": the first cell is the transaction's primary, and its lock decides; or "secondaries"
--   reply   {"committed", commit_ts} | {"rolled back"} | {"too old"} | {"failed over"}
--             only a call for the primary can be refused. "too old": its lock is gone, and its version, if there was
--             one, may have been removed by garbage collection or by a drop of the table; "failed over": the
--             transaction began before the last failover

local start_ts, commit_ts = tonumber(ARGV[2]), tonumber(ARGV[3])

if ARGV[1] == 'primary' then
  local tag, row, column = KEYS[tonumber(ARGV[4])], ARGV[5], ARGV[6]
  local found = redis.call('HMGET', tag .. 'r:' .. row, 'l' .. column, 'c' .. column)
  if not found[1] or lock_start(found[1]) ~= start_ts then
    -- A second copy of this request finds the work done, possibly under an earlier commit timestamp.
    local mine = find_commit(tag, row, column, start_ts, found[2])
    if not mine then
      local is_unknown = start_ts <= safe_point(tag) or redis.call('HGET', tag .. 'meta', 'gone')
      return {is_unknown and 'too old' or 'rolled back'}
    end
    commit_ts = mine
  elseif failed_over(start_ts) then
    return {'failed over'}
  end
end

for i = 4, #ARGV, 4 do
  commit_cell(KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), start_ts, commit_ts)
end
return {'committed', commit_ts}
