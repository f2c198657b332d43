"""Find the locks of a namespace, and resolve those that dead clients left."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import LockTimeout, UnknownColumn
from percolator_core.layout.keys import (
    EVERY_COLUMN,
    MARKER,
    acknowledgement,
    decode_lock_mark,
    decode_primary,
    encode_column,
    encode_lock_mark,
    locks_key,
)
from percolator_core.layout.records import start_of_lock, unpack_lock, wall_of_lock
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.scripts import calls
from percolator_core.transaction.client import Client
from percolator_core.transaction.lock_resolver import LockedCell, Resolver

_LOCKS_PER_STEP: Final = 500
"""One call reads about this many entries of a tablet's lock index; their locks are resolved together."""

_LOCKS_AT_ONCE: Final = 100
"""One call looks up at most this many entries. With the longest keys the reply has a few MiB."""

_TABLETS_AT_ONCE: Final = 1000

_ACKNOWLEDGES: Final = " acknowledges "
"""The text between observer and column in the displayed name of an acknowledgement."""

Part: TypeAlias = Iterable[tuple[str, int]]
"""Tablets, each as the table's name and the tablet's number."""

Outcome: TypeAlias = Literal["committed", "rolled back", "live", "gone"]
"""The outcome for a lock: rolled forward, rolled back, left to its live owner, or not found."""


@dataclass(frozen=True, slots=True)
class ResolvedLocks(ShownInNotebook):
    """The numbers of locks rolled forward, rolled back, and left to a live client."""

    committed: int = 0
    rolled_back: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True)
class FoundLock:
    """An entry of the lock index with its lock.

    ``wall`` (µs) is the time at which the lock was written or refreshed. ``packed`` is the lock without the
    value that it will write.
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
        """The locked cell, in the form that the lock resolver takes."""
        return self.row, self.column, self.packed


class Locks:
    """The locks of one namespace.

    Each call has a new resolver, because a resolver remembers the outcomes of transactions. If a failover
    comes before the next call, a transaction may have another outcome then.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.store = client.store

    def by_tablet(self, limit: int | None = None) -> Iterator[FoundLock]:
        """Yield the locks of each tablet, oldest first, at most ``limit`` a tablet; None means no limit."""
        for table, tag in self._occupied(self._client.catalog.tablets()):
            walls = self._entries(tag)
            oldest = sorted(walls, key=lambda entry: (walls[entry], entry))[:limit]
            for step in self._look_up([(table, tag, oldest)]):
                yield from step

    def oldest(self, limit: int) -> list[FoundLock]:
        """Return the ``limit`` oldest locks of all tablets, in a few round trips."""
        tablets = self._client.catalog.tablets()
        asked = [(b"ZRANGE", locks_key(tag), 0, limit - 1, b"WITHSCORES") for _, tag in tablets]
        entries = [
            (float(flat[position + 1]), flat[position], table, tag)
            for (table, tag), flat in zip(tablets, self.store.call_many(asked, _TABLETS_AT_ONCE), strict=True)
            for position in range(0, len(flat), 2)
        ]
        chosen: dict[tuple[str, bytes], list[bytes]] = {}
        for _, entry, table, tag in heapq.nsmallest(limit, entries):
            chosen.setdefault((table, tag), []).append(entry)
        steps = self._look_up([(*tablet, found) for tablet, found in chosen.items()])
        return sorted((lock for step in steps for lock in step), key=lambda lock: lock.wall)

    def resolve(self, older_than: float, part: Part | None = None) -> ResolvedLocks:
        """Resolve the locks that were not refreshed for ``older_than`` seconds. Raises as `tablets_of`."""
        tablets = self._client.catalog.tablets() if part is None else self.tablets_of(part)
        return self._resolve(self._steps(tablets, older_than))

    def resolve_one(self, table: str, row: bytes, column: str, start_ts: int) -> Outcome:
        """Resolve one lock unless its owner may still commit.

        ``column`` is the name of a column or an acknowledgement, as `Catalog.column_name` returns it.

        Raises:
            UnknownTable, UnknownColumn: the table or the column does not exist.
        """
        handle = self._client.catalog.table(table)
        tag = handle.tag(row)
        entries = [encode_lock_mark(start_ts, encoded, row) for encoded in _encodings(handle, column)]
        resolver = Resolver(self._client)
        outcome: Outcome = "gone"
        for step in self._look_up([(table, tag, entries)]):
            for fate in resolver.resolve_all(tag, [lock.cell for lock in step]):
                outcome = fate.state
        return outcome

    def settle(
        self,
        wanted: Callable[[FoundLock], bool],
        tablets: Sequence[tuple[str, bytes]] | None = None,
        remedy: str = "try again later",
    ) -> ResolvedLocks:
        """Resolve all locks for which ``wanted`` returns True, and wait until no such lock is live.

        ``tablets`` are pairs of table and tag; None means all tablets.

        Raises:
            LockTimeout: some locks are live after `Timeouts.lock_wait`; the message ends with ``remedy``.
        """
        deadline = time.monotonic() + self._client.timeouts.lock_wait
        committed = rolled_back = 0
        while True:
            steps = self._steps(self._client.catalog.tablets() if tablets is None else tablets)
            found = self._resolve([lock for lock in step if wanted(lock)] for step in steps)
            committed += found.committed
            rolled_back += found.rolled_back
            if not found.live:
                return ResolvedLocks(committed, rolled_back)
            if time.monotonic() > deadline:
                raise LockTimeout(f"{found.live} locks of earlier transactions are still live: {remedy}")
            self.store.sleep(0.05)

    def settle_table(self, table: str, tags: Sequence[bytes], upto: int, *, primaries: bool) -> None:
        """In one table, resolve the locks of transactions that began at ``upto`` or before, as `settle` does.

        With ``primaries``, also resolve the locks in other tables that have their primary lock in this table.
        """
        self.settle(lambda lock: lock.start_ts <= upto, [(table, tag) for tag in tags])
        if primaries:
            own = set(tags)
            self.settle(
                lambda lock: (
                    lock.start_ts <= upto and decode_primary(unpack_lock(lock.packed).primary).tag in own
                )
            )

    def tablets_of(self, part: Part) -> list[tuple[str, bytes]]:
        """Return the table and the tag of each tablet in ``part``, in the same order, without duplicates.

        Raises:
            UnknownTable, ValueError: a table or tablet does not exist.
        """
        found = []
        for table, number in dict.fromkeys((table, number) for table, number in part):
            tags = self._client.catalog.table(table).tags
            if not 0 <= number < len(tags):
                raise ValueError(
                    f"the table {table!r} has {len(tags)} tablets, numbered from 0: no tablet {number} exists"
                )
            found.append((table, tags[number]))
        return found

    def _occupied(self, tablets: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Return the tablets that have locks."""
        places = list(tablets)
        asked = [(b"ZCARD", locks_key(tag)) for _, tag in places]
        counts = self.store.call_many(asked, _TABLETS_AT_ONCE)
        return [place for place, count in zip(places, counts, strict=True) if count]

    def _entries(self, tag: bytes) -> dict[bytes, float]:
        """Return the entries of a tablet's lock index with their wall times."""
        found: dict[bytes, float] = {}
        cursor: bytes = b"0"
        while True:
            cursor, flat = self.store.one((b"ZSCAN", locks_key(tag), cursor, b"COUNT", _LOCKS_PER_STEP))
            found |= zip(flat[::2], map(float, flat[1::2]), strict=True)
            if cursor == b"0":
                return found

    def _steps(
        self, tablets: Iterable[tuple[str, bytes]], older_than: float | None = None
    ) -> Iterator[list[FoundLock]]:
        """Yield all locks, or those not refreshed for ``older_than`` seconds, in bounded steps of one tablet.

        The order is arbitrary, and a lock may be yielded twice. A lock that exists during the whole iteration
        is always yielded, even if other locks are added, removed and refreshed. An iteration by rank or score
        could miss such a lock. The caller may resolve the locks of a step before the next step.
        """
        untouched = None if older_than is None else int(older_than * 1e6)
        for table, tag in self._occupied(tablets):
            cursor: bytes = b"0"
            while True:
                step = calls.held(tag, cursor=cursor, most=_LOCKS_PER_STEP, untouched=untouched)
                cursor, entries, lists = self.store.run(step)
                yield _found(table, tag, entries, lists)
                yield from self._look_up([(table, tag, entries[len(lists) :])])
                if cursor == b"0":
                    break

    def _look_up(self, asked: Iterable[tuple[str, bytes, Sequence[bytes]]]) -> Iterator[list[FoundLock]]:
        """Yield the locks of entries of the lock index, in bounded steps of one tablet."""
        left = [one for one in asked if one[2]]
        while left:
            steps = [calls.held(tag, entries=entries[:_LOCKS_AT_ONCE]) for _, tag, entries in left]
            rest = []
            found = self.store.run_all(steps, together=_LOCKS_AT_ONCE)
            for (table, tag, entries), (_, _, lists) in zip(left, found, strict=True):
                yield _found(table, tag, entries, lists)
                if len(lists) < len(entries):
                    rest.append((table, tag, entries[len(lists) :]))
            left = rest

    def _resolve(self, steps: Iterable[Sequence[FoundLock]]) -> ResolvedLocks:
        """Resolve the locks of each step together; a step has locks of one tablet."""
        resolver = Resolver(self._client)
        counts = {"committed": 0, "rolled back": 0}
        living: set[int] = set()
        # Cell, kind and transaction identify a lock, even if it was refreshed between two steps.
        live: set[tuple[bytes, bytes, bytes, bytes]] = set()
        for step in steps:
            asked = [lock for lock in step if lock.start_ts not in living]
            if asked:
                fates = resolver.resolve_all(asked[0].tag, [lock.cell for lock in asked])
                for lock, fate in zip(asked, fates, strict=True):
                    if fate.state == "live":
                        living.add(lock.start_ts)
                    else:
                        counts[fate.state] += 1
            live.update(
                (lock.tag, lock.row, lock.column, lock.packed[:8]) for lock in step if lock.start_ts in living
            )
        return ResolvedLocks(counts["committed"], counts["rolled back"], len(live))


def _encodings(handle: TableHandle, column: str) -> list[bytes]:
    """Return the names in the store that `TableHandle.decode` turns into ``column``. Raises UnknownColumn."""
    if column == EVERY_COLUMN and not handle.is_typed:
        return [MARKER, encode_column(column)]  # a column of a raw table may have this name
    found = []
    observer, word, observed = column.partition(_ACKNOWLEDGES)
    if word:
        # The name of a raw table's column may look like that of an acknowledgement.
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
    """Return each lock that still belongs to the transaction of its entry in the lock index."""
    found = []
    for entry, held in zip(entries, lists, strict=False):
        start_ts, column, row = decode_lock_mark(entry)
        found += [
            FoundLock(table, tag, row, column, start_ts, wall_of_lock(packed), packed)
            for packed in held
            if start_of_lock(packed) == start_ts
        ]
    return found
