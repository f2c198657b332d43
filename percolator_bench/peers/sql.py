"""The rows of the `micro` suite in a table of PostgreSQL, through psycopg 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from percolator_bench.peers.rows import SCANNED, VALUE, Rows

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_TABLE: Final = 'CREATE TABLE bench ("row" bytea PRIMARY KEY, c bytea)'
_GET: Final = 'SELECT c FROM bench WHERE "row" = %s'
_SET: Final = 'INSERT INTO bench VALUES (%s, %s) ON CONFLICT ("row") DO UPDATE SET c = excluded.c'
_SCAN: Final = f'SELECT "row", c FROM bench WHERE "row" >= %s ORDER BY "row" LIMIT {SCANNED}'  # noqa: S608
_PREPARED_AFTER: Final = 6
"""After this many executions on a connection, psycopg lets the server prepare the statement."""


class SqlRows:
    """The operations, on a given connection in autocommit mode. Thread-safe.

    A single statement is a transaction of its own, in one round trip. The isolation is that of the
    connection, REPEATABLE READ. A transaction that fails because of this isolation
    (`psycopg.errors.SerializationFailure`) or of a deadlock runs again as a whole, and is counted.
    """

    def __init__(self, rows: Rows) -> None:
        import psycopg

        self._rows = rows
        self._refused = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
        self._lock = Lock()
        self.repeats = 0

    def load(self, connection: Connection) -> None:
        """Create the table and write the rows for reads."""
        with connection.transaction():
            connection.execute(_TABLE)
            with connection.cursor() as cursor, cursor.copy("COPY bench FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["bytea", "bytea"])
                for row in self._rows.all_loaded():
                    copy.write_row((row, VALUE))
        connection.execute("VACUUM ANALYZE bench")

    def warm_up(self, connections: Iterable[Connection]) -> None:
        """Prepare the statements of each connection, as in a program with long-lived connections."""
        for position, connection in enumerate(connections):
            for _ in range(_PREPARED_AFTER):
                self.get(connection, position)
                self.set(connection, position)
                self.scan(connection, position)

    def get(self, connection: Connection, number: int) -> None:
        """Read one row by its key."""
        connection.execute(_GET, (self._rows.read(number),), binary=True).fetchone()

    def set(self, connection: Connection, number: int) -> None:
        """Write a new row."""
        row = self._rows.write(number)
        self._until_done(lambda: connection.execute(_SET, (row, VALUE)))

    def two_and_two(self, connection: Connection, number: int) -> None:
        """Run two selects and two inserts in a transaction."""

        def transact() -> None:
            with connection.transaction():
                for row in self._rows.read_pair(number):
                    connection.execute(_GET, (row,), binary=True).fetchone()
                for row in self._rows.write_pair(number):
                    connection.execute(_SET, (row, VALUE))

        self._until_done(transact)

    def scan(self, connection: Connection, number: int) -> None:
        """Read the next rows in the order of their keys."""
        found = connection.execute(_SCAN, (self._rows.scan_from(number),), binary=True).fetchall()
        if len(found) != SCANNED:
            raise AssertionError(f"a scan in PostgreSQL found {len(found)} rows, not {SCANNED}")

    def _until_done(self, work: Callable[[], object]) -> None:
        while True:
            try:
                work()
            except self._refused:
                with self._lock:
                    self.repeats += 1
            else:
                return


def set_synchronous(connections: Iterable[Connection], *, on: bool) -> None:
    """Choose if commits on these connections wait for the disk."""
    for connection in connections:
        connection.execute(f"SET synchronous_commit TO {'on' if on else 'off'}".encode())
