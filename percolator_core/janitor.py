"""Cleaning up: locks that dead clients left, and versions that no snapshot can see any more.

Both may run at any time, beside everything else and several at once, and may be stopped anywhere.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from percolator_core.client import Client
from percolator_core.errors import LockTimeout
from percolator_core.resolver import Resolver

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

    def locks(self, older_than: float | None = None, limit: int | None = None) -> Iterator[FoundLock]:
        """All locks, or those untouched for ``older_than`` seconds, oldest first in each tablet.

        ``limit`` is how many at most of each tablet.
        """
        for table, tag in self._tablets():
            ranges = [(b"-inf", b"+inf")]
            if older_than is not None:
                # By the clock of the server that wrote them. What lies ahead is from before it was set back.
                now = self._store.one(self._store.script("now", [tag]))
                ranges = [(b"-inf", b"(%d" % (now - int(older_than * 1e6))), (b"(%d" % now, b"+inf")]
            found = chain.from_iterable(self._locks_of(table, tag, *bounds) for bounds in ranges)
            yield from islice(found, limit)

    def resolve(self, older_than: float) -> ResolvedLocks:
        """Settle locks untouched for ``older_than`` seconds whose transactions are over or may be ended."""
        return self._resolve(self.locks(older_than))

    def collect(self, keep: float, grace: float = TOMBSTONE_GRACE) -> Collected:
        """Drop versions that only snapshots older than ``keep`` seconds, and no pinned ones, could see.

        Raises:
            LockTimeout: a transaction older than that is still committing; nothing was dropped, try again
            later.
        """
        client = self._client
        now = client.oracle.timestamp()
        safe = max(1, min([now - int(keep * 1e6), *(at - 1 for at in self._pins())]))
        # First no new lock can appear at or below the safe point, then the old ones go, then the versions: a
        # lock that is still there is judged by versions that must not be gone.
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
        for _, tag in self._tablets():
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
            entry = flat[position]
            start_ts, length = _LOCK_INDEX_ENTRY.unpack_from(entry)
            column, row = entry[_LOCK_INDEX_ENTRY.size :][:length], entry[_LOCK_INDEX_ENTRY.size + length :]
            fields = (b"l" + column, b"n" + start_ts.to_bytes(8, "big") + column)
            for packed in self._store.one((b"HMGET", tag + b"r:" + row, *fields)):
                if packed is not None and int.from_bytes(packed[1:8], "big") == start_ts:
                    yield FoundLock(table, tag, row, column, start_ts, int(float(flat[position + 1])), packed)

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
