"""Cleaning up: locks that dead clients left, and versions that no snapshot can see any more.

Both may run at any time, beside everything else and several at once, and may be stopped anywhere.
"""

from __future__ import annotations

import heapq
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from percolator_core.client import Client
from percolator_core.errors import LockTimeout, UnknownColumn
from percolator_core.keys import acknowledgement
from percolator_core.resolver import Resolver
from percolator_core.store.packing import Command

if TYPE_CHECKING:
    from percolator_core.catalog import TableHandle

TOMBSTONE_GRACE: Final = 600.0
"""Seconds for which a deletion is remembered at least.

Longer than `snapshot.FRESH`, during which a snapshot takes an absent cell for one that was never there.
"""

_ROWS_PER_STEP: Final = 200
"""Rows of a tablet that one call collects: a script holds up everybody."""

_LOCKS_PER_STEP: Final = 500
"""Entries of a tablet's lock index that one command brings."""

_LOCK_INDEX_ENTRY: Final = struct.Struct(">QH")
"""In front of an entry's column and row: the start timestamp, and the bytes of the column."""


_ACKNOWLEDGES: Final = " acknowledges "
"""Between observer and column in the name that people are given of an acknowledgement."""

Part: TypeAlias = Iterable[tuple[str, int]]
"""Tablets: each the name of its table and its number."""

Outcome: TypeAlias = Literal["committed", "rolled back", "live", "gone"]
"""What became of a lock: it was rolled forward, or back, is left to its owner, or is not there."""


@dataclass(frozen=True, slots=True)
class ResolvedLocks:
    """Locks rolled forward, rolled back, and left to a client that is alive."""

    committed: int = 0
    rolled_back: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """What garbage collection did.

    ``safe_point`` is in microseconds: snapshots below it are refused from now on.
    """

    safe_point: int
    versions: int
    rows: int
    locks: ResolvedLocks


@dataclass(frozen=True, slots=True)
class FoundLock:
    """A lock as the lock index shows it.

    ``wall`` (µs) is when it was written or refreshed, ``packed`` the lock itself.
    """

    table: str
    tag: bytes
    row: bytes
    column: bytes
    start_ts: int
    wall: int
    packed: bytes


class Janitor:
    """Cleans one namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store = client.store
        self._resolver = Resolver(client)

    def locks(
        self, older_than: float | None = None, limit: int | None = None, part: Part | None = None
    ) -> Iterator[FoundLock]:
        """All locks, or those untouched for ``older_than`` seconds, oldest first in each tablet.

        ``limit`` is how many at most of each tablet, ``part`` the tablets, None for all.
        """
        for table, tag in self._tablets() if part is None else self._places(part):
            ranges = [(b"-inf", b"+inf")]
            if older_than is not None:
                # By the clock of the server that wrote them. What lies ahead is from before it was set back.
                now = self._store.one(self._store.script("now", [tag]))
                ranges = [(b"-inf", b"(%d" % (now - int(older_than * 1e6))), (b"(%d" % now, b"+inf")]
            found = chain.from_iterable(self._locks_of(table, tag, *bounds) for bounds in ranges)
            yield from islice(found, limit)

    def oldest(self, limit: int) -> list[FoundLock]:
        """The ``limit`` oldest locks of all tablets, in a few round trips however many there are."""
        tablets = list(self._tablets())
        asked = [(b"ZRANGE", tag + b"locks", 0, limit - 1, b"WITHSCORES") for _, tag in tablets]
        entries = [
            (float(flat[position + 1]), flat[position], table, tag)
            for (table, tag), flat in zip(tablets, self._store.call_many(asked, 1000), strict=True)
            for position in range(0, len(flat), 2)
        ]
        chosen = [
            (int(wall), table, tag, *_unpack_entry(entry))
            for wall, entry, table, tag in heapq.nsmallest(limit, entries)
        ]
        # Without the values that they are to write: nobody looks at those.
        script = self._store.script
        found = self._store.call_many(
            [script("held", [tag], start_ts, row, column) for _, _, tag, start_ts, column, row in chosen], 100
        )
        return [
            FoundLock(table, tag, row, column, start_ts, wall, packed)
            for (wall, table, tag, start_ts, column, row), fields in zip(chosen, found, strict=True)
            for packed in _of_transaction(fields, start_ts)
        ]

    def resolve(self, older_than: float, part: Part | None = None) -> ResolvedLocks:
        """Settle locks untouched for ``older_than`` seconds whose transactions are over or may be ended.

        Raises:
            UnknownTable, ValueError: there is no such table or tablet as ``part`` names.
        """
        return self._resolve(self.locks(older_than, part=part))

    def resolve_one(self, table: str, row: bytes, column: str, start_ts: int) -> Outcome:
        """Settle one lock, by the rules for all: one whose owner may still commit is left alone.

        ``column`` is as `Catalog.column_name` has it, an acknowledgement in words.

        Raises:
            UnknownTable, UnknownColumn: there is none such.
        """
        handle = self._client.catalog.table(table)
        tag = handle.tag(row)
        outcome: Outcome = "gone"
        for encoded in _encoded(handle, column):
            for packed in self._held(tag, row, encoded, start_ts):
                outcome = self._resolver.resolve(tag, row, encoded, packed).state
        return outcome

    def collect(self, keep: float, grace: float = TOMBSTONE_GRACE, part: Part | None = None) -> Collected:
        """Drop versions that only snapshots older than ``keep`` seconds, and no pinned ones, could see.

        ``part`` names the tablets in which versions are dropped, None for all. Whatever it names, the safe
        point is raised and locks are resolved in every tablet.

        Raises:
            LockTimeout: a transaction older than that is still committing; nothing was dropped, try again
            later.
            UnknownTable, ValueError: there is no such table or tablet as ``part`` names.
        """
        client = self._client
        chosen = None if part is None else self._places(part)
        now = client.oracle.timestamp()
        safe = max(1, min([now - int(keep * 1e6), *(at - 1 for at in self._pins())]))
        # First no new lock can appear at or below the safe point, then the old ones go, then the versions: a
        # lock that is still there is judged by versions that must not be gone. In every tablet, also if only
        # a part drops versions: a lock and the cell that judges it may lie in any two. So each part is a
        # collection by itself, up to a safe point of its own, and rests on no other one, which may have died
        # or not have begun.
        raised = [self._store.script("raise_safe_point", [tag], safe) for _, tag in self._tablets()]
        furthest = max([safe, *self._store.call(*raised)])
        # Another collection may have gone further, in some of the tablets. What lies between is its business:
        # new locks may still appear there.
        locks = self._resolve_up_to(safe)
        # A failover must not bring back a lock that is judged by what goes now.
        self._store.call_durably(*raised)
        observers = sorted(client.active_observers())
        versions = rows = 0
        forget = now - int(grace * 1e6)
        for _, tag in self._tablets() if chosen is None else chosen:
            bound: bytes = b"-"
            while bound:
                step = self._store.script("collect", [tag], bound, _ROWS_PER_STEP, forget, safe, *observers)
                bound, dropped, gone = self._store.one(step)
                versions += dropped
                rows += gone
        return Collected(furthest, versions, rows, locks)

    def settle(
        self,
        wanted: Callable[[FoundLock], bool],
        tablets: Sequence[tuple[str, bytes]] | None = None,
        mend: str = "try again later",
    ) -> ResolvedLocks:
        """Resolve all locks of which ``wanted`` is true, of some tablets or of all; waits for live ones.

        A tablet is given by its table's name and its tag.

        Raises:
            LockTimeout: some are still live after `Timeouts.lock_wait`.
        """
        deadline = time.monotonic() + self._client.timeouts.lock_wait
        committed = rolled_back = 0
        while True:
            found = self._resolve(lock for lock in self._all_locks(tablets) if wanted(lock))
            committed += found.committed
            rolled_back += found.rolled_back
            if not found.live:
                return ResolvedLocks(committed, rolled_back)
            if time.monotonic() > deadline:
                raise LockTimeout(
                    f"{found.live} locks of transactions that began before are still live: {mend}"
                )
            self._store.sleep(0.05)

    def _tablets(self) -> Iterator[tuple[str, bytes]]:
        for definition in self._client.catalog.tables():
            for tag in self._client.catalog.table(definition.name).tags:
                yield definition.name, tag

    def _places(self, part: Part) -> list[tuple[str, bytes]]:
        """The tablets that a part names, each once, in its order.

        Raises:
            UnknownTable, ValueError: there is no such table or tablet.
        """
        found = []
        for table, number in dict.fromkeys((table, number) for table, number in part):
            tags = self._client.catalog.table(table).tags
            if not 0 <= number < len(tags):
                raise ValueError(
                    f"the table {table!r} has {len(tags)} tablets, numbered from 0: there is no {number}"
                )
            found.append((table, tags[number]))
        return found

    def _locks_of(self, table: str, tag: bytes, least: bytes, most: bytes) -> Iterator[FoundLock]:
        offset = 0
        while True:
            command = (b"ZRANGEBYSCORE", tag + b"locks", least, most, b"WITHSCORES")
            flat = self._store.one((*command, b"LIMIT", offset, _LOCKS_PER_STEP))
            yield from list(self._look_up(table, tag, flat))
            if len(flat) < 2 * _LOCKS_PER_STEP:
                break
            # The caller may have resolved some of them; the entries that are left are now at the front.
            left = self._store.call(*[(b"ZSCORE", tag + b"locks", entry) for entry in flat[::2]])
            offset += sum(1 for score in left if score is not None)

    def _all_locks(self, tablets: Sequence[tuple[str, bytes]] | None) -> Iterator[FoundLock]:
        """All locks, in no order, some twice; none that is there all the time is left out, whatever moves."""
        for table, tag in self._tablets() if tablets is None else tablets:
            cursor: bytes = b"0"
            while True:
                command = (b"ZSCAN", tag + b"locks", cursor, b"COUNT", _LOCKS_PER_STEP)
                cursor, flat = self._store.one(command)
                yield from list(self._look_up(table, tag, flat))
                if cursor == b"0":
                    break

    def _look_up(self, table: str, tag: bytes, flat: list[Any]) -> Iterator[FoundLock]:
        for position in range(0, len(flat), 2):
            start_ts, column, row = _unpack_entry(flat[position])
            for packed in self._held(tag, row, column, start_ts):
                yield FoundLock(table, tag, row, column, start_ts, int(float(flat[position + 1])), packed)

    def _held(self, tag: bytes, row: bytes, column: bytes, start_ts: int) -> list[bytes]:
        """What a transaction holds of a cell now: its lock, and its notification under way."""
        return _of_transaction(self._store.one(_held_of(tag, row, column, start_ts)), start_ts)

    def _resolve(self, locks: Iterator[FoundLock]) -> ResolvedLocks:
        counts = {"committed": 0, "rolled back": 0, "live": 0}
        for lock in locks:
            counts[self._resolver.resolve(lock.tag, lock.row, lock.column, lock.packed).state] += 1
        return ResolvedLocks(counts["committed"], counts["rolled back"], counts["live"])

    def _resolve_up_to(self, safe: int) -> ResolvedLocks:
        """Resolve every lock that began at or below the safe point; waits for live ones."""
        return self.settle(lambda lock: lock.start_ts <= safe, mend="collect later")

    def _pins(self) -> list[int]:
        """The timestamps of pinned snapshots whose owners are alive; forgets the others."""
        key = self._store.keyspace.pins
        flat = self._store.one((b"ZRANGE", key, 0, -1, b"WITHSCORES"))
        pinned = []
        for position in range(0, len(flat), 2):
            owner = flat[position].partition(b":")[0]
            if self._store.one((b"EXISTS", self._client.token_of(owner))):
                pinned.append(int(float(flat[position + 1])))
            else:
                self._store.one((b"ZREM", key, flat[position]))
        return pinned


def _encoded(handle: TableHandle, column: str) -> list[bytes]:
    """How a column may stand in the store that `TableHandle.decode` gives this name.

    Raises:
        UnknownColumn: the table has none of that name.
    """
    found = [handle.marker.encoded] if column == handle.marker.name else []
    observer, word, observed = column.partition(_ACKNOWLEDGES)
    if word:
        # The names of raw tables' columns are anybody's: it may be one of these, too.
        with suppress(UnknownColumn, ValueError):
            found.append(acknowledgement(observer, handle.encode(observed)))
    try:
        found.append(handle.encode(column))
    except UnknownColumn:
        if not found:
            raise
    return found


def _unpack_entry(entry: bytes) -> tuple[int, bytes, bytes]:
    """Start timestamp, column and row of an entry of the lock index."""
    start_ts, length = _LOCK_INDEX_ENTRY.unpack_from(entry)
    return start_ts, entry[_LOCK_INDEX_ENTRY.size :][:length], entry[_LOCK_INDEX_ENTRY.size + length :]


def _held_of(tag: bytes, row: bytes, column: bytes, start_ts: int) -> Command:
    """The command that brings what a transaction may hold of a cell."""
    return (b"HMGET", tag + b"r:" + row, b"l" + column, b"n" + start_ts.to_bytes(8, "big") + column)


def _of_transaction(fields: Sequence[bytes | None], start_ts: int) -> list[bytes]:
    """Those of the locks that are of that transaction."""
    return [
        packed for packed in fields if packed is not None and int.from_bytes(packed[1:8], "big") == start_ts
    ]
