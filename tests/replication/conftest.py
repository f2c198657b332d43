"""One PostgreSQL and one store for all tests of this folder; each test has a database and a namespace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from percolator_bench.peers.postgres import PostgresServer
from percolator_core import Database, connect
from percolator_core.replication import ReplicationReport, replicate
from tests.servers.plain import until
from tests.servers.postgresql import postgres_server

postgres = pytest.fixture(scope="session")(postgres_server)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with connect(url):
        yield url


@dataclass
class Shop:
    """A database of PostgreSQL with one publication, and a namespace."""

    db: Database
    url: str
    server: PostgresServer
    conninfo: str
    slot: str
    connection: psycopg.Connection[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.connection = psycopg.connect(self.conninfo, autocommit=True)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in its own transaction; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            cursor = self.connection.execute(statement.encode())
            found = cursor.fetchall() if cursor.description else []
        return found

    def items(self, *more: str) -> None:
        """Create a table with its publication, and the table for it."""
        self.sql(
            "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(8,2))",
            *more,
            "CREATE PUBLICATION shop FOR TABLE items",
        )
        self.db.create_table("items", tablets=2)

    def replicate(self, **settings: Any) -> ReplicationReport:
        given: dict[str, Any] = {
            "slot": self.slot,
            "publication": "shop",
            "once": True,
            "patience": 60.0,
        } | settings
        return replicate(self.db, self.conninfo, **given)

    def rows(self, table: str = "items") -> dict[str, dict[str, str]]:
        return {
            row.decode(): {name: value.decode() for name, value in cells.items()}
            for row, cells in self.db.snapshot().scan(table)
        }

    def expected(self, table: str = "items") -> dict[str, dict[str, str]]:
        """The rows of PostgreSQL as the raw table should have them: its key is the column id."""
        cursor = self.connection.execute(f"SELECT * FROM {table}".encode())
        names = [column.name for column in cursor.description or ()]
        found = {}
        for row in cursor.fetchall():
            cells = {name: str(value) for name, value in zip(names, row, strict=True) if value is not None}
            found[cells["id"]] = cells
        return found

    @contextmanager
    def following(self, **settings: Any) -> Iterator[None]:
        """A replication in a thread, stopped at the end of the block."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self.replicate(once=False, stop=stop.is_set, **settings)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]


@pytest.fixture
def shop(postgres: PostgresServer, url: str) -> Iterator[Shop]:
    name = f"t{uuid4().hex}"
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    conninfo = make_conninfo(postgres.conninfo, dbname=name)
    with connect(url, name) as db:
        made = Shop(db, url, postgres, conninfo, name)
        yield made
        made.connection.close()
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s "
            "AND active",
            (name,),
        )
        until(lambda: dropped(connection, name))


def dropped(connection: psycopg.Connection[Any], name: str) -> bool:
    try:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
            (name,),
        )
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    except psycopg.Error:
        return False
    return True
