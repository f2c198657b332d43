"""One function for each script: it builds the call, and says how the reply is decoded.

Nothing else knows the order of a script's arguments. A function has its script's name. Its parameters have
the names of the keys and arguments in the script's header, which explains them. `Store.run` executes a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain as flattened
from typing import Any, Literal, TypeAlias, TypeVar

from percolator_core.scripts import replies

T = TypeVar("T")

Mode: TypeAlias = Literal["strong", "weak"]
Direction: TypeAlias = Literal["forward", "backward"]
Fencing: TypeAlias = Literal["raise", "found", "mend"]

Role: TypeAlias = Literal["both", "primary", "secondaries"]
"""The part of a transaction that a call covers: all of it, the part with the primary, or another part."""


Call: TypeAlias = tuple[str, Sequence[bytes], Sequence[bytes | str | int], Callable[[Any], T]]
"""A call of a script: its name, keys and arguments, and the function that decodes its reply into a ``T``.

A plain tuple, because each commit and each step of a scan makes one.
"""


# The oracle and the catalog.


def timestamp(oracle: bytes, catalog: bytes, count: int) -> Call[replies.Timestamps]:
    """Request ``count`` timestamps."""
    return "timestamp", (oracle, catalog), (count,), replies.Timestamps._make


def recover_oracle(oracle: bytes, catalog: bytes, server: bytes, newest: bytes) -> Call[bool]:
    """Move the oracle ahead if the server has changed; return True if it has."""
    return "recover_oracle", (oracle, catalog), (server, newest), replies.RECOVERED.__getitem__


def advance(oracle: bytes, timestamp: int) -> Call[int]:
    """Move the oracle above a timestamp."""
    return "advance", (oracle,), (timestamp,), replies.as_it_is


def now(key: bytes) -> Call[int]:
    """Request the server's clock, in microseconds since 1970."""
    return "now", (key,), (), replies.as_it_is


def define_table(
    catalog: bytes, format_key: bytes, name: str, entry: str, data_format: str
) -> Call[replies.Defined]:
    """Add a table's entry to the catalog, unless it has one."""
    arguments = (name, entry, data_format)
    return "define_table", (catalog, format_key), arguments, lambda reply: replies.Defined(*reply)


def change_table(
    catalog: bytes, name: str, entry: bytes, replacement: str, *, numbered: bool
) -> Call[bytes | None]:
    """Replace or remove a table's entry; return the entry that the catalog then holds."""
    arguments = (name, entry, replacement, "numbered" if numbered else "")
    return "change_table", (catalog,), arguments, lambda reply: reply or None


def record_chain(chain: bytes, activation: int, fields: Mapping[str, str]) -> Call[bool]:
    """Write fields of the chain's record; return False if a later activation has begun."""
    return "record_chain", (chain,), (activation, *flattened(*fields.items())), replies.RECORDED.__getitem__


# One tablet of a table.


def fence(
    tag: bytes, version: int, safe_point: int, how: Fencing, fields: Sequence[bytes | str] = ()
) -> Call[bool]:
    """Give a tablet the version of its table; return True if it had an earlier one."""
    return "fence", (tag,), (version, safe_point, how, *fields), bool


def observe(  # noqa: PLR0917
    tag: bytes,
    how: Literal["replace", "add"],
    version: bytes,
    activation: int,
    retired: Sequence[str],
    columns: Sequence[bytes | str],
) -> Call[replies.Observed]:
    """Register a tablet's observers."""
    arguments = (how, version, activation, len(retired), *retired, *columns)
    return "observe", (tag,), arguments, bytes.decode  # type: ignore[return-value]


def raise_safe_point(tag: bytes, safe_point: int) -> Call[int]:
    """Raise a tablet's safe point; return the safe point afterwards."""
    return "raise_safe_point", (tag,), (safe_point,), replies.as_it_is


def collect(
    tag: bytes, start: bytes, most_rows: int, safe_point: int, observers: Iterable[str]
) -> Call[replies.Collected]:
    """Collect garbage in some rows."""
    return "collect", (tag,), (start, most_rows, safe_point, *observers), replies.Collected._make


def cold(  # noqa: PLR0917
    tag: bytes, before: int, start: bytes, most_rows: int, most_bytes: int, observers: Iterable[str]
) -> Call[replies.ColdRows]:
    """Search some rows for those that may move to the base."""
    return "cold", (tag,), (before, start, most_rows, most_bytes, *observers), replies.ColdRows._make


def publish_base(
    tag: bytes, expected: bytes, manifest: bytes, timestamp: int, version: bytes
) -> Call[replies.Published]:
    """Make a manifest the valid one of a tablet."""
    arguments = (expected, manifest, timestamp, version)
    return "publish_base", (tag,), arguments, bytes.decode  # type: ignore[return-value]


def evict(  # noqa: PLR0917
    tag: bytes, base: bytes, version: bytes, before: int, stamp: bytes, observers: list[str], rows: list[Any]
) -> Call[replies.Evicted | None]:
    """Remove cells of rows that the base has; return None if the base has changed."""
    arguments = (base, version, before, stamp, len(observers), *observers, *rows)
    return "evict", (tag,), arguments, replies.evicted


def restore(tag: bytes, manifest: bytes, version: bytes, rows: Iterable[Any]) -> Call[replies.Restored]:
    """Put cells of the base back into the store."""
    return "restore", (tag,), (manifest, version, *rows), bytes.decode  # type: ignore[return-value]


def leave_base(tag: bytes, manifest: bytes, version: bytes, safe_point: int) -> Call[replies.Left]:
    """Remove a tablet's base."""
    return "leave_base", (tag,), (manifest, version, safe_point), bytes.decode  # type: ignore[return-value]


def lease_base(tag: bytes, owner: str, milliseconds: int) -> Call[bool]:
    """Take, renew or end a maintainer's lease of a base; return False if another owner has the lease."""
    return "lease_base", (tag,), (owner, milliseconds), bool


def weigh(tag: bytes, observers: Sequence[str], places: Iterable[int]) -> Call[replies.Weighed]:
    """Estimate the memory of a sample of a tablet's rows."""
    return "weigh", (tag,), (len(observers), *observers, *places), replies.weighed


def sweep(
    tag: bytes, version: int, start: bytes, most_rows: int, columns: Iterable[bytes]
) -> Call[bytes | None]:
    """Remove the cells of dropped columns from some rows.

    Return the bound to go on from, empty at the end; None if the tablet has another version.
    """
    return "sweep", (tag,), (version, start, most_rows, *columns), replies.swept


def drop_table(tag: bytes, version: int, most_rows: int, observers: Iterable[str]) -> Call[int]:
    """Remove some rows of a dropped table; return how many, 0 if the tablet is gone."""
    return "drop_table", (tag,), (version, most_rows, *observers), replies.as_it_is


def sync(tag: bytes) -> Call[None]:
    """Write a key that expires at once, so that WAIT and WAITAOF have a write to wait for."""
    return "sync", (tag,), (), lambda _: None


# Transactions. ``cells`` is one list: for each cell its tag's number (from 1), row, column, kind, [value].


def prewrite(  # noqa: PLR0917
    tags: Sequence[bytes],
    oracle: Sequence[bytes],
    role: Role,
    start_ts: int,
    cells: Sequence[bytes],
    lock: Sequence[bytes | str | int],
    versions: bytes,
) -> Call[replies.Prewritten]:
    """Prewrite cells, and commit them if ``role`` is "both"."""
    return "prewrite", (*tags, *oracle), (role, start_ts, *cells, *lock, versions), _prewritten


def _prewritten(reply: list[Any]) -> replies.Prewritten:
    """Decode the reply of prewrite.lua."""
    if reply[0] == b"committed":
        return "committed", reply[1], 0, None
    outcome: replies.Outcome = reply[0].decode()
    return outcome, 0, reply[1] if len(reply) > 1 else 0, reply[2] if len(reply) > 2 else None


def commit(  # noqa: PLR0917
    tags: Sequence[bytes],
    oracle: Sequence[bytes],
    role: Literal["primary", "secondaries"],
    start_ts: int,
    commit_ts: int,
    cells: Sequence[bytes | int],
) -> Call[replies.Committed]:
    """Commit cells that were prewritten."""
    return "commit", (*tags, *oracle), (role, start_ts, commit_ts, *cells), replies.committed


def rollback(tags: Sequence[bytes], start_ts: int, cells: Sequence[bytes | int]) -> Call[int]:
    """Remove a transaction's locks; return how many were removed."""
    return "rollback", tags, (start_ts, *cells), replies.as_it_is


def notify(tags: Sequence[bytes], cells: Sequence[bytes | int], versions: bytes) -> Call[bool]:
    """Set weak marks; return False if a table has another version."""
    return "notify", tags, (*cells, versions), replies.NOTIFIED.__getitem__


def refresh(tag: bytes, start_ts: int, row: bytes, column: bytes) -> Call[bool]:
    """Renew the wall time of a primary lock; return False if the lock is gone."""
    return "refresh", (tag,), (start_ts, row, column), replies.REFRESHED.__getitem__


def resolve_primary(  # noqa: PLR0917
    tag: bytes,
    start_ts: int,
    row: bytes,
    column: bytes,
    owner: Literal["dead", "alive"],
    wall: int,
    ttl_ms: int,
) -> Call[replies.Fate]:
    """Decide a transaction's fate at its primary."""
    return "resolve_primary", (tag,), (start_ts, row, column, owner, wall, ttl_ms), replies.fate


def held(
    tag: bytes,
    cursor: bytes = b"0",
    most: int = 0,
    untouched: int | None = None,
    entries: Sequence[bytes] = (),
) -> Call[replies.Held]:
    """Read locks: those of ``entries`` of the lock index, or without ``entries``, those that a step finds."""
    arguments = (cursor, most, b"" if untouched is None else untouched, *entries)
    return "held", (tag,), arguments, replies.Held._make


# Reads at a timestamp.


def read(tag: bytes, at: int, row: bytes, columns: Iterable[bytes]) -> Call[replies.ReadCells | None]:
    """Read cells of a row; None if the timestamp is too old."""
    return "read", (tag,), (at, row, *columns), replies.read_cells


def history(
    tag: bytes, row: bytes, column: bytes, most_versions: int, most_bytes: int = -1
) -> Call[list[bytes]]:
    """Read the packed versions of a cell, newest first, each cut to ``most_bytes``; -1 does not cut."""
    return "history", (tag,), (row, column, most_versions, most_bytes), replies.as_it_is


def scan(  # noqa: PLR0917
    tag: bytes,
    at: int,
    start: bytes,
    stop: bytes,
    most_rows: int,
    most_bytes: int,
    direction: Direction,
    most_of_each: int,
    columns: Iterable[bytes],
) -> Call[replies.Scanned | None]:
    """Scan some rows; None if the timestamp is too old."""
    arguments = (at, start, stop, most_rows, most_bytes, direction, most_of_each, *columns)
    return "scan", (tag,), arguments, replies.scanned


def select(  # noqa: PLR0917
    tag: bytes,
    at: int,
    start: bytes,
    stop: bytes,
    direction: Direction,
    most_rows: int,
    most_looked_at: int,
    most_bytes: int,
    solid: int,
    columns: Sequence[bytes],
    predicate: Sequence[bytes | int],
) -> Call[replies.Selected | replies.Based | None]:
    """Select some rows; None if the timestamp is too old."""
    bounds = (at, start, stop, direction, most_rows, most_looked_at, most_bytes)
    return "select", (tag,), (*bounds, solid, len(columns), *columns, *predicate), replies.selected


def changes(  # noqa: PLR0917
    tag: bytes,
    since: int,
    at: int,
    start: bytes,
    stop: bytes,
    most_rows: int,
    most_bytes: int,
    columns: Iterable[bytes],
) -> Call[replies.Changed | None]:
    """Find the rows that changed; None if a timestamp is too old."""
    bounds = (since, at, start, stop, most_rows, most_bytes)
    return "changes", (tag,), (*bounds, *columns), replies.changed_rows


def cells(  # noqa: PLR0917
    tag: bytes, since: int, at: int, start: bytes, most_rows: int, most_bytes: int
) -> Call[replies.Cells | None]:
    """Read the versions of some rows that a snapshot sees; None if a timestamp is too old."""
    return "cells", (tag,), (since, at, start, most_rows, most_bytes), replies.cells


def write_cells(tag: bytes, version: bytes, rows: Sequence[bytes | int]) -> Call[replies.Written]:
    """Write cells with given versions."""
    return "write_cells", (tag,), (version, *rows), bytes.decode  # type: ignore[return-value]


# Dirty cells.


def claim(
    tags: Sequence[bytes], most: int, lease_ms: int, horizon_ms: int, groups: Sequence[str | int]
) -> Call[replies.Claimed]:
    """Lease dirty cells. A group has: number of tags, number of observers, name, limit and wait of each."""
    return "claim", tags, (most, lease_ms, horizon_ms, *groups), replies.claimed


def renew(tag: bytes, leases: Sequence[bytes | str | int]) -> Call[int]:
    """Extend leases, each given as observer, row, column, deadline, new deadline; return how many."""
    return "renew", (tag,), leases, replies.as_it_is


def clear(tag: bytes, observer: str, mode: Mode, start_ts: int, cells: Sequence[bytes | int]) -> Call[int]:
    """Remove dirty marks after a run, each given as row, column, deadline, before; return how many."""
    return "clear", (tag,), (observer, mode, start_ts, *cells), replies.as_it_is


def postpone(  # noqa: PLR0917
    tag: bytes,
    observer: str,
    row: bytes,
    column: bytes,
    delay_ms: int,
    attempt: Literal["failed", "unharmed"],
    deadline: int,
    before: int,
) -> Call[int]:
    """Give a leased cell back; return the number of its failed attempts."""
    return "postpone", (tag,), (observer, row, column, delay_ms, attempt, deadline, before), replies.as_it_is


def quarantine(  # noqa: PLR0917
    tag: bytes,
    observer: str,
    mode: Mode,
    row: bytes,
    column: bytes,
    deadline: int,
    before: int,
    start_ts: int,
    record: str,
) -> Call[bool]:
    """Put a cell into quarantine; return False if its row has changed or another run processed it."""
    arguments = (observer, mode, row, column, deadline, before, start_ts, record)
    return "quarantine", (tag,), arguments, replies.QUARANTINED.__getitem__


def requeue(
    tag: bytes, observer: str, cursor: bytes, most: int, marks: Sequence[bytes] = ()
) -> Call[replies.Requeued]:
    """Make quarantined cells dirty again: ``marks``, or, if there are none, those that a step finds."""
    return "requeue", (tag,), (observer, cursor, most, *marks), replies.Requeued._make


def discard(tag: bytes, observer: str, records: Sequence[bytes | str]) -> Call[int]:
    """Remove cells from quarantine, each given as mark, SHA-1 of the record. Return how many it removed."""
    return "discard", (tag,), (observer, *records), replies.as_it_is


def mark(tag: bytes, observer: str, mode: Mode, column: bytes, rows: Sequence[bytes]) -> Call[int | None]:
    """Mark cells dirty; return how many were clean, None if the active chain has no such observer."""
    return "mark", (tag,), (observer, mode, column, *rows), replies.marked
