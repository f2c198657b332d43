"""The state of a namespace, told cheaply: counts that the store keeps anyway, no look at any row.

>>> from percolator_core.admin.status import status
>>> now = status(db)
>>> now.idle, [(table.name, table.rows) for table in now.tables]
(True, [('documents', 12)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from percolator_core.database import Database
from percolator_core.layout.keys import (
    CellAddress,
    decode_primary,
    dirty_key,
    failed_key,
    locks_key,
    meta_key,
    rows_key,
    tablet_number,
)
from percolator_core.layout.records import Lock, unpack_lock
from percolator_core.maintenance.locks import FoundLock, Locks
from percolator_core.notifications.activation import LiveWorker, live_workers
from percolator_core.notifications.counts import RunCounts, run_counts
from percolator_core.observers import Chain
from percolator_core.schema.definitions import TableDefinition
from percolator_core.store.eviction import refuse_eviction
from percolator_core.store.packing import Command

_BATCH: Final = 5_000
"""Commands that are sent together."""

Observed = Mapping[tuple[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table. ``rows`` counts rows whose cells are all deleted, too, until they are collected."""

    name: str
    tablets: int
    rows: int
    locks: int


@dataclass(frozen=True, slots=True)
class TabletStatus:
    """A tablet of a table, by its number. ``dirty`` cells of all observers together, as ``failed`` ones."""

    number: int
    rows: int
    locks: int
    dirty: int
    failed: int


@dataclass(frozen=True, slots=True)
class ObserverStatus:
    """An observer. ``backlog`` counts its dirty cells, those being worked on or waiting for a retry included.

    ``waiting`` of them may not be claimed yet: they are leased or wait for a retry. ``oldest`` is how many
    seconds ago the oldest of the others could have been claimed, None when there is none. ``failed`` cells
    are in quarantine. ``active`` tells whether writers leave marks for it: else no worker of
    the chain has run here yet. ``revision`` is that of its code, as the chain declares it, None without a
    chain. ``ran`` and ``failures`` are its runs that committed and those that raised, by all workers since
    the namespace began, about (`percolator_core.notifications.counts`).
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
    """The servers that hold data. Memory in bytes, of all; ``memory_limit`` is 0 where one has none."""

    url: str
    version: str
    memory: int
    memory_limit: int


@dataclass(frozen=True, slots=True)
class Status:
    """A namespace at ``time`` (microseconds, the server's clock)."""

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
        """Seconds for which the oldest cell of all that may be claimed has waited; None if none may be."""
        return max((one.oldest for one in self.observers if one.oldest is not None), default=None)

    @property
    def drains(self) -> int:
        """Those of the live workers that end when nothing is left."""
        return sum(worker.until_idle for worker in self.workers)

    @property
    def continuous(self) -> int:
        """Those of the live workers that run until they are stopped."""
        return len(self.workers) - self.drains

    @property
    def locks(self) -> int:
        """Locks in all tables; a few that come and go are the writers at work."""
        return sum(table.locks for table in self.tables)

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to observe; cells in quarantine do not count."""
        return self.backlog == 0


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock in the lock index. ``age`` is seconds since it was written or refreshed.

    ``start_timestamp`` identifies its transaction, ``primary`` is the cell that decides about it, as
    ``(table, row, column)``, and ``owner_alive`` tells whether the client that wrote it is.
    """

    table: str
    row: bytes
    column: str
    start_timestamp: int
    age: float
    time_to_live: float
    primary: tuple[str, bytes, str]
    is_primary: bool
    owner: str
    owner_alive: bool


def status(db: Database, chain: Chain | None = None) -> Status:
    """The state of the namespace now.

    The observers are those registered in the store, and those of ``chain``. A few calls a tablet are sent, in
    few round trips, however many rows there are.

    Raises:
        StoreUnavailable: the store does not answer, or one of its servers evicts keys or has done so.
    """
    definitions = db.tables()
    registered = _registered(db, definitions)
    observed = merge_observed(registered, chain.observed if chain is not None else {})
    order = (
        [observer.name for generation in chain.order() for observer in generation]
        if chain is not None
        else []
    )
    info = db.store.all_server_info()
    for one in info:  # of a cluster, also those that this client has no connection to
        refuse_eviction(one, db.url)
    limits = [one.maxmemory for one in info]
    now = db.store.now()
    return Status(
        namespace=db.namespace,
        time=now,
        store=StoreStatus(
            db.url,
            info[0].version,
            sum(one.used_memory for one in info),
            sum(limits) if all(limits) else 0,
        ),
        tables=_tables(db, definitions),
        observers=_observers(
            db,
            definitions,
            observed,
            {name for names in registered.values() for name in names},
            revisions=_revisions(chain),
            counts=run_counts(db),
            order=order,
            now=now,
        ),
        workers=tuple(live_workers(db)),
    )


def backlog(db: Database, chain: Chain) -> dict[str, int]:
    """Dirty cells by observer, each observer counted after those that wake it.

    In that order a count of zero throughout means that a chain without loops is idle: a run leaves the marks
    that it causes before its own goes.
    """
    counts: dict[str, int] = {}
    definitions = {definition.name: definition for definition in db.tables()}
    asked: list[str] = []
    commands: list[Command] = []
    for generation in chain.order():
        for observer in generation:
            counts[observer.name] = 0
            for tag in tags_of(db, definitions, {table for table, _ in observer.observe}):
                asked.append(observer.name)
                commands.append((b"ZCARD", dirty_key(tag, observer.name)))
    for name, count in zip(asked, call(db, commands), strict=True):
        counts[name] += count
    return counts


def tablets(db: Database, table: str, chain: Chain | None = None) -> list[TabletStatus]:
    """What each tablet of a table holds, by number: whether its rows and its work are spread evenly.

    The observers are those registered in the store, and those of ``chain``.

    Raises:
        UnknownTable: there is no such table.
        StoreUnavailable: the store does not answer.
    """
    handle = db.catalog.table(table)
    observed = merge_observed(
        _registered(db, [handle.definition]), chain.observed if chain is not None else {}
    )
    names = sorted({name for (of, _), names in observed.items() if of == table for name in names})
    commands: list[Command] = []
    for tag in handle.tags:
        commands += [(b"ZCARD", rows_key(tag)), (b"ZCARD", locks_key(tag))]
        commands += [(b"ZCARD", dirty_key(tag, name)) for name in names]
        commands += [(b"HLEN", failed_key(tag, name)) for name in names]
    replies, each = call(db, commands), 2 + 2 * len(names)
    found = []
    for number, tag in enumerate(handle.tags):
        rows, locked, *counts = replies[number * each : (number + 1) * each]
        dirty, failed = counts[: len(names)], counts[len(names) :]
        found.append(TabletStatus(tablet_number(tag), rows, locked, sum(dirty), sum(failed)))
    return found


def locks(db: Database, limit: int = 1000) -> list[HeldLock]:
    """The locks of a namespace, oldest first; at most ``limit`` (1 or more) of them.

    Raises:
        StoreUnavailable: the store does not answer.
        ValueError: ``limit`` is below 1.
    """
    if limit < 1:
        raise ValueError(f"limit is 1 or more, not {limit}")
    found = Locks(db.client).oldest(limit)
    now = db.store.now()
    unpacked = [unpack_lock(lock.packed) for lock in found]
    owners = sorted({lock.owner for lock in unpacked})
    alive = call(db, [db.client.liveness(owner) for owner in owners])
    living = {owner for owner, lives in zip(owners, alive, strict=True) if lives}
    name = db.catalog.column_name
    return [_held(place, lock, now, living, name) for place, lock in zip(found, unpacked, strict=True)]


def merge_observed(*parts: Observed) -> dict[tuple[str, str], tuple[str, ...]]:
    """Who watches which column, by all of the parts together."""
    merged: dict[tuple[str, str], dict[str, None]] = {}
    for part in parts:
        for column, names in part.items():
            merged.setdefault(column, {}).update(dict.fromkeys(names))
    return {column: tuple(sorted(names)) for column, names in sorted(merged.items())}


def _revisions(chain: Chain | None) -> dict[str, int]:
    return {} if chain is None else {name: one.revision for name, one in chain.observers.items()}


def _registered(
    db: Database, definitions: Sequence[TableDefinition]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Which observers watch which column, as writers know it: `Chain.create_tables` has put it there."""
    # Every tablet of a table holds the same, so the first one speaks for all.
    metas = call(db, [(b"HGETALL", meta_key(db.catalog.table(one.name).tags[0])) for one in definitions])
    found = {}
    for definition, flat in zip(definitions, metas, strict=True):
        for field, names in zip(flat[0::2], flat[1::2], strict=True):
            if field.startswith(b"o"):
                found[definition.name, db.catalog.column_name(definition.name, field[1:])] = tuple(
                    names.decode().split(",")
                )
    return found


def _tables(db: Database, definitions: Sequence[TableDefinition]) -> tuple[TableStatus, ...]:
    tags = [(one, tag) for one in definitions for tag in db.catalog.table(one.name).tags]
    counts = call(db, [(b"ZCARD", tag + name) for _, tag in tags for name in (b"rows", b"locks")])
    rows, locked = dict.fromkeys(definitions, 0), dict.fromkeys(definitions, 0)
    for (one, _), row_count, lock_count in zip(tags, counts[0::2], counts[1::2], strict=True):
        rows[one] += row_count
        locked[one] += lock_count
    return tuple(TableStatus(one.name, one.tablets, rows[one], locked[one]) for one in definitions)


def _observers(
    db: Database,
    definitions: Sequence[TableDefinition],
    observed: Observed,
    registered: set[str],
    *,
    revisions: Mapping[str, int],
    counts: Mapping[str, RunCounts],
    order: Sequence[str],
    now: int,
) -> tuple[ObserverStatus, ...]:
    by_name = {one.name: one for one in definitions}
    columns: dict[str, list[tuple[str, str]]] = {name: [] for name in order}
    for column, names in observed.items():
        for name in names:
            columns.setdefault(name, []).append(column)
    asked: list[str] = []
    commands: list[Command] = []
    for name, watched in columns.items():
        for tag in tags_of(db, by_name, {table for table, _ in watched}):
            dirty = dirty_key(tag, name)
            asked.append(name)
            commands += [
                (b"ZCARD", dirty),
                (b"ZCOUNT", dirty, b"(%d" % now, b"+inf"),
                (b"ZRANGE", dirty, 0, 0, b"WITHSCORES"),
                (b"HLEN", failed_key(tag, name)),
            ]
    replies = call(db, commands)
    found: dict[str, list[list[Any]]] = {name: [] for name in columns}
    for position, name in enumerate(asked):
        found[name].append(replies[4 * position : 4 * position + 4])
    return tuple(
        _observer(
            name,
            columns[name],
            found[name],
            now,
            active=name in registered,
            revision=revisions.get(name),
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


def _held(
    place: FoundLock, lock: Lock, now: int, living: set[bytes], name: Callable[[str, bytes], str]
) -> HeldLock:
    primary = decode_primary(lock.primary)
    return HeldLock(
        table=place.table,
        row=place.row,
        column=name(place.table, place.column),
        start_timestamp=place.start_ts,
        age=max(0.0, (now - place.wall) / 1e6),
        time_to_live=lock.ttl_ms / 1000,
        primary=(primary.table, primary.row, name(primary.table, primary.column)),
        is_primary=primary == CellAddress(place.tag, place.row, place.column),
        owner=lock.owner.decode(errors="replace"),
        owner_alive=lock.owner in living,
    )


def tags_of(db: Database, definitions: Mapping[str, TableDefinition], tables: Iterable[str]) -> list[bytes]:
    """The tablets of those tables that are there already."""
    return [tag for table in sorted(tables) if table in definitions for tag in db.catalog.table(table).tags]


def call(db: Database, commands: Sequence[Command]) -> list[Any]:
    """The replies to many commands, sent in batches."""
    return db.store.call_many(commands, _BATCH)
