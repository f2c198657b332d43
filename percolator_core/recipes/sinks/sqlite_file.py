"""A sink that writes an SQLite file."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeAlias

_PAUSE: Final = 0.01

Effect: TypeAlias = Callable[[sqlite3.Connection, bytes, int, bytes], object]


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
                if changed.rowcount and self._effect is not None:
                    self._effect(connection, key, sequence, payload)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def get(self, key: str | bytes) -> tuple[int, bytes] | None:
        """Return the newest sequence and payload of a key, or None."""
        key = key.encode() if isinstance(key, str) else key
        with self._lock:
            found = self._connection.execute(
                f"SELECT sequence, payload FROM {self._name} WHERE key = ?",  # noqa: S608
                (key,),
            ).fetchone()
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
