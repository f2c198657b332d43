"""A PostgreSQL server: its catalog, the slot, and the copy of a table.

Two connections are open. One speaks the replication protocol ("Streaming Replication Protocol" of
PostgreSQL): it makes the slot and then streams. The other one runs queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString, Self
from zlib import crc32

import psycopg
from psycopg import sql

from percolator_core.errors import ConfigurationError
from percolator_core.replication.messages import FULL, Fields, Relation, RelationColumn
from percolator_core.replication.report import SlotInUse, lsn_of

_SETTINGS: Final = (
    "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = 'hex'; "
    "SET intervalstyle = 'postgres'; SET statement_timeout = 0; SET lock_timeout = 0; "
    "SET row_security = off; SET idle_in_transaction_session_timeout = 0"
)
"""The settings that the texts of values depend on, and no time limits.

Without ``row_security = off`` the copy would leave out rows that a policy hides from the user, although the
stream has their changes. With it PostgreSQL refuses the copy.
"""

_DEAD_AFTER: Final = 30
"""Seconds after which a connection without any answer of the network is given up."""

_LOCK_WAIT: Final = 5.0
_LOCK_LOOK: Final = 0.05
"""Seconds to wait for the lock of the slot: the server may not have noticed yet that the last owner died."""

_LOCKS: Final = 0x50657263
"""The first half of the advisory locks of this module; the second half is a hash of the slot's name."""

_FIRST_OWN_TYPE: Final = 16_384
"""Types that are built in have lower numbers (OIDs), and are no domains."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot. ``confirmed``: the server drops the log before this position."""

    plugin: str
    database: str
    confirmed: int
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Published:
    """A table of a publication."""

    relation: Relation
    schema: str
    table: str
    is_partitioned: bool
    primary_key: tuple[str, ...]
    unique: tuple[frozenset[str], ...]
    """The columns of each unique index, the primary key included."""
    row_filter: str | None


class PostgreSQL:
    """The connections of one session of a replication; a context manager."""

    def __init__(self, conninfo: str, slot: str) -> None:
        """Connect.

        Raises:
            psycopg.OperationalError: the server cannot be reached.
            ConfigurationError: the server is not set up for logical replication.
        """
        self._slot = slot
        settings: dict[str, Any] = {
            "autocommit": True,
            "client_encoding": "UTF8",
            "application_name": f"percolator replicate {slot}",
            "prepare_threshold": None,
            "keepalives_idle": _DEAD_AFTER // 3,
            "keepalives_interval": _DEAD_AFTER // 6,
            "keepalives_count": 4,
            "tcp_user_timeout": 1000 * _DEAD_AFTER,
            "connect_timeout": _DEAD_AFTER,
        }
        self.replication = psycopg.connect(conninfo, replication="database", **settings)
        try:
            # An address with several hosts must not lead to two servers.
            info = self.replication.info
            self.queries = psycopg.connect(conninfo, host=info.host, port=info.port, **settings)
            self._check_wal_level()
            for connection in (self.replication, self.queries):
                connection.execute(_SETTINGS)
            found = self._one(self.replication, "IDENTIFY_SYSTEM")
        except BaseException:
            self.close()
            raise
        self.system, self.database = str(found[0]), str(found[3])

    def close(self) -> None:
        """Close both connections. Idempotent."""
        self.replication.close()
        if hasattr(self, "queries"):
            self.queries.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_wal_level(self) -> None:
        (level,) = self._one(self.queries, "SHOW wal_level")
        if level != "logical":
            raise ConfigurationError(
                f"PostgreSQL's wal_level is {level}, and logical replication needs logical: set wal_level = "
                "logical in postgresql.conf, and restart PostgreSQL"
            )

    @staticmethod
    def _one(
        connection: psycopg.Connection[Any], query: LiteralString | sql.Composed, *parameters: object
    ) -> tuple[Any, ...]:
        # Without parameters psycopg uses the simple protocol, which a replication connection requires.
        found = connection.execute(query, parameters or None).fetchone()
        assert found is not None
        return tuple(found)

    def lock(self) -> None:
        """Take the lock of the slot, until the replication connection ends. Raises SlotInUse.

        PostgreSQL allows only one receiver of a slot. The lock also covers the time of the copy.
        """
        query = sql.SQL("SELECT pg_try_advisory_lock({}, {})").format(
            sql.Literal(_LOCKS), sql.Literal(self._lock_number)
        )
        until = time.monotonic() + _LOCK_WAIT
        while not self._one(self.replication, query)[0]:
            if time.monotonic() > until:
                raise SlotInUse(
                    f"another process replicates the slot {self._slot!r}{self._holder()}: stop it first, or "
                    "use a slot of its own for each process"
                )
            time.sleep(_LOCK_LOOK)

    @property
    def _lock_number(self) -> int:
        return crc32(self._slot.encode()) - (1 << 31)

    def _holder(self) -> str:
        found = self.queries.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s "
            "AND objid = %s::bigint::oid AND database = (SELECT oid FROM pg_database "
            "WHERE datname = current_database())",
            (_LOCKS, self._lock_number % (1 << 32)),
        ).fetchone()
        return "" if found is None else f" (PostgreSQL's process {found[0]} serves it)"

    # The slot.

    def slot(self) -> Slot | None:
        """Return the slot, or None if there is none of that name."""
        found = self.queries.execute(
            "SELECT to_jsonb(s) FROM pg_replication_slots AS s WHERE slot_name = %s", (self._slot,)
        ).fetchone()
        if found is None:
            return None
        row = found[0]
        confirmed = row["confirmed_flush_lsn"]
        return Slot(
            row["plugin"] or "none",
            row["database"] or "",
            lsn_of(confirmed) if confirmed else 0,
            row.get("wal_status") == "lost",
        )

    def create_slot(self) -> tuple[int, str]:
        """Make the slot; return its first position, and the name of the snapshot at this position.

        PostgreSQL waits until all transactions have ended that write now. The snapshot can be used until
        the next command on the replication connection.
        """
        found = self._one(
            self.replication,
            sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput").format(sql.Identifier(self._slot)),
        )
        return lsn_of(found[1]), str(found[2])

    def drop_slot(self) -> None:
        """Drop the slot. Raises psycopg.OperationalError if a process still receives from it."""
        self.replication.execute(sql.SQL("DROP_REPLICATION_SLOT {}").format(sql.Identifier(self._slot)))

    def end_of_log(self) -> int:
        """Return the position after the last record of the log that is on the disk."""
        return lsn_of(self._one(self.queries, "SELECT pg_current_wal_flush_lsn()::text")[0])

    # The catalog.

    def published(self, publication: str) -> list[Published]:
        """Return the tables of a publication. Raises ConfigurationError if it does not exist, or is empty."""
        if (
            self.queries.execute("SELECT FROM pg_publication WHERE pubname = %s", (publication,)).rowcount
            == 0
        ):
            raise ConfigurationError(
                f"the database {self.database!r} has no publication {publication!r}: create one, such as "
                f"CREATE PUBLICATION {publication} FOR TABLE items"
            )
        found = self.queries.execute(
            "SELECT to_jsonb(p) FROM pg_publication_tables AS p WHERE pubname = %s "
            "ORDER BY schemaname, tablename",
            (publication,),
        ).fetchall()
        if not found:
            raise ConfigurationError(
                f"the publication {publication!r} has no tables: ALTER PUBLICATION {publication} ADD TABLE …"
            )
        return [self._published(row) for (row,) in found]

    def _published(self, row: dict[str, Any]) -> Published:
        schema, table = row["schemaname"], row["tablename"]
        oid, identity, relkind = self._one(
            self.queries,
            "SELECT c.oid, c.relreplident::text, c.relkind::text FROM pg_class AS c JOIN pg_namespace AS n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            schema,
            table,
        )
        indexes = self.queries.execute(
            "SELECT i.indisprimary, i.indisreplident, array_agg(a.attname::text ORDER BY k.n) "
            "FROM pg_index AS i, unnest(i.indkey) WITH ORDINALITY AS k(attnum, n), pg_attribute AS a "
            "WHERE i.indrelid = %s AND k.n <= i.indnkeyatts AND a.attrelid = i.indrelid "
            "AND a.attnum = k.attnum AND i.indisunique AND i.indisvalid AND i.indpred IS NULL "
            # A DEFERRABLE key may be at two rows in the middle of a transaction.
            "AND i.indimmediate AND i.indexprs IS NULL "
            "GROUP BY i.indexrelid, i.indisprimary, i.indisreplident",
            (oid,),
        ).fetchall()
        columns = self.queries.execute(
            "SELECT attname, atttypid::bigint FROM pg_attribute WHERE attrelid = %s AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            (oid,),
        ).fetchall()
        listed = row.get("attnames")
        below = self.base_types(kind for _, kind in columns)
        primary: list[str] = next((names for is_primary, _, names in indexes if is_primary), [])
        sent = {
            "d": primary,
            "i": next((names for _, is_identity, names in indexes if is_identity), []),
            FULL: [name for name, _ in columns],
        }.get(identity, [])
        relation = Relation(
            f"{schema}.{table}",
            identity,
            tuple(
                RelationColumn(name, below.get(kind, kind), name in sent)
                for name, kind in columns
                if listed is None or name in listed
            ),
        )
        unique = tuple(frozenset(names) for *_, names in indexes)
        filtered = row.get("rowfilter")
        return Published(relation, schema, table, relkind == "p", tuple(primary), unique, filtered)

    def base_types(self, types: Iterable[int]) -> dict[int, int]:
        """Return the type below each domain among the types, by the domain's number."""
        oids = [one for one in types if one >= _FIRST_OWN_TYPE]
        if not oids:
            return {}
        found = self.queries.execute(
            "WITH RECURSIVE below(domain, oid) AS ("
            "SELECT oid, typbasetype FROM pg_type WHERE oid = ANY(%s::oid[]) AND typtype = 'd' "
            "UNION ALL SELECT below.domain, t.typbasetype FROM below JOIN pg_type AS t ON t.oid = below.oid "
            "WHERE t.typtype = 'd') "
            "SELECT below.domain::bigint, below.oid::bigint FROM below JOIN pg_type AS t "
            "ON t.oid = below.oid WHERE t.typtype <> 'd'",
            (oids,),
        ).fetchall()
        return dict(found)

    # The copy.

    @contextmanager
    def snapshot(self, name: str) -> Iterator[None]:
        """In the block, `rows` reads the tables as of the snapshot."""
        self.queries.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self.queries.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
        # Ends the transaction that has exported the snapshot. This one holds the snapshot now.
        self.replication.execute("SELECT 1")
        yield
        self.queries.execute("COMMIT")

    def rows(self, table: Published) -> Iterator[Fields]:
        """Read the rows that the publication has of a table, in PostgreSQL's text format."""
        names = list(table.relation.types)
        columns = sql.SQL(", ").join(map(sql.Identifier, names)).as_string(self.queries)
        # ONLY: children of an inherited table are published under their own names.
        only = "" if table.is_partitioned else "ONLY "
        name = sql.Identifier(table.schema, table.table).as_string(self.queries)
        where = "" if table.row_filter is None else f" WHERE {table.row_filter}"
        query = f"COPY (SELECT {columns} FROM {only}{name}{where}) TO STDOUT"  # noqa: S608
        with self.queries.cursor() as cursor, cursor.copy(query.encode()) as copy:
            for row in copy.rows():
                yield dict(zip(names, row, strict=True))
