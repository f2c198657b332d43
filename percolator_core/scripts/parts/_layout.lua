-- The packed versions and locks; the Python side is layout/records.py and layout/keys.py.
--   version  >I8 commit_ts  >BI7 kind start_ts  value
--   lock     >BI7 kind start_ts  >I8 wall  >I4 ttl  >I2 #owner  >I4 #primary  owner primary value
-- A row's hash holds, per column: c<column> newest version, l<column> lock, x<start_ts><column> rollback
-- tombstone, n<start_ts><column> a weak notification in flight.
-- Numbers become text only through %.0f, or as an argument of redis.call, which writes 17 digits: tostring() would round a
-- timestamp. Text becomes a number through `text + 0` where each instruction counts: it costs a third of tonumber(text).

local PUT, DELETE, NOTIFY = 0, 1, 2

-- The marker of a typed row. In a mark, an acknowledgement and the meta hash it stands for the whole row.
local ROW = '\255'

-- A field counts as this many bytes in addition to its name and value, because each field takes some time to read.
local FIELD = 32

local function pack_version(commit_ts, kind, start_ts, value)
  return struct.pack('>I8BI7', commit_ts, kind, start_ts) .. value
end

local function version_times(version)
  local commit_ts, kind, start_ts = struct.unpack('>I8BI7', version)
  return commit_ts, start_ts, kind
end

local function pack_lock(kind, start_ts, wall, ttl, owner, primary, value)
  return struct.pack('>BI7I8I4I2I4', kind, start_ts, wall, ttl, #owner, #primary) .. owner .. primary .. value
end

local function lock_start(lock)
  local _, start_ts = struct.unpack('>BI7', lock)
  return start_ts
end

local function lock_age(lock)
  local _, _, wall, ttl = struct.unpack('>BI7I8I4', lock)
  return wall, ttl
end

local function lock_write(lock)
  local kind, _, _, _, owner_length, primary_length = struct.unpack('>BI7I8I4I2I4', lock)
  return kind, string.sub(lock, 27 + owner_length + primary_length)
end

local function lock_without_value(lock)
  local _, _, _, _, owner_length, primary_length = struct.unpack('>BI7I8I4I2I4', lock)
  return string.sub(lock, 1, 26 + owner_length + primary_length)
end

-- Pack a column so that other bytes can follow it: its length goes in front, in four bytes, since an acknowledgement's
-- column may have more than 64 KiB. With this prefix, the older versions of all columns of a row share one sorted set,
-- ordered by (column, commit_ts).
local function pack_column(column)
  return struct.pack('>I4', #column) .. column
end

-- A member of the lock index: the start timestamp of the transaction, and the cell.
local function lock_mark(start_ts, column, row)
  return struct.pack('>I8', start_ts) .. pack_column(column) .. row
end

local function split_lock_mark(mark)
  -- "c0" reads as many bytes as the number unpacked before it.
  local start_ts, column, behind = struct.unpack('>I8I4c0', mark)
  return start_ts, column, string.sub(mark, behind)
end

local function lock_field(kind, start_ts, column)
  if kind == NOTIFY then
    -- Weak notifications never conflict: each transaction has a lock field of its own.
    return 'n' .. struct.pack('>I8', start_ts) .. column
  end
  return 'l' .. column
end

local function tombstone_field(start_ts, column)
  return 'x' .. struct.pack('>I8', start_ts) .. column
end

-- If `column` is that of an acknowledgement, return the observed column. Otherwise, also for the marker of a typed row,
-- return nil.
local function acknowledged(column)
  local behind = string.byte(column) == 255 and string.find(column, '\255', 2, true)
  return behind and string.sub(column, behind + 1) or nil
end

-- True if a column holds data of the row: it is a user's column or the marker.
local function is_data(column)
  return string.byte(column) ~= 255 or column == ROW
end

-- True if an acknowledgement belongs to a view, whose observers have an @ in their names. It has what the row gave to the
-- view, which the base does not have. So it stays in the store when the row moves to the base.
local function is_of_view(column)
  return string.find(string.sub(column, 2, string.find(column, '\255', 2, true)), '@', 1, true) ~= nil
end

-- True if a rerun has replaced this acknowledgement: it is a deletion or, for a whole row, has the revision 0. A deleted
-- acknowledgement of a view only says that the row is gone.
local function is_unacknowledged(column, version)
  local _, _, kind = version_times(version)
  if is_of_view(column) then return false end
  return kind == DELETE or acknowledged(column) == ROW and string.sub(version, 18, 21) == '\0\0\0\0'
end

-- Remove a row from the row index if it has neither cells nor older versions; return 1, or 0 if it has some.
local function drop_if_empty(tag, row)
  if redis.call('EXISTS', tag .. 'r:' .. row, tag .. 'v:' .. row) > 0 then return 0 end
  redis.call('ZREM', tag .. 'rows', row)
  return 1
end

-- Return the safe point. Tombstones and old versions below it may have been removed, so their absence proves nothing.
local function safe_point(tag)
  return tonumber(redis.call('HGET', tag .. 'meta', 'safe') or '0')
end

-- Return true if a snapshot must be refused: it lies below the safe point, where versions may be missing, or the table
-- was dropped, so that the tablet has no table version. A schema change that removes data raises the safe point first.
-- Also return the reference of the tablet's base, '' without a base.
local function is_too_old(tag, at)
  local found = redis.call('HMGET', tag .. 'meta', 'version', 'safe', 'base')
  return not found[1] or at < tonumber(found[2] or '0'), found[3] or ''
end

-- Return a string that changes when the tablet's safe point moves, and with each eviction.
local function eviction_stamp(tag)
  local found = redis.call('HMGET', tag .. 'meta', 'safe', 'evictions')
  return (found[1] or '0') .. ' ' .. (found[2] or '0')
end
