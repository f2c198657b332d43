"""The data model: cells, their versions, locks and tables, and how each is packed into bytes.

A *version* is what a commit leaves behind (the paper's write and data columns, joined), a *lock* is
what a prewrite leaves (the paper's lock column, with the value still to be committed). The Lua
scripts read and write the same two layouts; ``tests/layout/test_layout.py`` holds them together.

::

    version   >I8 commit_ts   >I1 kind  >I7 start_ts   value …
    lock      >I1 kind  >I7 start_ts   >I8 wall µs   >I4 ttl ms   >I2 len owner   >I4 len primary
              owner …  primary …  value …
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_TIMESTAMP: Final = 2**53 - 1
"""Timestamps are microseconds below 2**53, so that a Lua double holds each of them exactly."""

MAX_TABLETS: Final = 4096
"""Most tablets of a table."""

MAX_VALUE: Final = 128 << 20
"""Largest value in bytes. One of twice the size takes nearly as long as a server may be silent."""

MAX_ROW: Final = 64 << 10
"""Longest row key in bytes."""

PUT: Final = 0
DELETE: Final = 1
NOTIFY: Final = 2
"""What a write does: store a value, remove it, or only wake the weak observers of the cell."""

_KIND_SHIFT: Final = 56
_START_MASK: Final = (1 << _KIND_SHIFT) - 1
_VERSION: Final = struct.Struct(">QQ")
_LOCK: Final = struct.Struct(">QQIHI")
VERSION_HEADER: Final = _VERSION.size
"""Bytes in front of the value in a packed version."""

KIND: Final = 8
"""Where the kind stands in a packed version; 0 is a PUT. In front of it is the commit timestamp."""

VALUE: Final = slice(VERSION_HEADER, None)
"""Where the value stands in a packed version."""

pack_timestamp = struct.Struct(">Q").pack
"""A timestamp as it stands in front of a packed version, which so compares as less if it is below it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The observed cell that woke an observer.

    ``timestamp`` is the commit timestamp of the change (microseconds) or, for a weak notification,
    the time of the mark. Later changes may have been collapsed into the same run.
    """

    table: str
    row: bytes
    column: str
    timestamp: int


class Version(NamedTuple):
    """One committed version of a cell; ``value`` is None where the commit deleted the cell."""

    commit_ts: int
    start_ts: int
    value: bytes | None


VERSION_MARK: Final = b"c"
LOCK_MARK: Final = b"l"
"""What the fields of a cell start with in its row's hash (`_layout.lua`)."""


class Write(NamedTuple):
    """One buffered write: what kind, and the value (empty unless the kind is PUT)."""

    kind: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock met in a cell. ``wall`` is the server's time in µs when it was written or refreshed."""

    kind: int
    start_ts: int
    wall: int
    ttl_ms: int
    owner: bytes
    primary: bytes


def unpack_version(packed: bytes) -> Version:
    """The version in ``packed``."""
    commit_ts, word = _VERSION.unpack_from(packed)
    if word >> _KIND_SHIFT == PUT:
        return Version(commit_ts, word, packed[VERSION_HEADER:])
    return Version(commit_ts, word & _START_MASK, None)


def value_of(version: bytes | None) -> bytes | None:
    """The value in a packed version; None for a deletion, and for no version at all."""
    return None if version is None or version[KIND] else version[VALUE]


def start_of_lock(packed: bytes) -> int:
    """The start timestamp of the transaction that holds the lock in ``packed``."""
    return int.from_bytes(packed[1:8], "big")


def wall_of_lock(packed: bytes) -> int:
    """When the lock in ``packed`` was written or refreshed, as in `Lock`."""
    return int.from_bytes(packed[8:16], "big")


def unpack_lock(packed: bytes) -> Lock:
    """The lock in ``packed``, without the value it carries."""
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
    """A row key as bytes; text is UTF-8.

    Raises TypeError for anything else, so that an int is never silently a key.
    """
    if isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return row.encode()
    raise TypeError(f"a row key is str or bytes, not {type(row).__name__}")
