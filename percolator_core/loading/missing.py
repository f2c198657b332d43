"""Delete rows that a source lacks; in a raw table delete only the loaded columns of these rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.loading.repeatable import run
from percolator_core.loading.transactions import remove
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.predicates import Comparison


def check_prefix(definition: TableDefinition, prefix: str | bytes) -> None:
    """Raise ConfigurationError unless the keys of a typed table can begin with the prefix."""
    kinds = [column.type for column in definition.key_columns]
    if kinds not in (["str"], ["bytes"]):
        columns = ", ".join(f"{column.name} {column.type}" for column in definition.key_columns)
        raise ConfigurationError(
            f"--delete-missing needs a key of one text column, and the key of {definition.name} is "
            f"({columns}): leave --delete-missing out, and remove rows in a transaction."
        )
    try:
        if kinds == ["str"] and isinstance(prefix, bytes):
            prefix.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{prefix!r} is no text, but the keys of {definition.name} are texts: use another prefix."
        ) from None


def delete_missing_rows(db: Database, table: str, prefix: str | bytes, keys: Collection[bytes]) -> int:
    """Remove rows of a typed table that have the prefix and are not in ``keys``; return their number."""
    (column,) = db.catalog.table(table).definition.key_columns
    start = _bytes(prefix).decode() if column.type == "str" else _bytes(prefix)

    def remove_row(value: str | bytes) -> bool:
        return run(db, lambda t: t.remove(table, **{column.name: value}))

    with db.snapshot() as snapshot, db.concurrency() as executor:
        found = snapshot.select(table, Comparison(column.name, "^=", start), [column.name])
        values = (row[column.name] for row in found)
        return sum(executor.map(remove_row, (value for value in values if _bytes(value) not in keys)))


def delete_missing_cells(
    db: Database, table: str, prefix: str | bytes, keys: Collection[bytes], columns: Iterable[str]
) -> int:
    """Delete cells of raw rows that have the prefix and are not in ``keys``; return the number of rows."""
    loaded = sorted(columns)
    rows = db.snapshot().scan(table, prefix=prefix, columns=loaded)
    missing = (row for row, _ in rows if row not in keys)
    with db.concurrency() as executor:
        return sum(executor.map(lambda row: remove(db, table, row, loaded), missing))


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
