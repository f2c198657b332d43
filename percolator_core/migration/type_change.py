"""Change the type of a column, and build indexes, while other clients write.

Most changes of a type need a copy of the column:

1. All values are converted once, without a write. If one value has no exact equivalent, the column does not
   change.
2. The definition gets an internal column of the new type. From then on a write of the column also writes the
   internal column, in the same transaction. Writers of the old definition are refused, and repeat the
   transaction. A value without an exact equivalent is refused.
3. The internal cells of all earlier rows are written. A concurrent write of a row conflicts with the copy,
   because both write the internal cell. So the copy never replaces a newer value.
4. A snapshot verifies all rows.
5. If the column has an index, the index of the internal column is built. So a unique column stays unique.
6. The definition replaces the column by the internal one. Older snapshots are refused, because they would
   miss cells. Then the cells of the old column are removed.

Each step may be repeated, also by several clients at the same time. After a crash, the copy or the unfinished
index stays in the definition, and a repetition continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, PercolatorError
from percolator_core.layout.records import PUT
from percolator_core.runtime.batches import batched
from percolator_core.schema.conversions import copied, is_widening
from percolator_core.schema.definition_changes import copy_of, index_of, kind_of, with_copy
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.tables.indexes import GONE, described, indexes_of
from percolator_core.tables.lookup import found_rows
from percolator_core.tables.query import Query
from percolator_core.tables.verify import (
    AT_ONCE,
    Repairable,
    index_differences,
    rebuild_indexes,
    run_in_parts,
)

MOST_PASSES: Final = 3
"""At most this many passes over the table; a pass that finds no difference is the verification.

The first pass writes the missing cells or entries. Writers keep them up to date, so the second pass usually
finds no difference.
"""


@dataclass(frozen=True, slots=True)
class ColumnCopy:
    """The change of one column to the type and nullability of ``wanted``.

    ``if_null`` is the encoded value that replaces null if the new column may not be null; None refuses null.
    """

    db: Repairable
    changes: SchemaChanges
    table: str
    wanted: Column
    if_null: bytes | None

    def run(self) -> None:
        """Copy and verify the column, build the index of the copy, and replace the column.

        Raises:
            ConfigurationError: a value has no exact equivalent, or the column cannot be changed.
            RowExists: as `build_index`.
            TransactionConflict, LockTimeout, SnapshotTooOld, StoreUnavailable: call again to continue.
        """
        self._check_values()
        self.changes.start_copy(self.table, self.wanted, self.if_null)
        try:
            stored = self.fill()
        except ConfigurationError:
            self.changes.end_copy(self.table, self.wanted.name)
            raise
        if stored is not None:
            build_index(self.db, self.changes, self.table, stored, must_exist=False)
            self.changes.switch_to_copy(self.table, stored)
        build_index(self.db, self.changes, self.table, self.wanted.name, must_exist=False)

    def _check_values(self) -> None:
        """Convert all values without a write, unless the copy has begun. Raises ConfigurationError."""
        with self.db.snapshot() as snapshot:
            handle = snapshot.handle_of(self.table)
            new = with_copy(handle.definition, self.wanted, self.if_null)
            if new is handle.definition:
                return
            copy = new.copies[-1]
            source = handle.definition.column(self.wanted.name)
            for row, (value,) in found_rows(snapshot, Query(handle, (source,)), limit=None, reverse=False):
                _expected(handle, row, source, copy, value)

    def fill(self) -> str | None:
        """Write the missing cells of the copy until a pass over all rows finds none; return its stored name.

        None means that another client has already replaced the column.
        """
        for _ in range(MOST_PASSES):
            with self.db.snapshot() as snapshot:
                handle = snapshot.handle_of(self.table)
                copy = copy_of(handle.definition, self.wanted.name)
                if copy is None:
                    return None
                is_verified = True
                for some in batched(self._differing(snapshot, handle, copy), AT_ONCE):
                    is_verified = False
                    for _done in run_in_parts(self.db, self._write, some):
                        pass
            if is_verified:
                return copy.stored
        raise PercolatorError(
            f"{self.table}.{self.wanted.name}: after {MOST_PASSES} passes the copy still differs from the "
            "column, so the column was not changed: another program may write to the store without this "
            "library; migrate again"
        )

    def _differing(self, snapshot: Any, handle: TableHandle, copy: Column) -> Iterator[bytes]:
        """Yield the rows whose cell in the copy is not the converted value of the column."""
        source = handle.definition.column(self.wanted.name)
        query = Query(handle, (source, copy))
        for row, (value, found) in found_rows(snapshot, query, limit=None, reverse=False):
            if found != _expected(handle, row, source, copy, value):
                yield row

    def _write(self, t: Any, some: Sequence[bytes]) -> None:
        """Write the cells of the copy in some rows, as the rows are now."""
        handle = t.handle_of(self.table)
        copy = copy_of(handle.definition, self.wanted.name)
        if copy is None:
            return
        source = handle.definition.column(self.wanted.name)
        fields = [handle.marker, handle.columns[source.name], handle.columns[copy.name]]
        values = t.values_of((handle, row, fields) for row in some)
        for row, (marker, value, found) in zip(some, values, strict=True):
            if marker is None:
                continue  # the row was removed
            expected = _expected(handle, row, source, copy, value)
            if found != expected:
                t.put(handle, row, fields[2].encoded, GONE if expected is None else (PUT, expected))


def _expected(
    handle: TableHandle, row: bytes, source: Column, copy: Column, value: bytes | None
) -> bytes | None:
    try:
        return copied(source, copy, value)
    except ValueError as error:
        raise ConfigurationError(
            f"{handle.name}.{source.name} cannot become {copy.type}: row {described(handle, row)}: {error}: "
            "the column stays as it is; change the row, and migrate again"
        ) from None


@dataclass(frozen=True, slots=True)
class TypeChange:
    """The change of a column to the type and nullability of ``wanted``.

    Without ``is_copy`` only the definition changes. ``is_narrowing`` is True if some values of the present
    type have no equivalent. ``refusal`` is empty, or says why the change is impossible, and what to do.
    """

    table: str
    wanted: Column
    description: str
    is_copy: bool
    is_narrowing: bool
    refusal: str = ""

    def make(self, db: Repairable, changes: SchemaChanges) -> None:
        """Make the change. Raises as `ColumnCopy.run`."""
        name = self.wanted.name
        with db.snapshot() as snapshot:
            found = copy_of(snapshot.handle_of(self.table).definition, name)
        if found is not None and not (self.is_copy and _is_for(found, self.wanted)):
            changes.end_copy(self.table, name)
        if self.is_copy:
            column = replace(self.wanted, missing=None)
            ColumnCopy(db, changes, self.table, column, self.wanted.missing).run()
        elif self.wanted.nullable:
            changes.allow_null(self.table, name)


def type_change(definition: TableDefinition, wanted: Column) -> TypeChange | None:
    """Return the change of the column ``wanted.name``, or None if it needs none.

    If the new column may not be null, ``wanted.missing`` replaces null; with None, null is refused.
    """
    found, copy = definition.column(wanted.name), copy_of(definition, wanted.name)
    where = f"{definition.name}.{wanted.name}"
    if (found.type, found.nullable) == (wanted.type, wanted.nullable):
        if copy is None or copy.copy is None:
            return None
        if (copy.type, copy.copy.nullable) == (found.type, found.nullable):
            # The copy is the first step of an index, which another client may still be building.
            what = f"the unfinished copy of {where} is finished, which gives each row a cell"
            wanted = replace(found, missing=copy.copy.if_null)
            return TypeChange(definition.name, wanted, what, is_copy=True, is_narrowing=False)
        what = f"the unfinished change of {where} to {copy.type} is taken back"
        return TypeChange(definition.name, found, what, is_copy=False, is_narrowing=False)
    if found.type == wanted.type and wanted.nullable and found.missing is None:
        what = f"the column {where} may be null"
        return TypeChange(definition.name, wanted, what, is_copy=False, is_narrowing=False)
    try:
        with_copy(definition.with_(columns=definition.shown_columns), replace(wanted, missing=None), None)
        refusal = ""
    except ConfigurationError as error:
        refusal = str(error)
    return TypeChange(
        definition.name,
        wanted,
        f"the column {where} becomes {kind_of(wanted)} instead of {kind_of(found)}; its values are copied "
        "and verified while writes go on",
        is_copy=True,
        is_narrowing=not is_widening(found.type, wanted.type) or (found.nullable and not wanted.nullable),
        refusal=refusal,
    )


def build_index(
    db: Repairable, changes: SchemaChanges, table: str, column: str, *, must_exist: bool = True
) -> None:
    """Add the missing entries of an index that is being built, and verify the index.

    1. The definition has the index, marked as incomplete. So each writer also writes the entries of its rows,
       and writers that use the old definition are refused.
    2. The entries of all earlier rows are added. A concurrent write of a row conflicts with the addition of
       its entry, so that the addition runs again.
    3. A snapshot verifies that rows and entries agree. Then the index is complete: selects of later snapshots
       use it.

    ``must_exist`` is False if there may be no index: then there is nothing to do.

    Raises:
        RowExists: two rows have the same value in a unique column: change one of them, and call again.
        ValueError: an entry would be too long: change the row that the message names, and call again.
        ConfigurationError: another client has dropped the index.
        TransactionConflict, LockTimeout, SnapshotTooOld, StoreUnavailable: call again to continue.
    """
    for _ in range(MOST_PASSES):
        with db.snapshot() as snapshot:
            handle = snapshot.handle_of(table)
            rule = index_of(handle.definition, column)
            if rule is None and not must_exist:
                return
            if rule is None:
                raise ConfigurationError(
                    f"the index of {table}.{column} was dropped by another program: migrate with one program "
                    "only"
                )
            if rule.complete_from is not None:
                return
            chosen = [one for one in indexes_of(handle) if one.rule == rule]
            if next(index_differences(snapshot, handle, chosen), None) is None:
                changes.complete_index(table, rule.table)
                return
        rebuild_indexes(db, table, rule.table)
    raise PercolatorError(
        f"{table}.{column}: after {MOST_PASSES} passes the index still differs from the rows, so it is not "
        "used: another program may write to the store without this library; migrate again"
    )


def add_index(db: Repairable, changes: SchemaChanges, table: str, name: str, *, unique: bool) -> None:
    """Add an index and build it, or finish an index that is being built. Raises as `Database.add_index`."""
    with db.snapshot() as snapshot:
        definition: TableDefinition = snapshot.handle_of(table).definition
    column = definition.column(name)
    if column.missing is not None and index_of(definition, name) is None:
        # Rows without a cell have the default, and would have no entry. The copy gives each row a cell.
        ColumnCopy(db, changes, table, replace(column, missing=None), column.missing).run()
    changes.add_index(table, name, unique=unique)
    build_index(db, changes, table, name)


def _is_for(copy: Column, wanted: Column) -> bool:
    assert copy.copy is not None
    same = (copy.type, copy.copy.nullable) == (wanted.type, wanted.nullable)
    return same and (wanted.nullable or wanted.missing in {None, copy.copy.if_null})
