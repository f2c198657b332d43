-- A bounded step of garbage collection in one tablet, at or below its safe point.
-- Before this step, all locks with a start timestamp at or below the safe point must be resolved, in all tablets. The
-- reason: a stranded lock is resolved by the versions of its primary, and this step may drop these versions.
--   uses    clock, layout, dirty
--   flags   allow-oom
--   KEYS    tag
--   ARGV    start, most_rows, safe_point, observers …
--             safe_point: the caller has resolved all locks up to it
--   reply   {resume, versions, rows}
--             versions, rows: how many were dropped

local tag, from, limit = KEYS[1], ARGV[1], tonumber(ARGV[2])
-- The lower of two safe points counts, the tablet's and the caller's. The tablet's is higher if another collector has
-- raised it; the locks between the two may not be resolved yet. It is lower only if the tablet was created after the
-- caller had raised the safe points.
local safe = math.min(safe_point(tag), tonumber(ARGV[3]))
local observers = {unpack(ARGV, 4)}
-- A deletion hides the cell that the tablet's base may have. So it stays until a flush has removed that cell.
local has_base = redis.call('HEXISTS', tag .. 'meta', 'base') == 1
local versions, dropped = 0, 0
-- A step ends once its read cells and dropped versions add up to this number, since other requests wait for the script.
-- Its last row may exceed the number. A cell counts once more for each KiB of its name and its newest version.
local ENOUGH = 5000
local looked, unfinished = 0, false

-- Drop the versions of a column that no snapshot at or above the safe point can see. These are all versions at or below
-- the safe point, except the newest of them. `older` is the number of older versions of the row.
local function trim_history(row, column, newest, older)
  local key, prefix = tag .. 'v:' .. row, pack_column(column)
  local above = '(' .. prefix .. struct.pack('>I8', safe + 1)
  local seen = newest and version_times(newest) <= safe
  if not seen then
    local last = redis.call('ZREVRANGEBYLEX', key, above, '[' .. prefix, 'LIMIT', 0, 1)[1]
    if not last then return end
    local _, _, kind = version_times(string.sub(last, #prefix + 1))
    -- A deletion as the oldest version goes too: without it, a reader gets the same answer.
    above = (kind == DELETE and not has_base and '[' or '(') .. last
  end
  if older > ENOUGH then
    local behind = redis.call('ZRANGEBYLEX', key, '[' .. prefix, above, 'LIMIT', ENOUGH, 1)[1]
    if behind then
      above, unfinished = '(' .. behind, true
    end
  end
  versions = versions + redis.call('ZREMRANGEBYLEX', key, '[' .. prefix, above)
end

-- True if the row has a version or a lock of the column or, if the column is ROW, of any column that holds data.
local function has_cells(cells, column)
  if column ~= ROW then return cells['c' .. column] or cells['l' .. column] end
  for field in pairs(cells) do
    local mark = string.byte(field)
    if (mark == 99 or mark == 108) and is_data(string.sub(field, 2)) then return true end
  end
  return false
end

local function collect_row(row)
  local key = tag .. 'r:' .. row
  local fields, cells, older = redis.call('HGETALL', key), {}, redis.call('ZCARD', tag .. 'v:' .. row)
  local before = versions
  looked, unfinished = looked + #fields / 2, false
  for i = 1, #fields, 2 do
    cells[fields[i]] = fields[i + 1]
    looked = looked + (#fields[i] + #fields[i + 1]) / 1024
  end
  for field, value in pairs(cells) do
    local mark, column = string.sub(field, 1, 1), string.sub(field, 2)
    if mark == 'x' then
      if struct.unpack('>I8', column) <= safe then redis.call('HDEL', key, field) end
    elseif mark == 'c' then
      if older > 0 and not unfinished then
        trim_history(row, column, value, older)
        unfinished = unfinished or versions - before >= ENOUGH
      end
      local commit_ts, _, kind = version_times(value)
      local gone = commit_ts <= safe and not cells['l' .. column]
      local observed = acknowledged(column)
      if observed then
        -- An acknowledgement is needed as long as its cell exists or may be observed. A cell of the base without an
        -- acknowledgement counts as observed. So the deletion of an acknowledgement stays until the next run: the rerun that
        -- deleted it may not have set its mark yet. The acknowledgement of a view has what the row gave to the view. A run
        -- deletes it if the row is gone; so if it is there, the view was not active, and still has to take that back.
        local is_needed = has_base and kind == DELETE
        if is_of_view(column) then is_needed = kind ~= DELETE end
        gone = gone and not has_cells(cells, observed) and not is_needed and not is_dirty(tag, row, observed, observers)
      else
        -- A deletion stays until it was observed.
        gone = gone and kind == DELETE and not has_base and not is_dirty(tag, row, column, observers) and
          not is_dirty(tag, row, ROW, observers)
      end
      -- The newest version goes last: without it, no step would find the older versions in the history.
      if gone and not unfinished then
        redis.call('HDEL', key, field)
        versions = versions + 1
      end
    end
  end
  dropped = dropped + drop_if_empty(tag, row)
end

local rows = redis.call('ZRANGEBYLEX', tag .. 'rows', from, '+', 'LIMIT', 0, limit)
for _, row in ipairs(rows) do
  collect_row(row)
  if unfinished then return {'[' .. row, versions, dropped} end
  if looked + versions >= ENOUGH then return {'(' .. row, versions, dropped} end
end
return {#rows == limit and '(' .. rows[#rows] or '', versions, dropped}
