"""Loader transactions: each reads the cells of its records, and writes only values that differ.

So repeated tasks, speculative tasks and repeated loads write nothing, and an unchanged record starts no
observer. In a raw table each record has a separate transaction. In a typed table a group of records shares a
transaction, which reads all rows in one round trip. If a row or an index refuses a record, the other records
of the group are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, RowExists, TransactionConflict, UnknownColumn
from percolator_core.loading.records import BadRecord, Record
from percolator_core.loading.repeatable import run
from percolator_core.loading.typed_records import TypedRecords
from percolator_core.tables import rows
from percolator_core.tables.binding import Binding, Cells, binding_of
from percolator_core.transaction.transaction import Transaction

Check = Callable[[], object]
"""Called before each commit; raises an error to prevent the commit."""


def merge(db: Database, table: str, record: Record, check: Check | None = None) -> str | BadRecord:
    """Load a record into a raw table; return ``new``, ``changed``, ``unchanged`` or the malformed record."""
    try:
        return run(db, partial(merge_cells, table, record), check)
    except (UnknownColumn, ValueError) as error:
        return BadRecord(record.origin, str(error), key=record.key)


def merge_cells(table: str, record: Record, t: Transaction) -> str:
    """Write a record into a raw table, as a part of a transaction; return the outcome, as `merge` does.

    Raises UnknownColumn or ValueError before anything is written.
    """
    stored = t.get_row(table, record.key, record.cells)
    outcome = "unchanged"
    for column, value in record.cells.items():
        if stored.get(column) == value:
            continue
        outcome = "changed" if stored else "new"
        if value is None:
            t.delete(table, record.key, column)
        else:
            t.set(table, record.key, column, value)
    return outcome


def remove(db: Database, table: str, row: bytes, columns: Iterable[str]) -> bool:
    """Delete cells of a row of a raw table. Return False if the row had none of them."""

    def transaction(t: Transaction) -> bool:
        stored = t.get_row(table, row, columns)
        for column in stored:
            t.delete(table, row, column)
        return bool(stored)

    return run(db, transaction)


def merge_group(
    db: Database, typed: TypedRecords, group: Sequence[Record], check: Check | None = None
) -> list[str | BadRecord]:
    """Load a group of records into a typed table; return the outcome of each, as `merge` does.

    Raises ConfigurationError if the definition of the table has changed since the load began.
    """
    try:
        return run(db, partial(merge_rows, typed, group), check)
    except TransactionConflict:
        if len(group) == 1:
            raise
        # With so many rows, each attempt may meet a write of another client: load the records one by one.
        return [outcome for record in group for outcome in merge_group(db, typed, [record], check)]


def merge_rows(typed: TypedRecords, group: Sequence[Record], t: Transaction) -> list[str | BadRecord]:
    """Write records into a typed table, as a part of a transaction; return the outcomes, as `merge_group`.

    The keys differ. Raises ConfigurationError if the definition of the table is not that of ``typed``.
    """
    name = typed.definition.name
    handle = t.handle_of(name)
    if handle.version != typed.version:
        raise ConfigurationError(f"the table {name!r} has changed since the load began: load again")
    binding = binding_of(handle, None)
    rows.prefetch(t, handle, [(record.key, record.cells) for record in group], whole=True)
    columns = [column.name for column in handle.definition.value_columns]
    stored = rows.read_many(t, handle, [record.key for record in group], columns)
    outcomes: list[str | BadRecord] = []
    for record, row in zip(group, stored, strict=True):
        try:
            outcomes.append(_merge_row(t, binding, record, row))
        except (RowExists, UnknownColumn, ValueError) as error:
            shown = typed.described(record.key)
            outcomes.append(BadRecord(record.origin, str(error), key=record.key, shown=shown))
    return outcomes


def _merge_row(t: Transaction, binding: Binding, record: Record, row: Cells | None) -> str:
    handle = binding.handle
    if row is None:
        binding.must_be_whole(record.key, record.cells)
        # In a new row a null needs no cell.
        given = {name: value for name, value in record.cells.items() if value is not None}
        rows.insert(t, handle, record.key, given)
        return "new"
    changed = {name: value for name, value in record.cells.items() if value != row[name]}
    if not changed:
        return "unchanged"
    rows.update(t, handle, record.key, changed)
    return "changed"
