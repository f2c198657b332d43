"""Changes of the columns and indexes of typed tables, each as one schema change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from percolator_core.catalog.schema_change_steps import Client
from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import meta_key, observers_field
from percolator_core.schema.definition_changes import (
    copy_of,
    removed,
    with_column,
    with_complete_index,
    with_copied,
    with_copy,
    with_index,
    with_notify_only,
    with_null,
    with_renamed,
    without_column,
    without_index,
)
from percolator_core.schema.definition_checks import check_definition
from percolator_core.schema.definitions import Column, TableDefinition, index_definition, to_json

Pending: TypeAlias = dict[str, Any]
"""A pending change in JSON types: its ``kind`` and the arguments of the kind."""


class ColumnChanges(ABC):
    """The changes of columns and indexes. `percolator_core.catalog.schema_change` has the other changes."""

    _client: Client

    @abstractmethod
    def _change(
        self, name: str, what: Sequence[str], plan: Callable[[TableDefinition], Pending | None]
    ) -> None:
        """Begin a change of a table, and finish it."""

    @abstractmethod
    def drop_unused_indexes(self, name: str) -> None:
        """Drop the index tables that no index of the table uses."""

    def add_column(self, name: str, column: Column) -> None:
        """Add a column to a typed table; existing rows have ``column.missing``. See `Database.add_column`."""
        what = ["add column", column.name, column.type]
        self._change(name, what, lambda found: to_definition(found, with_column(found, column)))

    def drop_column(self, name: str, column: str) -> None:
        """Drop a column and its cells; see `Database.drop_column`."""

        def plan(found: TableDefinition) -> Pending | None:
            new = without_column(found, column)
            self._refuse_observed(found, column)
            return to_definition(found, new, sweep=[found.by_name[column].stored])

        self._change(name, ["drop column", column], plan)

    def rename_column(self, name: str, old: str, new: str) -> None:
        """Rename a column, and keep its stored name; see `Database.rename_column`."""
        what = ["rename column", old, new]
        self._change(name, what, lambda found: to_definition(found, with_renamed(found, old, new)))

    def add_notify_only(self, name: str, column: str) -> None:
        """Add a notify-only column. Raises ConfigurationError if a column of that name holds data."""
        what = ["add notify-only", column]
        self._change(name, what, lambda found: to_definition(found, with_notify_only(found, column)))

    def allow_null(self, name: str, column: str) -> None:
        """Let a column be null."""
        what = ["allow null", column]
        self._change(name, what, lambda found: to_definition(found, with_null(found, column)))

    def add_index(self, name: str, column: str, *, unique: bool) -> None:
        """Add an index. From now on, each writer also writes the entries of its rows.

        The caller then adds the entries of the earlier rows, and calls `complete_index`.
        """

        def plan(found: TableDefinition) -> Pending | None:
            table = self._index_table(name, column)
            return to_definition(found, with_index(found, column, unique=unique, table=table))

        self._change(name, ["add index", column, "unique" if unique else ""], plan)

    def complete_index(self, name: str, table: str) -> None:
        """Let selects use an index. The caller has verified that each row has its entry."""
        timestamp, what = self._client.oracle.timestamp(), ["complete index", table]
        self._change(
            name, what, lambda found: to_definition(found, with_complete_index(found, table, timestamp))
        )

    def drop_index(self, name: str, column: str) -> None:
        """Remove the index of a column, then its entries."""
        what = ["drop index", column]
        self._change(name, what, lambda found: to_definition(found, without_index(found, column)))
        self.drop_unused_indexes(name)

    def start_copy(self, name: str, wanted: Column, if_null: bytes | None) -> None:
        """Begin to copy a column to another type. From now on a write of the column also writes the copy."""

        def plan(found: TableDefinition) -> Pending | None:
            new = with_copy(found, wanted, if_null, self._index_table(name, wanted.name))
            self._refuse_observed(found, wanted.name)
            return to_definition(found, new)

        self._change(name, ["start copy", wanted.name, wanted.type], plan)

    def end_copy(self, name: str, column: str) -> None:
        """End an unfinished copy of a column, and remove the copied cells; the column stays as it is."""

        def plan(found: TableDefinition) -> Pending | None:
            copy = copy_of(found, column)
            if copy is None:
                return None
            return to_definition(found, removed(found, copy), sweep=[copy.stored])

        self._change(name, ["end copy", column], plan)
        self.drop_unused_indexes(name)

    def switch_to_copy(self, name: str, stored: str) -> None:
        """Replace a column by its verified copy with this stored name; no change if there is none any more.

        The cells of the replaced column are removed. Snapshots from before the switch are refused where they
        would miss a cell, because the copied cells are newer than they are.
        """

        def plan(found: TableDefinition) -> Pending | None:
            copy = next((one for one in found.copies if one.stored == stored), None)
            if copy is None or copy.copy is None:
                return None
            source = found.column(copy.copy.source)
            self._refuse_observed(found, source.name)
            new = with_copied(found, copy, self._index_table(name, source.name))
            return to_definition(found, new, sweep=[source.stored], refuses_older=True)

        self._change(name, ["switch to copy", stored], plan)
        self.drop_unused_indexes(name)

    def _index_table(self, name: str, column: str) -> str:
        """Return the name of a new index's table. No earlier index had it, so no client uses an old one."""
        return f"{name}({column}).{self._client.oracle.timestamp()}"

    def observer_of(self, definition: TableDefinition, column: str) -> str | None:
        """Return the name of an active observer that observes a column, or None."""
        if column in definition.key:
            return None
        stored = definition.column(column).stored.encode()
        store = self._client.store
        tag = store.keyspace.tag(definition.name, 0)
        registered = store.one((b"HGET", meta_key(tag), observers_field(stored)))
        active = self._client.active_observers()
        return next((name for name in (registered or b"").decode().split(",") if name in active), None)

    def _refuse_observed(self, definition: TableDefinition, column: str) -> None:
        observer = self.observer_of(definition, column)
        if observer is not None:
            raise ConfigurationError(
                f"the observer {observer!r} observes {definition.name}.{column}: remove the observer from "
                "the chain and restart the workers first"
            )


def to_definition(found: TableDefinition, new: TableDefinition, **more: Any) -> Pending | None:
    """Return the change to another definition, or None if the definition stays the same."""
    if new == found:
        return None
    check_definition(new)
    for rule in set(new.indexes) - set(found.indexes):
        # A pending change that is impossible would stay, and stop all writers.
        check_definition(index_definition(new, rule))
    return {"kind": "define", "definition": to_json(new), **more}
