"""The packed records of cells: versions and locks.

A commit writes a *version* (the paper's write and data columns in one). A prewrite writes a *lock* (the
paper's lock column, with the value to be committed). The Lua scripts read and write the same two layouts;
``tests/layout/test_layout.py`` compares both sides.

::

    version   >I8 commit_ts   >I1 kind  >I7 start_ts   value …
    lock      >I1 kind  >I7 start_ts   >I8 wall µs   >I4 ttl ms   >I2 len owner   >I4 len primary
              owner …  primary …  value …
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

MAX_TIMESTAMP: Final = 2**53 - 1
"""The largest timestamp, in microseconds: a Lua number holds integers below 2**53 exactly."""

MAX_TABLETS: Final = 4096
"""A table has at most this many tablets."""

MAX_VALUE: Final = 128 << 20
"""Largest value, in bytes. Sending twice this size takes nearly the whole time limit of a reply."""

MAX_ROW: Final = 64 << 10
"""Longest row key in bytes."""

PUT: Final = 0
DELETE: Final = 1
NOTIFY: Final = 2
"""Kinds of writes: store a value, delete it, or only wake the weak observers of the cell.

The value of a notification has the names of the observers whose marks it moves ahead, joined by commas.
"""

_KIND_SHIFT: Final = 56
_START_MASK: Final = (1 << _KIND_SHIFT) - 1
_VERSION: Final = struct.Struct(">QQ")
_LOCK: Final = struct.Struct(">QQIHI")
VERSION_HEADER: Final = _VERSION.size
"""Bytes in front of the value in a packed version."""

KIND: Final = 8
"""Index of the kind's byte in a packed version, behind the commit timestamp. The byte is 0 for a PUT."""

VALUE: Final = slice(VERSION_HEADER, None)
"""Slice of the value in a packed version."""

pack_timestamp = struct.Struct(">Q").pack
"""Pack a timestamp as in a version: comparing the bytes compares the timestamps."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The observed cell that woke an observer.

    ``timestamp`` is the commit timestamp of the change, in microseconds. For a weak notification it is the
    time of the mark or, with ``order: most_notified``, up to a minute earlier. One run may serve several
    changes up to its snapshot.
    """

    table: str
    row: bytes
    column: str
    timestamp: int


class Version(NamedTuple):
    """One committed version of a cell; ``value`` is None if the commit deleted the cell."""

    commit_ts: int
    start_ts: int
    value: bytes | None

    @property
    def is_of_base(self) -> bool:
        """True if the table's base has the version, or had it before the base was taken away.

        The base records no start timestamps, so a version of the base has its commit timestamp twice. In a
        version of the store, the start timestamp is below the commit timestamp.
        """
        return self.start_ts == self.commit_ts


VERSION_MARK: Final = b"c"
LOCK_MARK: Final = b"l"
"""The first bytes of the two fields that a cell has in its row's hash (`_layout.lua`)."""


Write: TypeAlias = tuple[int, bytes]
"""One buffered write: its kind and its value. A deletion has an empty value; see `NOTIFY`."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock without its value. ``wall`` is the server's time (µs) when the lock was written or refreshed."""

    kind: int
    start_ts: int
    wall: int
    ttl_ms: int
    owner: bytes
    primary: bytes


def pack_version(commit_ts: int, start_ts: int, value: bytes | None) -> bytes:
    """Pack a version; a value of None is a deletion."""
    kind = DELETE if value is None else PUT
    return _VERSION.pack(commit_ts, kind << _KIND_SHIFT | start_ts) + (value or b"")


def unpack_version(packed: bytes) -> Version:
    """Unpack a version."""
    commit_ts, word = _VERSION.unpack_from(packed)
    if word >> _KIND_SHIFT == PUT:
        return Version(commit_ts, word, packed[VERSION_HEADER:])
    return Version(commit_ts, word & _START_MASK, None)


def commit_of(packed: bytes) -> int:
    """Return the commit timestamp of a packed version."""
    return int.from_bytes(packed[:KIND], "big")


def value_of(version: bytes | None) -> bytes | None:
    """Return the value in a packed version; None for a deletion, and for no version at all."""
    return None if version is None or version[KIND] else version[VALUE]


def is_settled(version: bytes | None, lock: bytes | None, limit: bytes, complete: bool) -> bool:
    """Return True if a cell's newest version and lock determine what a snapshot reads (paper, figure 6).

    ``limit`` is the snapshot's timestamp, packed as in a version. ``complete`` is True if the tablet's
    version and safe point, which are read after the cell, show that no version was removed. A lock may still
    commit below the snapshot, and a version above the snapshot hides an older one: both need another request.
    """
    return lock is None and (complete if version is None else version < limit)


def start_of_lock(packed: bytes) -> int:
    """Return the start timestamp of a packed lock's transaction."""
    return int.from_bytes(packed[1:8], "big")


def wall_of_lock(packed: bytes) -> int:
    """Return the ``wall`` of a packed lock, as in `Lock`."""
    return int.from_bytes(packed[8:16], "big")


def unpack_lock(packed: bytes) -> Lock:
    """Unpack a lock, without its value."""
    word, wall, ttl_ms, owner_length, primary_length = _LOCK.unpack_from(packed)
    owner_end = _LOCK.size + owner_length
    return Lock(
        kind=word >> _KIND_SHIFT,
        start_ts=word & _START_MASK,
        wall=wall,
        ttl_ms=ttl_ms,
        owner=packed[_LOCK.size : owner_end],
        primary=packed[owner_end : owner_end + primary_length],
    )


def row_bytes(row: str | bytes) -> bytes:
    """Return a row key as bytes; text is encoded as UTF-8. Raise TypeError for anything else."""
    if isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return row.encode()
    raise TypeError(f"a row key is str or bytes, not {type(row).__name__}")


def timestamp_of(at: int | datetime) -> int:
    """Return the timestamp for an int or an aware datetime; raise TypeError or ValueError for others."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{at} has no time zone: give an aware datetime")
        # In UTC, because the difference of two times in one zone ignores summer time.
        at = int((at - datetime.fromtimestamp(0, UTC)) / timedelta(microseconds=1))
    if isinstance(at, bool) or not isinstance(at, int):
        raise TypeError(f"at is a timestamp (an int) or an aware datetime, not {type(at).__name__}")
    if not 0 < at <= MAX_TIMESTAMP:
        raise ValueError(f"a timestamp is microseconds since 1970, 1 to 2**53 - 1, not {at}")
    return at
