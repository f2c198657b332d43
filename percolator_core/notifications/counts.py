"""Counts of runs by observer since the namespace was created, summed over all workers.

Each worker reports its new counts with its registration, every second or two, and at its end. The counts are
approximate: a request that is repeated after a lost reply counts twice. Not counted are the last second or
two of a killed worker, and runs in threads for which a stopped worker did not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Final, Protocol

from percolator_core.errors import PercolatorError

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.store import Store
    from percolator_core.store.packing import Command


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The counts of one observer's runs in all workers since the namespace was created.

    ``ran``: runs that committed. ``failed``: runs that raised. ``quarantined``: cells put into quarantine,
    including cells that were retried later. ``conflicts``: runs that were repeated after a conflict.
    """

    ran: int = 0
    failed: int = 0
    quarantined: int = 0
    conflicts: int = 0


_FIELDS: Final = tuple(field.name for field in fields(RunCounts))


class Counted(Protocol):
    """One observer's counts in one worker: `percolator_core.worker.ObserverCounts`."""

    ran: int
    failed: int
    quarantined: int
    conflicts: int


def run_counts(db: Database) -> dict[str, RunCounts]:
    """Return the counts of each observer that a worker has reported. Raises StoreUnavailable."""
    flat = db.store.one((b"HGETALL", db.store.keyspace.counts))
    found: dict[str, RunCounts] = {}
    for packed, number in zip(flat[0::2], flat[1::2], strict=True):
        field, _, name = packed.decode().partition(":")
        if field in _FIELDS:
            found[name] = replace(found.get(name, RunCounts()), **{field: int(number)})
    return dict(sorted(found.items()))


def forget_counts(db: Database, observers: Iterable[str]) -> None:
    """Remove the counts of observers that do not exist any more."""
    names = [f"{field}:{name}" for name in observers for field in _FIELDS]
    db.store.one((b"HDEL", db.store.keyspace.counts, *names))


class Tally:
    """The counts of one worker, and the part of them that it has reported to the store."""

    def __init__(self, store: Store, counts: Mapping[str, Counted]) -> None:
        self._store = store
        self._counts = counts
        self._reported = dict.fromkeys(counts, RunCounts())

    def send_along(self, command: Command) -> None:
        """Send a command and the new counts. Raises StoreUnavailable: the next report repeats the counts."""
        before = self._reported
        now = {
            name: RunCounts(one.ran, one.failed, one.quarantined, one.conflicts)
            for name, one in self._counts.items()
        }
        # Set this before the request. If the task is cancelled while it waits for the reply, the request was
        # sent, and the next report must not repeat these counts.
        self._reported = now
        try:
            self._store.call(command, *_increments(self._store.keyspace.counts, before, now))
        except PercolatorError:
            self._reported = before
            raise


def _increments(key: bytes, before: Mapping[str, RunCounts], now: Mapping[str, RunCounts]) -> list[Command]:
    return [
        (b"HINCRBY", key, f"{field}:{name}", new - old)
        for name, counts in now.items()
        if counts != before[name]
        for field, old, new in zip(_FIELDS, astuple(before[name]), astuple(counts), strict=True)
        if new != old
    ]
