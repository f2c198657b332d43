"""The demand for workers: the number of due cells of a chain, and the live workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from percolator_core.admin.status import call, observed_tablets
from percolator_core.database import Database
from percolator_core.layout.keys import dirty_key
from percolator_core.notifications.activation import (
    LiveWorker,
    liveness_commands,
    living,
    workers_command,
)
from percolator_core.notifications.dirty import horizon
from percolator_core.observers import Chain
from percolator_core.scripts import calls


@dataclass(frozen=True, slots=True)
class Demand:
    """The dirty cells of a chain's observers, and the live workers of the namespace.

    ``backlog`` counts the dirty cells, and ``due`` counts the dirty cells that can be claimed now. ``oldest``
    is the number of seconds for which the oldest due cell has been due. It is None if no cell is due, and 0
    if the clock was set back in between. ``workers`` counts the live workers that run until they are stopped.
    ``drains`` counts the live workers that run until no mark is left. ``unattended`` counts the due cells of
    those observers that none of the ``workers`` runs.
    """

    backlog: int
    due: int
    oldest: float | None
    workers: int
    drains: int
    unattended: int


def demand(db: Database, chain: Chain) -> Demand:
    """Count the due cells of a chain and the live workers.

    The call takes three round trips, with little more than one command for each tablet and observer. Two
    calls per second cost little. Missing tables count as empty. The call writes nothing.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    columns = {one.name: one.observe for one in chain.observers.values()}
    places = [
        (name, dirty_key(tag, name)) for name, tag in observed_tablets(db, db.catalog.tables(), columns)
    ]
    clock = db.store.command(calls.now(db.store.keyspace.oracle))
    now, registered, *sizes = call(db, [clock, workers_command(db), *[(b"ZCARD", key) for _, key in places]])
    ahead = horizon(max((one.retry.max_backoff for one in chain.observers.values()), default=0))
    asked = liveness_commands(db, registered)
    alive = len(asked)
    dirty = [place for place, size in zip(places, sizes, strict=True) if size]
    for _, key in dirty:
        asked += [
            (b"ZCOUNT", key, b"-inf", now),
            (b"ZCOUNT", key, b"(%d" % (now + ahead * 1000), b"+inf"),
            (b"ZRANGE", key, 0, 0, b"WITHSCORES"),
        ]
    replies = call(db, asked)
    found = living(registered, replies[:alive])
    due: Counter[str] = Counter()
    for (name, _), past, future in zip(dirty, replies[alive::3], replies[alive + 1 :: 3], strict=True):
        due[name] += past + future
    first = min((float(oldest[1]) for oldest in replies[alive + 2 :: 3] if oldest), default=now)
    drains = sum(worker.until_idle for worker in found)
    return Demand(
        backlog=sum(sizes),
        due=due.total(),
        oldest=max(0.0, (now - first) / 1e6) if due.total() else None,
        workers=len(found) - drains,
        drains=drains,
        unattended=due.total() - sum(due[name] for name in _attended(chain, found)),
    )


def _attended(chain: Chain, workers: Iterable[LiveWorker]) -> set[str]:
    """Return the observers that continuous workers run.

    While a worker of another chain is alive, all observers are returned, because no drain may start then.
    """
    taken: set[str] = set()
    for worker in workers:
        if not worker.until_idle:
            partly = worker.observers is not None and worker.digest == chain.digest
            taken.update((worker.observers or ()) if partly else chain.observers)
    return taken
