"""Whether there is something to do for a chain, and whether somebody does it: for whoever starts drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from percolator_core.admin.status import call, tags_of
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
    """How much waits for a chain's observers, and who is at it.

    ``backlog`` counts their dirty cells, ``due`` those that may be claimed now. ``oldest`` is for how many
    seconds the oldest of these could have been, None when there is none; 0 if that is not known since the
    clock was set back. ``workers`` of the namespace are alive and run until they are stopped; ``drains``,
    until nothing is left. ``unattended`` of the due cells are of observers that no worker of these takes.
    """

    backlog: int
    due: int
    oldest: float | None
    workers: int
    drains: int
    unattended: int


def demand(db: Database, chain: Chain) -> Demand:
    """Whether there is something to do for a chain, and whether somebody does it.

    Three round trips, and little more than one command a tablet and observer: cheap enough to be asked twice
    a second. Tables that are not there yet count as empty. Writes nothing.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    definitions = {definition.name: definition for definition in db.tables()}
    places = [
        (one.name, dirty_key(tag, one.name))
        for one in chain.observers.values()
        for tag in tags_of(db, definitions, {table for table, _ in one.observe})
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
    """The observers that continuous workers take; all while one with another set of observers is alive.

    No drain may start beside that one.
    """
    taken: set[str] = set()
    for worker in workers:
        if not worker.until_idle:
            partly = worker.observers is not None and worker.digest == chain.digest
            taken.update((worker.observers or ()) if partly else chain.observers)
    return taken
