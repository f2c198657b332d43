"""The state of a namespace, from counts in the store: no row is read.

>>> from percolator_core.admin.status import status
>>> now = status(db)
>>> now.idle, [(table.name, table.rows) for table in now.tables]
(True, [('documents', 12)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from percolator_core.admin.bases import BaseStatus, base_status
from percolator_core.database import Database
from percolator_core.layout.keys import (
    dirty_key,
    failed_key,
    locks_key,
    meta_key,
    rows_key,
    tablet_number,
)
from percolator_core.notifications.activation import LiveWorker, live_workers
from percolator_core.notifications.counts import RunCounts, run_counts
from percolator_core.observers import Chain
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.schema.definitions import TableDefinition
from percolator_core.store.eviction import refuse_eviction
from percolator_core.store.packing import Command

_BATCH: Final = 5_000
"""Commands that are sent together."""

Observed = Mapping[tuple[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table. ``rows`` counts the rows in the store, including deleted ones until garbage collection."""

    name: str
    tablets: int
    rows: int
    locks: int
    base: BaseStatus | None = None


@dataclass(frozen=True, slots=True)
class TabletStatus:
    """A tablet of a table. ``dirty`` and ``failed`` count the cells of all observers."""

    number: int
    rows: int
    locks: int
    dirty: int
    failed: int


@dataclass(frozen=True, slots=True)
class ObserverStatus:
    """An observer.

    ``backlog`` counts its dirty cells. ``waiting`` counts the dirty cells that cannot be claimed yet, because
    they are leased or wait for a retry. ``oldest`` is the number of seconds for which the oldest of the other
    dirty cells has been due, None if there is none. ``failed`` counts its cells in quarantine. ``active`` is
    True if writers set marks for the observer: the first worker of the chain activates it. ``revision`` is
    the revision of its code in the chain, None without a chain. ``ran`` and ``failures`` are the approximate
    numbers of all runs that committed and that raised an exception (`percolator_core.notifications.counts`).
    """

    name: str
    columns: tuple[str, ...]
    backlog: int
    waiting: int
    oldest: float | None
    failed: int
    active: bool
    revision: int | None = None
    ran: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The servers with data. Memory is summed up, in bytes; ``memory_limit`` is 0 if one has no limit."""

    url: str
    version: str
    memory: int
    memory_limit: int


@dataclass(frozen=True, slots=True)
class Status(ShownInNotebook):
    """The state of a namespace at the moment ``time``, in microseconds by the server's clock."""

    namespace: str
    time: int
    store: StoreStatus
    tables: tuple[TableStatus, ...]
    observers: tuple[ObserverStatus, ...]
    workers: tuple[LiveWorker, ...]

    @property
    def backlog(self) -> int:
        """Dirty cells of all observers."""
        return sum(observer.backlog for observer in self.observers)

    @property
    def failed(self) -> int:
        """Cells in quarantine."""
        return sum(observer.failed for observer in self.observers)

    @property
    def oldest(self) -> float | None:
        """Seconds for which the oldest due cell has waited, over all observers; None if no cell is due."""
        return max((one.oldest for one in self.observers if one.oldest is not None), default=None)

    @property
    def drains(self) -> int:
        """Live workers that end when no mark is left."""
        return sum(worker.until_idle for worker in self.workers)

    @property
    def continuous(self) -> int:
        """Live workers that run until they are stopped."""
        return len(self.workers) - self.drains

    @property
    def locks(self) -> int:
        """Locks in all tables. Running writers hold some of them for a short time."""
        return sum(table.locks for table in self.tables)

    @property
    def idle(self) -> bool:
        """True if no cell is dirty; a cell in quarantine is not dirty."""
        return self.backlog == 0


def status(db: Database, chain: Chain | None = None) -> Status:
    """Return the state of the namespace.

    The observers are those registered in the store and those of ``chain``. The cost depends on the number of
    tablets, not of rows: a few commands for each tablet, in few round trips.

    Raises:
        StoreUnavailable: the store does not answer, or one of its servers evicts keys or has done so.
    """
    definitions = db.tables()
    registered = _registered(db, definitions)
    info = db.store.all_server_info()
    for one in info:  # in a cluster, also servers to which this client has no connection
        refuse_eviction(one, db.url)
    limits = [one.maxmemory for one in info]
    memory = sum(one.used_memory for one in info)
    now = db.store.now()
    return Status(
        namespace=db.namespace,
        time=now,
        store=StoreStatus(db.url, info[0].version, memory, sum(limits) if all(limits) else 0),
        tables=_tables(db, definitions),
        observers=_observers(db, definitions, registered, chain, now),
        workers=tuple(live_workers(db)),
    )


def backlog(db: Database, chain: Chain) -> dict[str, int]:
    """Return the number of dirty cells by observer. An observer is counted after the observers that wake it.

    A run sets new marks before its own mark is cleared. So, because of the order of the counts, a chain
    without cycles is idle if all numbers are 0.
    """
    columns = {one.name: one.observe for generation in chain.order() for one in generation}
    asked = observed_tablets(db, db.catalog.tables(), columns)
    counts = dict.fromkeys(columns, 0)
    sizes = call(db, [(b"ZCARD", dirty_key(tag, name)) for name, tag in asked])
    for (name, _), size in zip(asked, sizes, strict=True):
        counts[name] += size
    return counts


def tablets(db: Database, table: str, chain: Chain | None = None) -> list[TabletStatus]:
    """Return the rows, locks and cells of each tablet of a table, to see if they are spread evenly.

    The observers are those registered in the store and those of ``chain``.

    Raises:
        UnknownTable: there is no such table.
        StoreUnavailable: the store does not answer.
    """
    handle = db.catalog.table(table)
    observed = _merged(_registered(db, [handle.definition]), chain)
    names = sorted({name for (of, _), names in observed.items() if of == table for name in names})
    commands: list[Command] = []
    for tag in handle.tags:
        commands += [(b"ZCARD", rows_key(tag)), (b"ZCARD", locks_key(tag))]
        commands += [(b"ZCARD", dirty_key(tag, name)) for name in names]
        commands += [(b"HLEN", failed_key(tag, name)) for name in names]
    replies, each = iter(call(db, commands)), len(names)
    return [
        TabletStatus(
            number=tablet_number(tag),
            rows=next(replies),
            locks=next(replies),
            dirty=sum(islice(replies, each)),
            failed=sum(islice(replies, each)),
        )
        for tag in handle.tags
    ]


def observed_tablets(
    db: Database,
    definitions: Iterable[TableDefinition],
    columns: Mapping[str, Iterable[tuple[str, str]]],
) -> list[tuple[str, bytes]]:
    """Return each observer with the tags of its tablets; ``columns`` has (table, column) by observer.

    Tables that do not exist are left out.
    """
    existing = {definition.name for definition in definitions}
    return [
        (name, tag)
        for name, observed in columns.items()
        for table in sorted({table for table, _ in observed} & existing)
        for tag in db.catalog.table(table).tags
    ]


def call(db: Database, commands: Sequence[Command]) -> list[Any]:
    """Send any number of commands in batches, and return the replies."""
    return db.store.call_many(commands, _BATCH)


def _merged(registered: Observed, chain: Chain | None) -> dict[tuple[str, str], tuple[str, ...]]:
    merged: dict[tuple[str, str], set[str]] = {}
    for part in (registered, {} if chain is None else chain.observed):
        for column, names in part.items():
            merged.setdefault(column, set()).update(names)
    return {column: tuple(sorted(names)) for column, names in sorted(merged.items())}


def _registered(
    db: Database, definitions: Sequence[TableDefinition]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the observers for which writers set marks, by column (`Chain.create_tables` registers them)."""
    # All tablets of a table have the same observers, so the first tablet is enough.
    metas = call(db, [(b"HGETALL", meta_key(db.catalog.table(one.name).tags[0])) for one in definitions])
    found = {}
    for definition, flat in zip(definitions, metas, strict=True):
        for field, names in zip(flat[0::2], flat[1::2], strict=True):
            if field.startswith(b"o"):
                column = definition.name, db.catalog.column_name(definition.name, field[1:])
                found[column] = tuple(names.decode().split(","))
    return found


def _tables(db: Database, definitions: Sequence[TableDefinition]) -> tuple[TableStatus, ...]:
    tags = [(one, tag) for one in definitions for tag in db.catalog.table(one.name).tags]
    counts = call(db, [(b"ZCARD", key(tag)) for _, tag in tags for key in (rows_key, locks_key)])
    rows, locked = dict.fromkeys(definitions, 0), dict.fromkeys(definitions, 0)
    for (one, _), row_count, lock_count in zip(tags, counts[0::2], counts[1::2], strict=True):
        rows[one] += row_count
        locked[one] += lock_count
    return tuple(
        TableStatus(one.name, one.tablets, rows[one], locked[one], base_status(db, one))
        for one in definitions
    )


def _observers(
    db: Database,
    definitions: Sequence[TableDefinition],
    registered: Observed,
    chain: Chain | None,
    now: int,
) -> tuple[ObserverStatus, ...]:
    generations = [] if chain is None else chain.order()
    columns: dict[str, list[tuple[str, str]]] = {one.name: [] for some in generations for one in some}
    for column, names in _merged(registered, chain).items():
        for name in names:
            columns.setdefault(name, []).append(column)
    asked = observed_tablets(db, definitions, columns)
    commands: list[Command] = []
    for name, tag in asked:
        dirty = dirty_key(tag, name)
        commands += [
            (b"ZCARD", dirty),
            (b"ZCOUNT", dirty, b"(%d" % now, b"+inf"),
            (b"ZRANGE", dirty, 0, 0, b"WITHSCORES"),
            (b"HLEN", failed_key(tag, name)),
        ]
    replies = call(db, commands)
    found: dict[str, list[list[Any]]] = {name: [] for name in columns}
    for position, (name, _) in enumerate(asked):
        found[name].append(replies[4 * position : 4 * position + 4])
    active = {name for names in registered.values() for name in names}
    declared = {} if chain is None else chain.observers
    counts = run_counts(db)
    return tuple(
        _observer(
            name,
            columns[name],
            found[name],
            now,
            active=name in active,
            revision=declared[name].revision if name in declared else None,
            counts=counts.get(name, RunCounts()),
        )
        for name in columns
    )


def _observer(
    name: str,
    columns: Sequence[tuple[str, str]],
    tablets: Sequence[Sequence[Any]],
    now: int,
    *,
    active: bool,
    revision: int | None,
    counts: RunCounts,
) -> ObserverStatus:
    first = [float(oldest[1]) for _, _, oldest, _ in tablets if oldest]
    due = [score for score in first if score <= now]
    return ObserverStatus(
        name=name,
        columns=tuple(".".join(column) for column in columns),
        backlog=sum(tablet[0] for tablet in tablets),
        waiting=sum(tablet[1] for tablet in tablets),
        oldest=(now - min(due)) / 1e6 if due else None,
        failed=sum(tablet[3] for tablet in tablets),
        active=active,
        revision=revision,
        ran=counts.ran,
        failures=counts.failed,
    )
