"""The differences between declared tables and the tables in the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.errors import ConfigurationError, UnknownColumn, abbreviated
from percolator_core.migration.difference import Allowed, Difference, Online, Wanted, give_base
from percolator_core.migration.type_change import add_index, type_change
from percolator_core.schema.definition_changes import (
    copy_of,
    describe,
    index_of,
    kind_of,
    with_column,
    with_notify_only,
    with_renamed,
    without_index,
)
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.types import column_type, shown
from percolator_core.tables.binding import added_column
from percolator_core.tables.model import Table, fields_of

_COPY_ROWS: Final = "declare a table with another name, copy the rows into it, and then drop this one"


def differences(
    db: Online,
    changes: SchemaChanges,
    wanted: Sequence[Wanted],
    found: Mapping[str, TableDefinition],
    allowed: Allowed,
) -> list[Difference]:
    """Return all differences, in the order in which the changes are made.

    Tables that are not declared stay, unless ``allowed`` names them.
    """
    every = [
        one
        for table in wanted
        for one in _of_table(db, changes, table, found.get(table.definition.name), allowed)
    ]
    declared = {table.definition.name for table in wanted}
    dropped = [name for name in sorted(set(allowed.drop) & set(found) - declared) if not found[name].index_of]
    what = "with its rows and indexes is removed"
    return every + [
        Difference("drop table", name, f"the table {name} {what}", make=partial(changes.drop, name))
        for name in dropped
    ]


def _of_table(
    db: Online, changes: SchemaChanges, wanted: Wanted, found: TableDefinition | None, allowed: Allowed
) -> Iterator[Difference]:
    definition = wanted.definition
    name = definition.name
    if found is None:
        yield Difference(
            "create table",
            name,
            f"the table {name} is created with {describe(definition)}",
            make=partial(changes.create, definition.with_(base=None)),
        )
        found = definition.with_(base=None)
    if definition.is_typed != found.is_typed or found.index_of:
        kinds = ("typed", "raw") if definition.is_typed else ("raw", "typed")
        yield _other(
            name, f"the table {name} is declared as a {kinds[0]} table, and is a {kinds[1]} one", _COPY_ROWS
        )
        return
    yield from _Compared(db, changes, name, definition, wanted.model, found, allowed).all()


def _other(table: str, what: str, mend: str, name: str = "") -> Difference:
    return Difference("other", table, what, name, mend)


@dataclass(slots=True)
class _Compared:
    """The comparison of a table with its declaration. ``found`` includes the changes that were yielded."""

    db: Online
    changes: SchemaChanges
    name: str
    wanted: TableDefinition
    model: type[Table] | None
    found: TableDefinition
    allowed: Allowed

    def all(self) -> Iterator[Difference]:
        """Yield the differences in the order of the changes; renames come first."""
        if self.wanted.is_typed:
            yield from self._renamed()
        yield from self._others()
        if self.wanted.is_typed and self.found.key == self.wanted.key:
            yield from self._columns()
            yield from self._ranges()
            yield from self._added_indexes()
        yield from self._notify_only()
        yield from self._base()

    def _renamed(self) -> Iterator[Difference]:
        """Yield the renames that the hints ask for; ``found`` then has the new names."""
        hints = (
            {}
            if self.model is None
            else {name: one.renamed_from for name, one in fields_of(self.model).items() if one.renamed_from}
        )
        made: set[str] = set()
        while True:
            # The new name of a column may be the old name of another hint, which means another column.
            names = self.found.by_name
            due = [
                (old, new)
                for new, old in hints.items()
                if new not in names and old in names and old not in made
            ]
            if not due:
                return
            old, new = due[0]
            made.add(new)
            self.found = with_renamed(self.found, old, new)
            yield Difference(
                "rename column",
                self.name,
                f"the column {self.name}.{old} is renamed to {new}; its data does not change",
                new,
                make=partial(self.changes.rename_column, self.name, old, new),
            )

    def _others(self) -> Iterator[Difference]:
        wanted, found = self.wanted, self.found
        if not wanted.is_typed and wanted.tablets != found.tablets:
            yield _other(
                self.name,
                f"the table {self.name} is declared with {wanted.tablets} tablets, and has {found.tablets}",
                f"the number of tablets cannot change: declare {found.tablets}, or {_COPY_ROWS}",
            )
        if wanted.key != found.key:
            yield _other(
                self.name,
                f"the table {self.name} is declared with the key {', '.join(wanted.key)}, and has the key "
                f"{', '.join(found.key)}",
                f"a key cannot change: {_COPY_ROWS}",
            )
        elif wanted.hashes != found.hashes or _range_column(wanted) != _range_column(found):
            yield _other(
                self.name,
                f"the partition rules of the table {self.name} differ from its declaration",
                f"rows do not move to other tablets: declare the rules that the table has, or {_COPY_ROWS}",
            )

    def _columns(self) -> Iterator[Difference]:
        yield from self._dropped_indexes()
        for column in self.wanted.columns:
            present = self.found.by_name.get(column.name)
            if present is not None:
                yield from self._type(column, present)
        yield from self._dropped()
        for column in self.wanted.columns:
            if column.name not in self.found.by_name:
                yield self._added(column)

    def _type(self, column: Column, present: Column) -> Iterator[Difference]:
        where = f"{self.name}.{column.name}"
        if column.name in self.found.key:
            if kind_of(column) != kind_of(present):
                yield _other(
                    self.name,
                    f"the column {where} is declared as {kind_of(column)}, and is {kind_of(present)}",
                    f"the types of a key cannot change: {_COPY_ROWS}",
                    column.name,
                )
            return
        change = type_change(self.found, self._with_default(column))
        if change is None:
            return
        refusal = change.refusal
        if not refusal and change.is_narrowing and where not in self.allowed.narrowing:
            refusal = (
                f"{kind_of(column)} does not have all values of {kind_of(present)}: allow it with "
                f"--allow-narrowing {where}; if a value has no exact equivalent, the column does not change"
            )
        refusal = refusal or (self._observed(column.name) if change.is_copy else "")
        yield Difference(
            "change type",
            self.name,
            change.description,
            column.name,
            refusal,
            partial(change.make, self.db, self.changes),
        )

    def _with_default(self, column: Column) -> Column:
        """Return the column with its default as ``missing``; it replaces null if null is not allowed."""
        return column if self.model is None else added_column(self.model, column.name)

    def _observed(self, name: str) -> str:
        observer = self.changes.observer_of(self.found, name)
        if observer is None:
            return ""
        return (
            f"the observer {observer!r} observes the column: remove the observer from the chain, restart the "
            "workers, and migrate again"
        )

    def _dropped_indexes(self) -> Iterator[Difference]:
        """Yield the removals of indexes; ``found`` then lacks these indexes."""
        for rule in self.found.shown_indexes:
            wanted = index_of(self.wanted, rule.column)
            is_named = f"{self.name}.{rule.column}" in self.allowed.drop
            if (wanted is not None and wanted.unique == rule.unique) or (
                rule.column not in self.wanted.by_name and not is_named
            ):
                continue
            yield Difference(
                "drop index",
                self.name,
                f"the {_index(rule.unique)} of {self.name}.{rule.column} is removed; no row changes",
                rule.column,
                make=partial(self.changes.drop_index, self.name, rule.column),
            )
            self.found = without_index(self.found, rule.column)

    def _dropped(self) -> Iterator[Difference]:
        for column in self.found.shown_columns:
            if column.name in self.wanted.by_name:
                continue
            where = f"{self.name}.{column.name}"
            refusal = self._observed(column.name)
            if where not in self.allowed.drop:
                refusal = (
                    f"its data would be lost: allow it with --allow-drop {where}, or give the column that "
                    f"replaces it the hint RenamedFrom({column.name!r})"
                )
            yield Difference(
                "drop column",
                self.name,
                f"the column {where} and its data are removed",
                column.name,
                refusal,
                partial(self._drop, column.name),
            )

    def _drop(self, name: str) -> None:
        if copy_of(self.found, name) is not None:
            self.changes.end_copy(self.name, name)
        self.changes.drop_column(self.name, name)

    def _added(self, column: Column) -> Difference:
        where, refusal = f"{self.name}.{column.name}", ""
        added = column
        try:
            added = self._with_default(column)
            with_column(self.found, added)
        except ConfigurationError as error:
            refusal = str(error)
        has = "null" if added.missing is None else _value(added)
        return Difference(
            "add column",
            self.name,
            f"the column {where} {kind_of(column)} is added; existing rows have {has}",
            column.name,
            refusal,
            partial(self.changes.add_column, self.name, added),
        )

    def _ranges(self) -> Iterator[Difference]:
        wanted, found = self.wanted.ranges, self.found.ranges
        if wanted is None or found is None or wanted.column != found.column:
            return
        decode = column_type(self.wanted.by_name[wanted.column].type).decode
        for split in wanted.splits:
            if split not in found.splits:
                value = shown(decode(split))
                yield Difference(
                    "add range",
                    self.name,
                    f"a range of {self.name} that begins at {wanted.column}={value} is added; no row moves",
                    wanted.column,
                    self.changes.range_refusal(self.name, split),
                    partial(self.changes.add_range, self.name, split),
                )

    def _added_indexes(self) -> Iterator[Difference]:
        for rule in self.wanted.indexes:
            found = index_of(self.found, rule.column)
            if found is not None and found.unique == rule.unique and found.complete_from is not None:
                continue
            present = self.found.by_name.get(rule.column)
            is_copied = present is not None and present.missing is not None
            yield Difference(
                "add index",
                self.name,
                f"the {_index(rule.unique)} of {self.name}.{rule.column} is built and verified while writes "
                "go on",
                rule.column,
                self._observed(rule.column) if is_copied else "",
                make=partial(add_index, self.db, self.changes, self.name, rule.column, unique=rule.unique),
            )

    def _notify_only(self) -> Iterator[Difference]:
        for name in self.wanted.notify_only:
            if name in self.found.notify_only:
                continue
            refusal = ""
            try:
                with_notify_only(self.found, name)
            except ConfigurationError as error:
                refusal = str(error)
            if not self.wanted.is_typed and self._has_cells(name):
                refusal = (
                    f"{self.name}.{abbreviated(name)} holds data: give the notify-only column another name"
                )
            yield Difference(
                "add notify-only column",
                self.name,
                f"the notify-only column {self.name}.{name} is added",
                name,
                refusal,
                partial(self.changes.add_notify_only, self.name, name),
            )
        for name in self.found.notify_only:
            if name not in self.wanted.notify_only:
                yield _other(
                    self.name,
                    f"the notify-only column {self.name}.{name} is not declared",
                    "a notify-only column stays, because its notifications would be lost: declare it",
                    name,
                )

    def _has_cells(self, name: str) -> bool:
        with self.db.snapshot() as snapshot:
            try:
                return next(snapshot.scan(self.name, columns=[name], limit=1), None) is not None
            except UnknownColumn:
                return False  # another client has added the notify-only column

    def _base(self) -> Iterator[Difference]:
        wanted, found = self.wanted.base, self.found.base
        if wanted is None or wanted.agrees_with(found):
            return
        yield Difference(
            "set base",
            self.name,
            f"the table {self.name} gets a base for its older rows"
            if found is None
            else f"the base of the table {self.name} changes to the declared one",
            make=partial(give_base, self.db, self.name, wanted),
        )


def _index(unique: bool) -> str:
    return "unique index" if unique else "index"


def _range_column(definition: TableDefinition) -> str:
    return definition.ranges.column if definition.ranges else ""


def _value(column: Column) -> str:
    assert column.missing is not None
    return shown(column_type(column.type).decode(column.missing))
