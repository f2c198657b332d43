"""Sinks that write an SQLite file: the payloads of items, or the rows of a typed table."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar

from percolator_core.recipes.sinks import seconds
from percolator_core.recipes.sinks.sql_table import Dialect, RowEffect, SQLTable
from percolator_core.tables.model import Table

_PAUSE: Final = 0.01

Effect: TypeAlias = Callable[[sqlite3.Connection, bytes, int, bytes], object]

T = TypeVar("T")


_DIALECT: Final = Dialect(
    False,
    {
        "bool": "INTEGER",
        "int": "INTEGER",
        "float": "REAL",
        "str": "TEXT",
        "bytes": "BLOB",
        "datetime": "TEXT",
        "date": "TEXT",
        # SQLite has floats, and no exact decimals.
        "decimal": "NUMERIC",
        "long decimal": "TEXT",
        "uuid": "TEXT",
        "json": "TEXT",
    },
    {
        "decimal": str,
        "datetime": lambda value: value.isoformat(),
        "date": lambda value: value.isoformat(),
        "uuid": str,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
    },
    loose=frozenset({"float"}),  # SQLite stores NaN as null
)


class SQLiteSink:
    """Stores the newest payload of each key, with its sequence, in an SQLite file.

    The table is ``(key BLOB PRIMARY KEY, sequence INTEGER, payload BLOB)``. To store more, pass an
    ``effect``: it is called in the transaction that takes an item, so its writes are committed exactly once.

    Threads may share the sink, and processes may share the file. The sink is a context manager.
    """

    def __init__(
        self,
        path: str | Path,
        table: str = "exports",
        *,
        effect: Effect | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Open or create the file and the table.

        Args:
            path: the file; its folder must exist.
            table: the name of the table.
            effect: called as ``effect(connection, key, sequence, payload)`` for every new item, in a
                transaction. It must not end the transaction; an exception rolls the item back.
            timeout: seconds to wait for another process that writes.

        Raises:
            sqlite3.Error: the file cannot be opened, or is not a database.
        """
        self._name = '"' + table.replace('"', '""') + '"'
        self._effect = effect
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            path, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(time.monotonic() + timeout)
        except BaseException:
            self._connection.close()
            raise

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Store the item if its sequence is above the key's newest one.

        Raises:
            sqlite3.Error: nothing was written: the disk is full, or another process has the lock.
            Exception: the effect failed, and nothing was written.
        """
        self.apply(key, sequence, payload, self._effect)

    def apply(self, key: bytes, sequence: int, payload: bytes, effect: Effect | None) -> None:
        """Take an item as `take`, with this effect."""
        connection = self._connection
        with self._lock:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")  # an earlier call was interrupted before its rollback
                connection.execute("BEGIN IMMEDIATE")
                changed = connection.execute(
                    # One statement compares and writes, so that two processes cannot both find a lower
                    # sequence in the file.
                    f"INSERT INTO {self._name} AS kept VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "  # noqa: S608
                    "SET sequence = excluded.sequence, payload = excluded.payload "
                    "WHERE excluded.sequence > kept.sequence",
                    (key, sequence, payload),
                )
                if changed.rowcount and effect is not None:
                    effect(connection, key, sequence, payload)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of statements that change no item, each in a transaction of its own."""
        with self._lock:
            return work(self._connection)

    def get(self, key: str | bytes) -> tuple[int, bytes] | None:
        """Return the newest sequence and payload of a key, or None."""
        key = key.encode() if isinstance(key, str) else key
        select = f"SELECT sequence, payload FROM {self._name} WHERE key = ?"  # noqa: S608
        found = self.run(lambda connection: connection.execute(select, (key,)).fetchone())
        return None if found is None else (found[0], found[1])

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, deadline: float) -> None:
        """Switch to a write-ahead log, and create the table."""
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # Several processes may open the file at the same time. SQLite does not wait for this lock.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
        # A write has to survive a loss of power, because the item leaves the queue after the write.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._name} "
            "(key BLOB PRIMARY KEY, sequence INTEGER NOT NULL, payload BLOB NOT NULL)"
        )


class SQLiteTable(SQLTable):
    """A table of an SQLite file with the rows of a typed table.

    A datetime, a date and a UUID are text, as is a decimal with over 15 digits; other decimals are NUMERIC.
    JSON is text, and a bool is 0 or 1. A NaN becomes null.
    """

    def __init__(
        self,
        path: str | Path,
        model: type[Table],
        table: str | None = None,
        *,
        effect: RowEffect | None = None,
        timeout: float = 10.0,
    ) -> None:
        """The file is opened at the first use.

        Args:
            path: the file, which is created if it is missing; its folder must exist.
            model: the typed table.
            table: the name of the SQL table. Default: the name of the typed table.
            effect: called as ``effect(connection, key, row)`` after each change of a row, in its transaction;
                ``key`` is a dict, and ``row`` is None if the row was deleted. It must not end the
                transaction; an exception rolls the change back.
            timeout: seconds to wait for another process that writes, above 0.

        Raises:
            ConfigurationError: the model cannot be a table.
            ValueError: the timeout is not valid.
        """
        super().__init__(model, table, _DIALECT, effect)
        self._path = path
        self._timeout = seconds(timeout)

    def _connect(self) -> SQLiteSink:
        return SQLiteSink(self._path, f"{self.table}_exports", timeout=self._timeout)

    def _create(self, taker: SQLiteSink) -> None:
        taker.run(lambda connection: connection.execute(self.statements.create))
