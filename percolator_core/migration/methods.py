"""The methods of a database that change columns and indexes online, and that migrate tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.errors import ConfigurationError, PercolatorError, SnapshotTooOld, UnknownColumn
from percolator_core.migration.difference import Allowed, Difference, Wanted
from percolator_core.migration.plan import differences
from percolator_core.migration.type_change import add_index, type_change
from percolator_core.schema.definition_checks import check_definition
from percolator_core.schema.definitions import TableDefinition
from percolator_core.tables.binding import added_column, table_name
from percolator_core.tables.model import Table, definition_of, fields_of
from percolator_core.transaction.client import Client
from percolator_core.transaction.snapshot import Snapshot

T = TypeVar("T")


class Migration(ABC):
    """The methods of `percolator_core.Database` for changes that take several steps."""

    client: Client
    schema_changes: SchemaChanges

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return a snapshot of now."""

    @abstractmethod
    def run(self, fn: Callable[[Any], T], attempts: int = 10) -> T:
        """Run a function in a transaction, and repeat it on a conflict."""

    @abstractmethod
    def set_base(
        self, table: str, location: str | None, cold_after: timedelta | None = None, memory: int | None = None
    ) -> None:
        """Give a table a base, or change its base."""

    def migrate(
        self,
        tables: Iterable[type[Table] | TableDefinition],
        *,
        dry_run: bool = False,
        allow_drop: Collection[str] = (),
        allow_narrowing: Collection[str] = (),
        report: Callable[[Difference], None] | None = None,
    ) -> list[Difference]:
        """Change the tables of the store until they agree with their declarations, while clients use them.

        Return the differences in the order of their changes; an empty list if all tables agree. Other tables
        stay. After an interruption, call again to continue. Several calls may run at the same time.

        Args:
            tables: models of typed tables, and definitions of raw tables.
            dry_run: only return the differences, refused ones included.
            allow_drop: columns, as ``table.column``, and tables that are not declared, whose data may be
                removed. A name that does not exist any more is ignored.
            allow_narrowing: columns, as ``table.column``, whose new type does not have all values of the old
                one. If a value has no exact equivalent, the column does not change.
            report: takes each difference before its change begins.

        Raises:
            ConfigurationError: a difference is refused, with one line for each. Nothing was changed; or, if a
                value could not be converted, not this column.
            ValueError: ``allow_drop`` names a declared table.
            RowExists: two rows have the same value in a column that becomes unique; change one of them.
            LockTimeout, TransactionConflict, SnapshotTooOld, StoreUnavailable: call again to continue.
        """
        return self.migrate_to(
            [_wanted(table) for table in tables],
            Allowed(allow_drop, allow_narrowing),
            dry_run=dry_run,
            report=report,
        )

    def migrate_to(
        self,
        wanted: list[Wanted],
        allowed: Allowed,
        *,
        dry_run: bool = False,
        report: Callable[[Difference], None] | None = None,
    ) -> list[Difference]:
        """Migrate to declared tables that may have bases; see `migrate`."""
        declared = {one.definition.name for one in wanted}
        for name in allowed.drop:
            if name in declared:
                raise ValueError(f"{name} is declared, so it is not dropped: remove it from allow_drop")
        done: list[Difference] = []
        while True:
            # The differences are found again after each change: another client may have made a change, too.
            found = {one.name: one for one in self.client.catalog.tables()}
            every = differences(self, self.schema_changes, wanted, found, allowed)
            if dry_run or not every:
                return every if dry_run else done
            refused = [str(one) for one in every if one.refusal]
            if refused:
                raise ConfigurationError("\n".join(refused))
            first = every[0]
            if done.count(first) > 1:
                raise PercolatorError(
                    f"{first.change}: the change was made, and another program undid it: migrate with one "
                    "declaration only"
                )
            if report is not None:
                report(first)
            assert first.make is not None
            try:
                first.make()
            except (ConfigurationError, UnknownColumn, SnapshotTooOld) as error:
                before, found = found, {one.name: one for one in self.client.catalog.tables()}
                # Another client may have made the change, or a step of it: that refuses snapshots.
                is_further = isinstance(error, SnapshotTooOld) and found != before
                if not is_further and differences(self, self.schema_changes, wanted, found, allowed)[:1] == [
                    first
                ]:
                    raise
                continue
            done.append(first)

    def add_index(self, table: type[Table] | str, name: str, *, unique: bool = False) -> None:
        """Add an index of a column, and build it while clients write; an index that is there does not change.

        After an interruption, call again to continue. Until the end no select uses the index. The time is
        proportional to the number of rows.

        Raises:
            UnknownTable, UnknownColumn: no such table or column.
            ConfigurationError: the table is raw; the column is part of the key, has a type without an order,
                or has an index of the other kind.
            RowExists: two rows have the same value, and ``unique`` is true: change one of them, and call
                again. Until then, the index stays unfinished; `drop_index` removes it.
            ValueError: a value is too long for an index: change the row, as for RowExists.
            LockTimeout, TransactionConflict, SnapshotTooOld, StoreUnavailable: call again to continue.
        """
        add_index(self, self.schema_changes, table_name(table), name, unique=unique)

    def drop_index(self, table: type[Table] | str, name: str) -> None:
        """Remove the index of a column, if it has one. No row changes.

        Older snapshots that use the index are refused.

        Raises:
            UnknownTable: no such table.
            ConfigurationError: the table is raw.
            LockTimeout, StoreUnavailable: call again to continue.
        """
        self.schema_changes.drop_index(table_name(table), name)

    def change_type(self, table: type[Table], name: str, *, narrowing: bool = False) -> None:
        """Change a column to the type that it has in the model, by a copy, while clients write.

        Every value is converted exactly and verified; no value is rounded. If the model does not allow null,
        null becomes the model's default. An index of the column changes with it. Until the end programs use
        the old type. After it, programs with the old model get `ConfigurationError`, and older snapshots are
        refused, as after `drop_column`. After an interruption, call again to continue; or call with a model
        of the old type, to take the change back.

        Args:
            table: the model.
            name: the column.
            narrowing: the new type does not have all values of the old one, or null is not allowed any more.
                Then writes of other values are refused from the beginning of the copy on.

        Raises:
            UnknownTable, UnknownColumn: no such table, or no such column in the table or the model.
            ConfigurationError: the column is part of the key, an active observer observes it, there is no
                conversion, or the new type is narrower and ``narrowing`` is false. Or a row has a value
                without an exact equivalent: change the row, and call again.
            RowExists, LockTimeout, TransactionConflict, SnapshotTooOld, StoreUnavailable: as `add_index`.
        """
        column = added_column(table, name)
        # Each turn reads the catalog, not a copy that may be old. And another client may have ended the copy.
        while change := type_change(self.client.catalog.refresh()[table_name(table)].definition, column):
            if change.refusal or (change.is_narrowing and not narrowing):
                raise ConfigurationError(
                    change.refusal
                    or f"{change.description}: the new type does not have all values of the old one: allow "
                    "it with narrowing=True"
                )
            change.make(self, self.schema_changes)

    def add_column(self, table: type[Table], name: str) -> None:
        """Add a column of the model to its table, unless the table has the column.

        In existing rows the column is null or, if it cannot be null, has the model's default. If the model
        has an index of the column, the index is built.

        Raises:
            UnknownTable, UnknownColumn: no such table, or the model has no such column.
            ConfigurationError: the table has another column of that name; the column is part of the key; it
            is nullable and has a default other than None; or it is not nullable and has no default.
            LockTimeout: a transaction is still committing to the table; add the column again later.
            RowExists: as `add_index`.
        """
        definition = definition_of(table)
        self.schema_changes.add_column(definition.name, added_column(table, name))
        role = fields_of(table)[name].role
        if role is not None:
            self.add_index(table, name, unique=role == "unique")


def _wanted(table: type[Table] | TableDefinition) -> Wanted:
    if isinstance(table, TableDefinition):
        check_definition(table)
        return Wanted(table)
    return Wanted(definition_of(table), table)
