"""Delete rows that a source no longer has; in a raw table only the loaded columns of such rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.predicates import Comparison
from percolator_core.spark.loading.repeatable import run
from percolator_core.spark.loading.transactions import remove


def check_prefix(definition: TableDefinition, prefix: str | bytes) -> None:
    """Raise ConfigurationError unless the keys of a typed table can begin with the prefix."""
    kinds = [column.type for column in definition.key_columns]
    if kinds not in (["str"], ["bytes"]):
        columns = ", ".join(f"{column.name} {column.type}" for column in definition.key_columns)
        raise ConfigurationError(
            f"rows to delete are chosen by a prefix of the key, and the key of {definition.name} is not one "
            f"column of text but ({columns}): leave --delete-missing out, and remove rows in a transaction."
        )
    if kinds == ["str"]:
        _text(definition, prefix)


def delete_missing_rows(db: Database, table: str, prefix: str | bytes, keys: Collection[bytes]) -> int:
    """Remove the rows of a typed table with the prefix that are not in ``keys``; return their number."""
    definition = db.catalog.table(table).definition
    (column,) = definition.key_columns
    start = _text(definition, prefix) if column.type == "str" else _bytes(prefix)

    def remove_row(value: str | bytes) -> bool:
        return run(db, lambda t: t.remove(table, **{column.name: value}))

    with db.snapshot() as snapshot, db.concurrency() as executor:
        found = snapshot.select(table, Comparison(column.name, "^=", start), [column.name])
        values = (row[column.name] for row in found)
        return sum(executor.map(remove_row, (value for value in values if _bytes(value) not in keys)))


def delete_missing_cells(
    db: Database, table: str, prefix: str | bytes, keys: Collection[bytes], columns: Iterable[str]
) -> int:
    """Delete these columns of the rows of a raw table with the prefix that are not in ``keys``.

    Return the number of rows.
    """
    loaded = sorted(columns)
    rows = db.snapshot().scan(table, prefix=prefix, columns=loaded)
    missing = (row for row, _ in rows if row not in keys)
    with db.concurrency() as executor:
        return sum(executor.map(lambda row: remove(db, table, row, loaded), missing))


def _text(definition: TableDefinition, prefix: str | bytes) -> str:
    try:
        return prefix if isinstance(prefix, str) else prefix.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{prefix!r} is no text, as the keys of {definition.name} are: delete rows by another prefix."
        ) from None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
