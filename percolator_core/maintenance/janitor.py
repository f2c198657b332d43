"""Cleaning up: locks that dead clients left, and versions that no snapshot can see any more.

Both may run at any time, beside everything else and several at once, and may be stopped anywhere.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from percolator_core.errors import LockTimeout, UnknownColumn
from percolator_core.layout.keys import acknowledgement, decode_lock_mark, encode_lock_mark
from percolator_core.layout.records import start_of_lock, wall_of_lock
from percolator_core.scripts import calls
from percolator_core.transaction.client import Client
from percolator_core.transaction.lock_resolver import LockedCell, Resolver

if TYPE_CHECKING:
    from percolator_core.catalog.catalog import TableHandle

_ROWS_PER_STEP: Final = 200
"""Rows of a tablet that one call collects: a script holds up everybody."""

_LOCKS_PER_STEP: Final = 500
"""Entries of a tablet's lock index that one call walks, and locks that are settled together."""

_LOCKS_AT_ONCE: Final = 100
"""Entries that one call is given to look up: with keys as long as they may be it stays a few MiB."""

_TABLETS_AT_ONCE: Final = 1000
"""Tablets, or pins, that are asked about in one batch, each for little."""

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

    ``wall`` (µs) is when it was written or refreshed, ``packed`` the lock itself but for the value that it
    is to write.
    """

    table: str
    tag: bytes
    row: bytes
    column: bytes
    start_ts: int
    wall: int
    packed: bytes

    @property
    def cell(self) -> LockedCell:
        """As the resolver takes it."""
        return self.row, self.column, self.packed


class Janitor:
    """Cleans one namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store = client.store
        self._resolver = Resolver(client)

    def locks(self, limit: int | None = None) -> Iterator[FoundLock]:
        """All locks, oldest first in each tablet; ``limit`` is how many at most of each, None for all."""
        for table, tag in self._occupied(self._tablets()):
            walls = self._entries(tag)
            oldest = sorted(walls, key=lambda entry: (walls[entry], entry))[:limit]
            for step in self._look_up([(table, tag, oldest)]):
                yield from step

    def oldest(self, limit: int) -> list[FoundLock]:
        """The ``limit`` oldest locks of all tablets, in a few round trips however many there are."""
        tablets = list(self._tablets())
        asked = [(b"ZRANGE", tag + b"locks", 0, limit - 1, b"WITHSCORES") for _, tag in tablets]
        entries = [
            (float(flat[position + 1]), flat[position], table, tag)
            for (table, tag), flat in zip(
                tablets, self._store.call_many(asked, _TABLETS_AT_ONCE), strict=True
            )
            for position in range(0, len(flat), 2)
        ]
        chosen: dict[tuple[str, bytes], list[bytes]] = {}
        for _, entry, table, tag in heapq.nsmallest(limit, entries):
            chosen.setdefault((table, tag), []).append(entry)
        steps = self._look_up([(*place, found) for place, found in chosen.items()])
        return sorted((lock for step in steps for lock in step), key=lambda lock: lock.wall)

    def resolve(self, older_than: float, part: Part | None = None) -> ResolvedLocks:
        """Settle locks untouched for ``older_than`` seconds whose transactions are over or may be ended.

        Raises:
            UnknownTable, ValueError: there is no such table or tablet as ``part`` names.
        """
        return self._resolve(self._steps(self._tablets() if part is None else self._places(part), older_than))

    def resolve_one(self, table: str, row: bytes, column: str, start_ts: int) -> Outcome:
        """Settle one lock, by the rules for all: one whose owner may still commit is left alone.

        ``column`` is as `Catalog.column_name` has it, an acknowledgement in words.

        Raises:
            UnknownTable, UnknownColumn: there is none such.
        """
        handle = self._client.catalog.table(table)
        tag = handle.tag(row)
        entries = [encode_lock_mark(start_ts, encoded, row) for encoded in _encoded(handle, column)]
        outcome: Outcome = "gone"
        for step in self._look_up([(table, tag, entries)]):
            for fate in self._resolver.resolve_all(tag, [lock.cell for lock in step]):
                outcome = fate.state
        return outcome

    def collect(self, keep: float, part: Part | None = None) -> Collected:
        """Drop versions that only snapshots older than ``keep`` seconds, and no pinned ones, could see.

        ``part`` names the tablets in which versions are dropped, None for all. Whatever it names, the safe
        point is raised and locks are resolved in every tablet.

        Raises:
            LockTimeout: a transaction older than that is still committing. No version was dropped, but the
            safe point stands: snapshots below it are refused already. Collect again later.
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
        raised = [calls.raise_safe_point(tag, safe) for _, tag in self._tablets()]
        furthest = max([safe, *self._store.run_all(raised)])
        # Another collection may have gone further, in some of the tablets. What lies between is its business:
        # new locks may still appear there.
        locks = self._resolve_up_to(safe)
        self.raise_durably(safe)
        observers = sorted(client.active_observers())
        versions = rows = 0
        for _, tag in self._tablets() if chosen is None else chosen:
            bound: bytes = b"-"
            while bound:
                step = calls.collect(tag, bound, _ROWS_PER_STEP, safe, observers)
                bound, dropped, gone = self._store.run(step)
                versions += dropped
                rows += gone
        return Collected(furthest, versions, rows, locks)

    def raise_durably(self, safe: int = 0) -> None:
        """Raise the safe points of all tablets, and have replicas and disks what was written there before.

        Before data goes by which locks are judged: a failover must not bring back a lock that was resolved.
        A safe point of 0 raises none; it is written all the same, for replicas acknowledge only a write.

        Raises:
            StoreUnavailable: replicas or disks do not have it in time.
        """
        raised = [calls.raise_safe_point(tag, safe) for _, tag in self._tablets()]
        if raised:
            self._store.run_all(raised, durably=True)

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
            steps = self._steps(self._tablets() if tablets is None else tablets)
            found = self._resolve([lock for lock in step if wanted(lock)] for step in steps)
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
        for name, handle in sorted(self._client.catalog.refresh().items()):
            for tag in handle.tags:
                yield name, tag

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

    def _occupied(self, tablets: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Those of the tablets that have locks now."""
        places = list(tablets)
        asked = [(b"ZCARD", tag + b"locks") for _, tag in places]
        counts = self._store.call_many(asked, _TABLETS_AT_ONCE)
        return [place for place, count in zip(places, counts, strict=True) if count]

    def _entries(self, tag: bytes) -> dict[bytes, float]:
        """The entries of a tablet's lock index, and their wall times."""
        found: dict[bytes, float] = {}
        cursor: bytes = b"0"
        while True:
            cursor, flat = self._store.one((b"ZSCAN", tag + b"locks", cursor, b"COUNT", _LOCKS_PER_STEP))
            found |= zip(flat[::2], map(float, flat[1::2]), strict=True)
            if cursor == b"0":
                return found

    def _steps(
        self, tablets: Iterable[tuple[str, bytes]], older_than: float | None = None
    ) -> Iterator[list[FoundLock]]:
        """All locks, or those untouched for ``older_than`` seconds, a bounded number of one tablet at a time.

        They come in no order, some twice; none that is there all the time is left out, whatever moves: so
        the index is not walked by rank or score. The caller may settle a step before it takes the next.
        """
        untouched = None if older_than is None else int(older_than * 1e6)
        for table, tag in self._occupied(tablets):
            cursor: bytes = b"0"
            while True:
                step = calls.held(tag, cursor=cursor, most=_LOCKS_PER_STEP, untouched=untouched)
                cursor, entries, lists = self._store.run(step)
                yield _found(table, tag, entries, lists)
                yield from self._look_up([(table, tag, entries[len(lists) :])])
                if cursor == b"0":
                    break

    def _look_up(self, asked: Iterable[tuple[str, bytes, Sequence[bytes]]]) -> Iterator[list[FoundLock]]:
        """The locks of entries of the lock index, of each tablet in the order given, in bounded steps."""
        left = [one for one in asked if one[2]]
        while left:
            steps = [calls.held(tag, entries[:_LOCKS_AT_ONCE]) for _, tag, entries in left]
            rest = []
            found = self._store.run_all(steps, together=_LOCKS_AT_ONCE)
            for (table, tag, entries), (_, _, lists) in zip(left, found, strict=True):
                yield _found(table, tag, entries, lists)
                if len(lists) < len(entries):
                    rest.append((table, tag, entries[len(lists) :]))
            left = rest

    def _resolve(self, steps: Iterable[Sequence[FoundLock]]) -> ResolvedLocks:
        """Settle the locks of each step, which are of one tablet, together."""
        counts = {"committed": 0, "rolled back": 0}
        living: set[int] = set()
        # By cell, kind and transaction: the walk may come by a lock twice, and it may be refreshed meanwhile.
        live: set[tuple[bytes, bytes, bytes, bytes]] = set()
        for step in steps:
            asked = [lock for lock in step if lock.start_ts not in living]
            if asked:
                fates = self._resolver.resolve_all(asked[0].tag, [lock.cell for lock in asked])
                for lock, fate in zip(asked, fates, strict=True):
                    if fate.state == "live":
                        living.add(lock.start_ts)
                    else:
                        counts[fate.state] += 1
            live.update(
                (lock.tag, lock.row, lock.column, lock.packed[:8]) for lock in step if lock.start_ts in living
            )
        return ResolvedLocks(counts["committed"], counts["rolled back"], len(live))

    def _resolve_up_to(self, safe: int) -> ResolvedLocks:
        """Resolve every lock that began at or below the safe point; waits for live ones."""
        return self.settle(lambda lock: lock.start_ts <= safe, mend="collect later")

    def _pins(self) -> list[int]:
        """The timestamps of pinned snapshots whose owners are alive; forgets the others."""
        key = self._store.keyspace.pins
        flat = self._store.one((b"ZRANGE", key, 0, -1, b"WITHSCORES"))
        pins = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
        owners = sorted({pin.partition(b":")[0] for pin in pins})
        asked = [self._client.liveness(owner) for owner in owners]
        lives = dict(zip(owners, self._store.call_many(asked, _TABLETS_AT_ONCE), strict=True))
        dead = [pin for pin in pins if not lives[pin.partition(b":")[0]]]
        self._store.call_many([(b"ZREM", key, pin) for pin in dead], _TABLETS_AT_ONCE)
        return [int(at) for pin, at in pins.items() if pin not in set(dead)]


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


def _found(
    table: str, tag: bytes, entries: Sequence[bytes], lists: Sequence[Sequence[bytes]]
) -> list[FoundLock]:
    """Those of the locks that stand there for the entries' own transactions."""
    found = []
    for entry, held in zip(entries, lists, strict=False):
        start_ts, column, row = decode_lock_mark(entry)
        found += [
            FoundLock(table, tag, row, column, start_ts, wall_of_lock(packed), packed)
            for packed in held
            if start_of_lock(packed) == start_ts
        ]
    return found
