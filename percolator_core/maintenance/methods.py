"""The methods of a database that maintain it: locks, garbage collection, and bases of tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import quote

from percolator_core.base.location import Location
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.layout.records import row_bytes
from percolator_core.maintenance.bases import BaseMaintainer, TableBase, TableCompacted, TableFlushed
from percolator_core.maintenance.garbage_collection import Collected, GarbageCollector
from percolator_core.maintenance.locks import FoundLock, Locks, Outcome, Part, ResolvedLocks
from percolator_core.schema.definitions import BaseRule
from percolator_core.tables.binding import table_name
from percolator_core.tables.model import Table
from percolator_core.transaction.client import Client


class Maintenance:
    """The methods of `percolator_core.Database` that maintain it."""

    client: Client
    schema_changes: SchemaChanges

    def resolve_locks(
        self, older_than: timedelta = timedelta(seconds=30), *, tablets: Part | None = None
    ) -> ResolvedLocks:
        """Resolve locks of dead clients that were written or refreshed longer than ``older_than`` ago.

        Readers and writers resolve only the locks in their way; this call searches for locks. ``tablets`` are
        the tablets to search, each as a table's name and a number from 0; None means all tablets. Several
        calls may run concurrently.

        Raises:
            TypeError, ValueError: ``older_than`` is no timedelta, or below zero; no such tablet.
            UnknownTable: no such table.
            StoreUnavailable: the store does not answer; call again to continue.
        """
        _check_span("older_than", older_than)
        return Locks(self.client).resolve(older_than.total_seconds(), tablets)

    def resolve_lock(self, table: str, row: str | bytes, column: str, start_timestamp: int) -> Outcome:
        """Resolve the lock that the transaction with that start timestamp has on a cell.

        ``column`` is a name as `percolator_core.admin.locks.locks` shows it. Return ``"committed"`` if the
        lock was rolled forward, ``"rolled back"``, ``"gone"`` if there is no such lock, or ``"live"`` if the
        lock stays: its owner lives, and has written or refreshed it within the time to live.

        Raises:
            UnknownTable, UnknownColumn: no such table or column.
            StoreUnavailable: the store does not answer; calling again is harmless.
        """
        return Locks(self.client).resolve_one(table, row_bytes(row), column, start_timestamp)

    def locks(self, limit: int | None = None) -> Iterator[FoundLock]:
        """Yield the locks of each tablet, oldest first, at most ``limit`` (1 or more) a tablet."""
        return Locks(self.client).by_tablet(limit)

    def collect_garbage(
        self, keep: timedelta = timedelta(hours=1), *, tablets: Part | None = None
    ) -> Collected:
        """Resolve old locks, then drop the versions that only snapshots older than ``keep`` could see.

        Unfinished schema changes are finished first. Snapshots below the new safe point are refused from then
        on. The safe point stays below pinned snapshots.

        ``tablets`` are the tablets to drop versions from, each as a table's name and a number from 0; None
        means all tablets. Every call raises the safe point and resolves old locks in all tablets. So calls
        for different tablets may run at the same time and in any order, and no call depends on another.

        Raises:
            LockTimeout: a transaction older than ``keep`` is still committing, or a schema change waits for
            a transaction. No version was dropped, but snapshots older than ``keep`` may already be refused.
            Collect again later.
            TypeError, ValueError: ``keep`` is no timedelta, or below zero; no such tablet.
            UnknownTable: no such table.
            StoreUnavailable: the store does not answer; call again to continue.
        """
        _check_span("keep", keep)
        self.schema_changes.finish_all()
        return GarbageCollector(self.client).collect(keep.total_seconds(), part=tablets)

    def set_base(
        self,
        table: type[Table] | str,
        location: str | None,
        cold_after: timedelta | None = None,
        memory: int | None = None,
    ) -> None:
        """Give a table a base, or change or remove its base. `flush` moves rows from the store to the base.

        Clients may use the table during the call. After a crash, call again. If the table has a base at
        another location, its files are copied; `flush` removes the old ones an hour later, because readers
        may still use them. If ``location`` is None, the rows move back into the store, which must have the
        memory for them. Then snapshots taken before the call are refused, as after `drop_column`.

        Args:
            table: a typed or raw table, or an index.
            location: a folder or bucket: a path, ``file:PATH``, ``s3://BUCKET/PREFIX`` or another URL of
                ``pyarrow.fs``. Every client must reach it. A relative path is below the current directory.
            cold_after: a `flush` moves the rows that were not changed for this time; zero or more. If it is
                None, no row is moved because of its age.
            memory: if the table has more bytes than this in the store, a `flush` moves the rows that were
                changed longest ago; 1 or more. None is no limit.

        Raises:
            UnknownTable: no such table.
            ConfigurationError: pyarrow is not installed, or files cannot be written, found and read there.
            TypeError, ValueError: ``cold_after`` is no timedelta or below zero; ``memory`` is no int above 0;
                or one of them is given without a location.
            LockTimeout: a transaction is still committing to the table; set the base again later.
            BaseDamaged: a file of the table's previous base is missing or damaged.
            StoreUnavailable: the store or a location does not answer; call again to continue.
        """
        if cold_after is not None:
            _check_span("cold_after", cold_after)
        if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int)):
            raise TypeError(f"memory is int, not {type(memory).__name__}")
        if memory is not None and memory < 1:
            raise ValueError(f"memory is 1 or more, not {memory}")
        rule = None
        if location is not None:
            folder = f"{quote(table_name(table), safe='')}-{uuid.uuid4().hex}"
            place = Location(Location(location).absolute_url)
            self.client.catalog.table(table_name(table))
            place.check()
            after = None if cold_after is None else round(cold_after.total_seconds() * 1e6)
            rule = BaseRule(place.url, folder, after, memory)
        elif cold_after is not None or memory is not None:
            raise ValueError("cold_after and memory need a location: leave them out to remove the base")
        self.schema_changes.set_base(table_name(table), rule)

    def flush(
        self,
        table: type[Table] | str,
        everything: bool = False,
        *,
        tablets: Part | None = None,
        rate: float | None = None,
        share: float = 1.0,
    ) -> TableFlushed:
        """Move cold rows of a table from the store to its base, then merge row sets and remove files.

        Cold rows are those that `set_base` describes. Row sets are merged if this gains enough, and files are
        removed if no reader needs them. A row stays in the store while a transaction is writing it, an
        observer has still to process it, or a snapshot may read an older version of it.

        Unpinned snapshots older than the youngest row that moves are refused from then on. A pinned snapshot
        keeps younger rows in the store.

        Args:
            table: a table with a base.
            everything: move all rows that may move. Running transactions are refused and must run again.
            tablets: the tablets to flush, each as a table's name and a number from 0; None means all tablets.
            rate: the maximum number of bytes written to files in a second, above 0; None is no limit.
            share: the part of the time, above 0 and at most 1, in which the store works for this call.

        Raises:
            UnknownTable: no such table.
            ConfigurationError: the table has no base.
            ValueError: no such tablet, or ``rate`` or ``share`` is out of range.
            LockTimeout: a transaction older than the youngest cold row is still committing; flush again
                later.
            BaseDamaged: a file of the base is missing or damaged; restore the file.
            StoreUnavailable: the store or the location does not answer; call again to continue.
        """
        return self.maintainer(rate, share).flush(table_name(table), everything=everything, part=tablets)

    def compact(
        self,
        table: type[Table] | str,
        *,
        tablets: Part | None = None,
        rate: float | None = None,
        share: float = 1.0,
    ) -> TableCompacted:
        """Merge the row sets of a table's base as far as possible, and remove unneeded files.

        Afterwards no two row sets of a tablet have a key in common, and no row set has removed rows. `flush`
        merges less, because each merge writes rows again. The arguments are as for `flush`.

        Raises:
            UnknownTable, ConfigurationError, ValueError, BaseDamaged, StoreUnavailable: as `flush`.
        """
        return self.maintainer(rate, share).compact(table_name(table), part=tablets)

    def base(self, table: type[Table] | str) -> TableBase | None:
        """Return the figures of a table's base; None if the table has none.

        Raises:
            UnknownTable: no such table.
            BaseDamaged: a file of the base is missing or damaged; restore the file.
            StoreUnavailable: the store or the location does not answer; call again.
        """
        return self.maintainer().figures(table_name(table))

    def maintainer(self, rate: float | None = None, share: float = 1.0) -> BaseMaintainer:
        """Return the maintainer that `flush`, `compact` and `base` use. Raises ValueError as `flush`."""
        if rate is not None and not rate > 0:
            raise ValueError(f"rate is above 0, not {rate!r}")
        if not 0 < share <= 1:
            raise ValueError(f"share is above 0 and at most 1, not {share!r}")
        return BaseMaintainer(self.client, self.schema_changes, rate, share)


def _check_span(name: str, span: timedelta) -> None:
    if not isinstance(span, timedelta):
        raise TypeError(f"{name} is a timedelta, not {type(span).__name__}: write timedelta(seconds={span})")
    if span < timedelta(0):
        raise ValueError(f"{name} is zero or more, not {span}")
