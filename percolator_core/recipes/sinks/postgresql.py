"""Sinks that write tables of PostgreSQL: the payloads of items, or the rows of a typed table."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from percolator_core.errors import ConfigurationError
from percolator_core.recipes.sinks import seconds
from percolator_core.recipes.sinks.sql_table import Dialect, RowEffect, SQLTable
from percolator_core.tables.model import Table

if TYPE_CHECKING:
    import psycopg

LONGEST_KEY: Final = 2_600
"""A key of `PostgresSink` has at most this many bytes: an entry of PostgreSQL's index is limited."""

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Effect: TypeAlias = Callable[[Any, bytes, int, bytes], object]

T = TypeVar("T")


def _jsonb(value: Any) -> Any:
    from psycopg.types.json import Jsonb

    return Jsonb(value)


_DIALECT: Final = Dialect(
    True,
    {
        "bool": "boolean",
        "int": "bigint",
        "float": "double precision",
        "str": "text",
        "bytes": "bytea",
        "datetime": "timestamptz",
        "date": "date",
        "decimal": "numeric({p},{s})",
        "long decimal": "numeric({p},{s})",
        "uuid": "uuid",
        "json": "jsonb",
    },
    {"json": _jsonb},
)


class PostgresSink:
    """Stores the newest payload of each key, with its sequence, in a table of PostgreSQL.

    The table is ``(key bytea PRIMARY KEY, sequence bigint, payload bytea)``. To store more, pass an
    ``effect``: it is called in the transaction that takes an item, so its writes are committed exactly once.

    Threads and processes may use the table at the same time; each call has a connection of its own, which
    later calls use again. The sink is a context manager. It needs the extra ``postgres``.
    """

    def __init__(
        self,
        conninfo: str,
        table: str = "exports",
        *,
        effect: Effect | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Connect, and create the table if it is missing.

        Args:
            conninfo: the database, as for libpq: ``host=… dbname=…`` or ``postgresql://…``.
            table: the name of the table, with ``schema.`` in front if it is not in the search path.
            effect: called as ``effect(connection, key, sequence, payload)`` with psycopg's connection, for
                every new item. It must not end the transaction; an exception rolls the item back.
            timeout: seconds to wait for the connection, and for each statement, above 0.

        Raises:
            ConfigurationError: psycopg is not installed.
            psycopg.Error: the server cannot be reached, or refuses the table.
            ValueError: the timeout is not valid.
        """
        try:
            import psycopg
        except ImportError:
            raise ConfigurationError(
                "PostgresSink needs psycopg: pip install 'percolator-core[postgres]'"
            ) from None
        self._psycopg = psycopg
        self._conninfo = conninfo
        self._timeout = seconds(timeout)
        self._effect = effect
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._is_closed = False
        # psycopg takes a percent sign for the beginning of a placeholder.
        self._name = _DIALECT.name(table).replace("%", "%%")
        self._upsert = self._statement(
            # One statement compares and writes. It locks the row first, and then compares with the newest
            # sequence, also if another process has just committed it.
            "INSERT INTO {} AS kept (key, sequence, payload) VALUES (%s, %s, %s) ON CONFLICT (key) DO UPDATE "
            "SET sequence = excluded.sequence, payload = excluded.payload "
            "WHERE excluded.sequence > kept.sequence"
        )
        self._select = self._statement("SELECT sequence, payload FROM {} WHERE key = %s")
        self.create(table, "(key bytea PRIMARY KEY, sequence bigint NOT NULL, payload bytea NOT NULL)")

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Store the item if its sequence is above the key's newest one.

        Raises:
            psycopg.Error: the server did not take the item, or that is unknown.
            ValueError: the key has more than 2,600 bytes.
            Exception: the effect failed, and nothing was written.
        """
        self.apply(key, sequence, payload, self._effect)

    def apply(self, key: bytes, sequence: int, payload: bytes, effect: Effect | None) -> None:
        """Take an item as `take`, with this effect."""
        if len(key) > LONGEST_KEY:
            raise ValueError(
                f"a key of this sink has at most {LONGEST_KEY} bytes, not {len(key)}: add items with a digest"
            )

        def write(connection: Connection) -> None:
            changed = connection.execute(self._upsert, (key, sequence, payload))
            if changed.rowcount and effect is not None:
                effect(connection, key, sequence, payload)

        self.run(write)

    def get(self, key: str | bytes) -> tuple[int, bytes] | None:
        """Return the newest sequence and payload of a key, or None. Raises psycopg.Error."""
        key = key.encode() if isinstance(key, str) else key
        found = self.run(lambda connection: connection.execute(self._select, (key,)).fetchone())
        return None if found is None else (found[0], found[1])

    def close(self) -> None:
        """Close the connections that are not in use. Idempotent; the sink takes no further item."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction.

        A connection that was used before may have died, so the work is repeated once on a new one. If the
        first attempt has committed, the sequence is not above the stored one: the effect is not repeated.
        """
        with self._lock:
            if self._is_closed:
                raise ValueError("the sink is closed: make another one")
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            try:
                return self._transaction(connection, work)
            except self._psycopg.OperationalError:
                pass
        return self._transaction(self._connect(), work)

    def _transaction(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        try:
            with connection.transaction():
                result = work(connection)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return result
        connection.close()
        return result

    def _connect(self) -> Connection:
        milliseconds = math.ceil(1000 * self._timeout)
        connection = self._psycopg.connect(
            self._conninfo,
            autocommit=True,  # outside of the transactions that `transaction` begins
            connect_timeout=max(2, math.ceil(self._timeout)),  # libpq takes no less than 2 s
            tcp_user_timeout=milliseconds,
        )
        try:
            connection.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
            # The item leaves the queue after the commit, so the commit has to be on the disk.
            connection.execute(
                "SELECT set_config('statement_timeout', %s, false), set_config('synchronous_commit', "
                "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
                "ELSE current_setting('synchronous_commit') END, false)",
                (str(milliseconds),),
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def create(self, table: str, columns: str) -> None:
        """Create a table if it is missing. ``columns`` is SQL, the columns and the key in parentheses."""
        name = _DIALECT.name(table)

        def work(connection: Connection) -> None:
            exists = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
            if exists == (True,):
                return  # the user may lack the right to create tables
            # Processes that start together would both find no table, and one of them would fail.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (name,))
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} {columns}".encode())

        self.run(work)

    def _statement(self, text: str) -> bytes:
        return text.format(self._name).encode()


class PostgresTable(SQLTable):
    """A table of PostgreSQL with the rows of a typed table. It needs the extra ``postgres``.

    Each column has the type of PostgreSQL that has the same values: text, bigint, numeric, timestamptz, jsonb
    and so on. PostgreSQL's text and jsonb have no zero character: a row with one is refused. The encoded key
    of a row has at most 2,600 bytes.
    """

    def __init__(
        self,
        conninfo: str,
        model: type[Table],
        table: str | None = None,
        *,
        effect: RowEffect | None = None,
        timeout: float = 10.0,
    ) -> None:
        """The connection is opened at the first use.

        Args:
            conninfo: the database, as for libpq: ``host=… dbname=…`` or ``postgresql://…``.
            model: the typed table.
            table: the name of the SQL table, with ``schema.`` in front if it is not in the search path.
                Default: the name of the typed table.
            effect: as for `SQLiteTable`, with psycopg's connection.
            timeout: seconds to wait for the connection, and for each statement, above 0.

        Raises:
            ConfigurationError: the model cannot be a table.
            ValueError: the timeout is not valid.
        """
        super().__init__(model, table, _DIALECT, effect)
        self._conninfo = conninfo
        self._timeout = seconds(timeout)

    def _connect(self) -> PostgresSink:
        return PostgresSink(self._conninfo, f"{self.table}_exports", timeout=self._timeout)

    def _create(self, taker: PostgresSink) -> None:
        taker.create(self.table, self.statements.columns)
