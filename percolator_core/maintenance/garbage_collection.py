"""Garbage collection: remove the versions that no snapshot can read.

Several collections may run at the same time, beside all other clients, and each may stop at any point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from percolator_core.catalog.catalog import raise_safe_points
from percolator_core.maintenance.locks import Locks, Part, ResolvedLocks
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.scripts import calls
from percolator_core.transaction.client import Client

_ROWS_PER_STEP: Final = 200
"""One call collects at most this many rows of a tablet, because a script blocks all other clients."""

_PINS_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Collected(ShownInNotebook):
    """The result of a garbage collection.

    Snapshots below ``safe_point`` (microseconds) are refused from now on. ``versions`` and ``rows`` are the
    numbers of removed versions and rows.
    """

    safe_point: int
    versions: int
    rows: int
    locks: ResolvedLocks


class Settled(NamedTuple):
    """The state in which a collection may begin.

    No lock is left of a transaction that began at or before ``timestamp``. ``furthest`` is the highest safe
    point of the tablets ``tags``.
    """

    timestamp: int
    furthest: int
    tags: list[bytes]
    locks: ResolvedLocks


class GarbageCollector:
    """Collects the garbage of one namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.store = client.store
        self.locks = Locks(client)

    def collect(self, keep: float, part: Part | None = None) -> Collected:
        """Collect garbage as `percolator_core.Database.collect_garbage` does; ``keep`` is in seconds."""
        client = self._client
        chosen = None if part is None else [tag for _, tag in self.locks.tablets_of(part)]
        settled = self.settle(keep)
        observers = sorted(client.active_observers())
        versions = rows = 0
        for tag in settled.tags if chosen is None else chosen:
            bound = b"-"
            while bound:
                step = calls.collect(tag, bound, _ROWS_PER_STEP, settled.timestamp, observers)
                bound, dropped, gone = self.store.run(step)
                versions += dropped
                rows += gone
        return Collected(settled.furthest, versions, rows, settled.locks)

    def settle(self, keep: float) -> Settled:
        """Raise the safe points to ``keep`` seconds ago, but below each pinned snapshot; resolve older locks.

        Raises LockTimeout if an older transaction is still committing.
        """
        client = self._client
        now = client.oracle.timestamp()
        safe = max(1, min([now - int(keep * 1e6), *(at - 1 for at in self.pins())]))
        # The order matters: first prevent new locks at or below the safe point, then resolve old locks, then
        # remove versions. The first two steps concern all tablets, even if `collect` has a ``part``. The
        # versions of a primary decide about the locks of its transaction, which may be in any tablet. So no
        # part depends on the client of another part, which may have died or not begun.
        tags = [tag for _, tag in client.catalog.tablets()]
        furthest = max([safe, *raise_safe_points(self.store, tags, safe)])
        # Another collection may have raised the safe point of some tablets further. That collection resolves
        # the locks between our safe point and its own.
        locks = self.locks.settle(lambda lock: lock.start_ts <= safe, remedy="collect later")
        # The write is durable: a failover must not restore a resolved lock after the versions that decide
        # about the lock were removed.
        tags = [tag for _, tag in client.catalog.tablets()]
        raise_safe_points(self.store, tags, safe, durably=True)
        return Settled(safe, furthest, tags, locks)

    def pins(self) -> list[int]:
        """Return the timestamps of pinned snapshots whose owners are alive, and remove all other pins."""
        key = self.store.keyspace.pins
        flat = self.store.one((b"ZRANGE", key, 0, -1, b"WITHSCORES"))
        pins = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
        owners = sorted({pin.partition(b":")[0] for pin in pins})
        asked = [self._client.liveness(owner) for owner in owners]
        lives = dict(zip(owners, self.store.call_many(asked, _PINS_AT_ONCE), strict=True))
        dead = {pin for pin in pins if not lives[pin.partition(b":")[0]]}
        self.store.call_many([(b"ZREM", key, pin) for pin in sorted(dead)], _PINS_AT_ONCE)
        return [int(at) for pin, at in pins.items() if pin not in dead]
