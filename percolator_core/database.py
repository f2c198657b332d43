"""The database, which `connect` returns."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from percolator_core.archive.publication import Publishing
from percolator_core.background import Background
from percolator_core.base.bases import Bases
from percolator_core.base.changes import BaseChanges
from percolator_core.catalog.catalog import Catalog
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.concurrency import Concurrency
from percolator_core.errors import ConfigurationError, SnapshotTooOld, TransactionConflict
from percolator_core.layout.key_ranges import check_limit
from percolator_core.layout.keys import Keyspace
from percolator_core.layout.records import Version, row_bytes, timestamp_of
from percolator_core.maintenance.locks import Locks
from percolator_core.maintenance.methods import Maintenance
from percolator_core.migration.methods import Migration
from percolator_core.schema.definitions import DEFAULT_TABLETS, TableDefinition, TableDefinitions
from percolator_core.store import Durability, Store, StoreUrl
from percolator_core.store.embedded.server import own_error_first
from percolator_core.tables.binding import model_of, range_value, table_name
from percolator_core.tables.model import Table, definition_of
from percolator_core.transaction.client import Client, Timeouts
from percolator_core.transaction.metrics import Metrics
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")

MAX_LOCK_TTL = 86_400.0
"""The greatest ``lock_ttl`` of `connect`, in seconds."""

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.25
"""Bounds, in seconds, of the random pause after a conflict: the first, which doubles, and the last."""


def connect(
    url: str = "embedded:.percolator",
    namespace: str = "default",
    *,
    lock_ttl: float = 10.0,
    lock_wait: float = 30.0,
    patience: float = 10.0,
    timeout: float = 10.0,
    durability: Durability | str | None = None,
) -> Database:
    """Connect to a store. If the server of an ``embedded:`` store does not run, start it.

    Args:
        url: ``embedded:FOLDER``, ``redis://``, ``unix://``, ``redis+sentinel://`` or ``redis+cluster://``;
            ``rediss://``, ``rediss+sentinel://`` and ``rediss+cluster://`` with TLS.
        namespace: the prefix of all keys; 1 to 200 bytes of any text.
        lock_ttl: seconds after which the lock of a silent writer may be resolved; above 0.
        lock_wait: the longest time, in seconds, for which a reader waits for a live writer.
        patience: seconds for which a request is repeated while the store does not answer.
        timeout: the longest time, in seconds, to wait for one reply.
        durability: the replicas and disks that must have a write before its commit is reported, such as
            ``"replicas=1,fsync"``. With None, the URL's ``?durability=`` counts; its default is memory only.

    Raises:
        ConfigurationError: the URL or the server cannot be used; the message says what to change.
        StoreUnavailable: no server answers.
    """
    url = StoreUrl(url)
    try:
        keyspace = Keyspace(namespace)
    except ValueError as error:
        raise ConfigurationError(f"namespace {namespace!r}: {error}") from None
    settings = {"lock_ttl": lock_ttl, "lock_wait": lock_wait, "patience": patience, "timeout": timeout}
    for name, value in settings.items():
        if not value > 0:
            raise ConfigurationError(f"{name} is a number of seconds above 0, not {value!r}")
    if lock_ttl > MAX_LOCK_TTL:
        raise ConfigurationError(f"lock_ttl is at most {MAX_LOCK_TTL:g} seconds, not {lock_ttl!r}")
    bases = Bases()
    store = Store(url, keyspace, patience=patience, timeout=timeout, durability=durability)
    return Database(
        Client(store, Timeouts(lock_ttl, lock_wait), bases),
        lambda: {"url": str.__str__(url), "namespace": namespace, "durability": durability, **settings},
    )


class Database(Maintenance, Publishing, Migration):
    """A connection to the tables of one namespace. All threads may use it; a ``with`` statement closes it."""

    def __init__(self, client: Client, arguments: Callable[[], dict[str, Any]] | None = None) -> None:
        self.client = client
        self.schema_changes = SchemaChanges(client, Locks(client), BaseChanges(client))
        client.finish_schema_change = self.schema_changes.finish_or_repair
        # A function, so that printing or pickling this object never shows a password.
        self._arguments = arguments
        self._background = Background(client.store)

    def connect_arguments(self) -> dict[str, Any]:
        """Return arguments for `connect` that give an equal connection. The URL contains the password.

        Pass them only to a process of the same user, through a pipe that no other process reads.
        """
        assert self._arguments is not None, "only a database that `connect` made knows them"
        return self._arguments()

    @property
    def store(self) -> Store:
        """The store that holds the tables."""
        return self.client.store

    @property
    def catalog(self) -> Catalog:
        """The catalog of the namespace."""
        return self.client.catalog

    @property
    def url(self) -> str:
        """The store's URL without its password."""
        return self.client.store.url

    @property
    def namespace(self) -> str:
        """The namespace of all keys."""
        return self.client.store.keyspace.namespace

    @property
    def metrics(self) -> Metrics:
        """Counters of the transactions that have ended since `connect`."""
        return self.client.tally.metrics()

    # Tables.

    def create_table(
        self, name: type[Table] | str, tablets: int | None = None, notify_only: Iterable[str] = ()
    ) -> None:
        """Create the typed table of a model, with its indexes; or, for a name, a raw table of byte cells.

        An existing table with the same definition does not change, even if columns or ranges were added to
        it later. ``tablets`` (1 to 4096, by default 16) and ``notify_only`` are for raw tables.

        Raises:
            ConfigurationError: the definition is impossible, or the table exists with another one.
            TypeError: an argument has a wrong type, or ``tablets`` or ``notify_only`` is given with a model.
            LockTimeout: an earlier table of that name is still being dropped, and the drop waits for a
                transaction; create the table later.
        """
        if isinstance(notify_only, str):
            raise TypeError(f"notify_only is a list of columns, not str: write [{notify_only!r}]")
        columns = tuple(sorted(set(notify_only)))
        if not isinstance(name, type):
            tablets = DEFAULT_TABLETS if tablets is None else tablets
            self.create_defined(TableDefinition(name, tablets, columns))
            return
        if tablets is not None or columns:
            raise TypeError("tablets and notify_only are for raw tables: leave them out for a model")
        self.create_defined(definition_of(name))

    def create_defined(self, definition: TableDefinition) -> None:
        """Create a table from its definition. Raises like `create_table`."""
        self.schema_changes.create(definition)

    def drop_column(self, table: type[Table] | str, name: str) -> None:
        """Drop a column of a typed table and its data. The time is proportional to the number of rows.

        After a crash, the next garbage collection or change of the table removes the remaining data.

        Raises:
            UnknownTable, UnknownColumn: no such table or column.
            ConfigurationError: the column is part of the key, indexed, or observed by an active observer.
            LockTimeout: a transaction is still committing to the table; drop the column again later.
            StoreUnavailable: the store does not answer; drop the column again. UnknownColumn then means that
            another client has finished the drop.
        """
        self.schema_changes.drop_column(table_name(table), name)

    def rename_column(self, table: type[Table] | str, old: str, new: str) -> None:
        """Rename a column of a typed table, also in its key, partition rules and indexes. No data changes.

        Raises:
            UnknownTable, UnknownColumn: no such table, or no column ``old``.
            ConfigurationError: the table has a column ``new``.
            LockTimeout: a transaction is still committing to the table; rename the column again later.
            StoreUnavailable: the store does not answer; rename the column again. UnknownColumn then means
            that another client has finished the change.
        """
        self.schema_changes.rename_column(table_name(table), old, new)

    def add_range(self, table: type[Table] | str, value: Any) -> None:
        """Split a range of a typed table at a value of the range column; the value is in the upper part.

        Rows never move, so one of the two parts must be empty: add a range before it gets rows. An existing
        split does not change.

        Raises:
            UnknownTable: no such table.
            ConfigurationError: the table has no ranges, or both parts have rows.
            TypeError, ValueError: ``value`` is not of the column's type.
            LockTimeout: a transaction is still committing to the table; add the range again later.
        """
        name = table_name(table)
        definition = self.client.catalog.table(name).definition
        encoded = b"" if definition.ranges is None else range_value(definition, model_of(table), value)
        self.schema_changes.add_range(name, encoded)

    def tables(self) -> TableDefinitions:
        """All tables and views, by name: a list of `TableDefinition`."""
        every = {one.name: one for one in self.client.catalog.tables()}
        shown = {one.stored for name, one in every.items() if one.stored != name}
        return TableDefinitions(one for name, one in every.items() if name not in shown)

    def drop_table(self, name: type[Table] | str) -> None:
        """Remove a table with its rows and indexes. The time is proportional to the number of rows.

        After a crash, drop the table again or collect garbage.

        Raises:
            UnknownTable: no such table.
            ConfigurationError: it is an index, which is dropped with its table.
            LockTimeout: a transaction is still committing to the table; drop it again later. Until then
            no transaction can use the table.
        """
        self.schema_changes.drop(table_name(name))

    # Transactions.

    def transaction(self) -> Transaction:
        """A transaction to use in a ``with`` statement: commits on a clean exit, discards on an exception."""
        return Transaction(self.client)

    def begin(self, after: int | None = None) -> Transaction:
        """A transaction that the caller commits or rolls back.

        ``after`` is a timestamp from any client of the same store: all commits up to it are seen.
        """
        return Transaction(self.client, after=after)

    def run(self, fn: Callable[[Transaction], T], attempts: int = 10) -> T:
        """Run ``fn`` in a transaction and commit.

        After TransactionConflict or SnapshotTooOld, ``fn`` runs again as a whole, with a new snapshot; the
        last of ``attempts`` (1 or more) raises the error.
        """
        if attempts < 1:
            raise ValueError(f"attempts is 1 or more, not {attempts}")
        pause = _FIRST_PAUSE
        for remaining in reversed(range(attempts)):
            try:
                with self.transaction() as transaction:
                    return fn(transaction)
            except (TransactionConflict, SnapshotTooOld):
                if not remaining:
                    raise
            self.store.sleep(random.uniform(0, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)
        raise AssertionError("unreachable")

    def snapshot(self, at: int | datetime | None = None) -> Snapshot:
        """The tables as of a timestamp (microseconds), an aware datetime, or now.

        Raises:
            TypeError: ``at`` is neither int nor datetime.
            ValueError: a datetime without a time zone, or a time in the future.
        """
        if at is None:
            snapshot = Snapshot(self.client)
            snapshot.start_timestamp  # noqa: B018 - its first use fixes the snapshot
            return snapshot
        timestamp = timestamp_of(at)
        if timestamp > self.client.oracle.seen and timestamp > self.timestamp():
            raise ValueError(f"{at} has not come yet: leave it out to read the tables as they are now")
        return Snapshot(self.client, timestamp)

    def timestamp(self) -> int:
        """A fresh timestamp, above the timestamps of all commits that ended before the call."""
        return self.client.oracle.timestamp()

    def history(self, table: str, row: str | bytes, column: str, limit: int = 1000) -> list[Version]:
        """The committed versions of a cell, newest first; a deletion has the value None.

        Returns at most ``limit`` versions (1 or more).

        Raises:
            UnknownTable, UnknownColumn: no such table, or a notify-only column.
            LockTimeout: another client has been committing to the cell for too long; try again later.
            SnapshotTooOld: the table was dropped since the call; call again.
            StoreUnavailable: the store does not answer.
            TypeError, ValueError: ``limit`` is no int, or below 1.
        """
        check_limit(limit, 1)
        return self.snapshot().history(table, row_bytes(row), column, limit)

    def concurrency(self, width: int = 256) -> Concurrency:
        """A context manager that returns an executor.

        Submitted functions are ordinary code; up to ``width`` of them run concurrently and share round trips.
        """
        return Concurrency(self.store, width)

    async def to_thread(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn`` in a thread of the database and return its result: ``await db.to_thread(db.run, fn)``.

        A coroutine that calls a database directly stops its event loop until the store answers; with this
        method the loop goes on. All calls run in one thread, up to 1,000 at a time, and share round trips as
        in `concurrency`. So ``fn`` may wait for the database only: for code that waits for anything else, or
        computes for long, use ``asyncio.to_thread``, whose threads may use the database, too.

        ``fn`` sees a copy of the context variables. If the coroutine is cancelled, a function that has begun
        runs to its end.

        Raises:
            PercolatorError: the database was closed.
            Others: as ``fn``.
        """
        import asyncio  # a coroutine's caller has imported it; other programs need not wait for it

        return await asyncio.wrap_future(self._background.submit(partial(fn, *args, **kwargs)))

    def active_observers(self) -> set[str]:
        """The names of the observers of the newest activation."""
        return self.client.active_observers()

    def close(self) -> None:
        """Close the connections; an embedded server stops with its last user. Idempotent.

        Raises:
            StoreUnavailable: an embedded server could not write acknowledged commits to its disk. Make space
                on the disk, connect again, and check which commits are missing. The connections are closed
                nevertheless.
        """
        self._background.close()
        self.client.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with own_error_first(error):
            self.close()

    def __repr__(self) -> str:
        return f"<Database {self.url} namespace={self.namespace!r}>"
