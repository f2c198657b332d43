"""What the observers of a namespace did since it began, in sums that all workers add to.

Each worker sends what has been added since it did so last: along with its registration, every second or two,
and when it ends. They are for people and schedulers, and nothing rests on them. A request that is sent again
because its reply got lost counts twice; of a worker that was killed the last second or two is missing, and so
is a run in a thread that nobody waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Final, Protocol

from percolator_core.errors import PercolatorError

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.store import Store
    from percolator_core.store.packing import Command


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What became of one observer's runs, of all workers since the namespace began.

    ``ran``: runs that committed. ``failed``: runs that raised. ``quarantined``: cells put aside, those that
    were put back since included. ``conflicts``: runs that lost against another transaction and were repeated.
    """

    ran: int = 0
    failed: int = 0
    quarantined: int = 0
    conflicts: int = 0


_WHATS: Final = tuple(field.name for field in fields(RunCounts))


class Counted(Protocol):
    """Has the numbers of one worker, which only grow: `percolator_core.worker.ObserverCounts`."""

    ran: int
    failed: int
    quarantined: int
    conflicts: int


def run_counts(db: Database) -> dict[str, RunCounts]:
    """What observers did, by name; without those of which no worker has told anything yet.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    flat = db.store.one((b"HGETALL", _counts_key(db.store)))
    found: dict[str, RunCounts] = {}
    for packed, number in zip(flat[0::2], flat[1::2], strict=True):
        what, _, name = packed.decode().partition(":")
        if what in _WHATS:
            found[name] = replace(found.get(name, RunCounts()), **{what: int(number)})
    return dict(sorted(found.items()))


class Tally:
    """What one worker has counted, and how much of that the store has been told."""

    def __init__(self, store: Store, counts: Mapping[str, Counted]) -> None:
        self._store = store
        self._counts = counts
        self._told = dict.fromkeys(counts, RunCounts())

    def send_along(self, command: Command) -> None:
        """Send a command, and in the same request what has been counted since the last one.

        Raises:
            StoreUnavailable: no answer; what it has not told is told the next time.
        """
        before, now = self._told, {name: _taken(counted) for name, counted in self._counts.items()}
        # Before the request, not after it: a task that is ended while it waits has sent it.
        self._told = now
        try:
            self._store.call(command, *_increments(_counts_key(self._store), before, now))
        except PercolatorError:
            self._told = before
            raise


def _taken(counted: Counted) -> RunCounts:
    return RunCounts(counted.ran, counted.failed, counted.quarantined, counted.conflicts)


def _increments(key: bytes, before: Mapping[str, RunCounts], now: Mapping[str, RunCounts]) -> list[Command]:
    return [
        (b"HINCRBY", key, f"{what}:{name}", new - old)
        for name, counts in now.items()
        if counts != before[name]
        for what, old, new in zip(_WHATS, astuple(before[name]), astuple(counts), strict=True)
        if new != old
    ]


def _counts_key(store: Store) -> bytes:
    return store.keyspace.counts
