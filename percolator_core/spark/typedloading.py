"""Loader transactions of typed tables: some records each, whose rows are added or changed where they differ.

A transaction looks at all its rows in one round trip. A record that its row or an index refuses leaves the
others alone: nothing was written of it when it is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from operator import attrgetter

from percolator_core.database import Database
from percolator_core.errors import (
    ConfigurationError,
    RowExists,
    TransactionConflict,
    UnknownColumn,
)
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.predicates import Comparison
from percolator_core.spark.records import BadRecord, Record
from percolator_core.spark.repeatable import in_groups, run
from percolator_core.spark.typedrecords import TypedRecords
from percolator_core.tables import rows
from percolator_core.tables.binding import Binding, Cells, binding_of
from percolator_core.transaction.transaction import Transaction


def groups(typed: TypedRecords, records: Sequence[Record]) -> Iterator[list[Record]]:
    """The records of one transaction each: as many as one call to the store commits."""
    return in_groups(typed.definition, records, attrgetter("size"))


def merge_group(
    db: Database,
    typed: TypedRecords,
    group: Sequence[Record],
    check: Callable[[], object] | None = None,
) -> list[str | BadRecord]:
    """Runs the transaction of some records: of each ``new``, ``changed``, ``unchanged``, or why it cannot be.

    For ``check`` see `percolator_core.spark.repeatable.run`.

    Raises ConfigurationError if the table is no longer what it was when the load began.
    """
    try:
        return run(db, partial(_merge, typed, group), check)
    except TransactionConflict:
        if len(group) == 1:
            raise
        # Among many rows there may be one at any time that somebody else writes.
        return [outcome for record in group for outcome in merge_group(db, typed, [record], check)]


def _merge(typed: TypedRecords, group: Sequence[Record], t: Transaction) -> list[str | BadRecord]:
    name = typed.definition.name
    handle = t.handle_of(name)
    if handle.version != typed.version:
        raise ConfigurationError(f"the table {name!r} was changed since the load began: load again")
    binding = binding_of(handle, None)
    rows.prefetch(t, handle, [(record.key, record.cells) for record in group], whole=True)
    columns = [column.name for column in handle.definition.value_columns]
    found = rows.read_many(t, handle, [record.key for record in group], columns)
    outcomes: list[str | BadRecord] = []
    for record, row in zip(group, found, strict=True):
        try:
            outcomes.append(_merge_one(t, binding, record, row))
        except (RowExists, UnknownColumn, ValueError) as error:
            shown = typed.described(record.key)
            outcomes.append(BadRecord(record.origin, str(error), key=record.key, shown=shown))
    return outcomes


def _merge_one(t: Transaction, binding: Binding, record: Record, row: Cells | None) -> str:
    handle = binding.handle
    if row is None:
        binding.must_be_whole(record.key, record.cells)
        # A null needs no cell where there was none.
        given = {name: value for name, value in record.cells.items() if value is not None}
        rows.insert(t, handle, record.key, given)
        return "new"
    changed = {name: value for name, value in record.cells.items() if value != row[name]}
    if not changed:
        return "unchanged"
    rows.update(t, handle, record.key, changed)
    return "changed"


def check_prefix(definition: TableDefinition, prefix: str | bytes) -> None:
    """Raise ConfigurationError unless the table's keys can begin with the prefix."""
    kinds = [column.type for column in definition.key_columns]
    if kinds not in (["str"], ["bytes"]):
        columns = ", ".join(f"{column.name} {column.type}" for column in definition.key_columns)
        raise ConfigurationError(
            f"rows to delete are known by how their keys begin, and the key of {definition.name} is not one "
            f"column of text but ({columns}): leave --delete-missing out, and remove rows in a transaction."
        )
    if kinds == ["str"]:
        _text(definition, prefix)


def remove_missing(db: Database, table: str, prefix: str | bytes, keys: Collection[bytes]) -> int:
    """Remove the rows whose keys begin with the prefix and are not among these; how many there were."""
    definition = db.catalog.table(table).definition
    (column,) = definition.key_columns
    start = _text(definition, prefix) if column.type == "str" else _bytes(prefix)

    def remove(value: str | bytes) -> bool:
        return run(db, lambda t: t.remove(table, **{column.name: value}))

    with db.snapshot() as snapshot, db.concurrency() as executor:
        found = snapshot.select(table, Comparison(column.name, "^=", start), [column.name])
        values = (row[column.name] for row in found)
        return sum(executor.map(remove, (value for value in values if _bytes(value) not in keys)))


def _text(definition: TableDefinition, prefix: str | bytes) -> str:
    try:
        return prefix if isinstance(prefix, str) else prefix.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{prefix!r} is no text, as the keys of {definition.name} are: delete rows by another prefix."
        ) from None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
