"""The sink of PostgreSQL: what is not newer has no effect, also from many threads and over a restart."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from percolator_bench.peers.postgres import PostgresServer
from percolator_core import Database
from percolator_core.recipes import PostgresSink
from tests.recipes.exporting import export_all
from tests.servers.postgresql import postgres_server

postgres = pytest.fixture(scope="module")(postgres_server)


@pytest.fixture
def table() -> str:
    return f'a "table" {uuid4().hex}'


@pytest.fixture
def log(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS log")
        connection.execute("CREATE TABLE log (id serial, key bytea, sequence bigint, payload bytea)")
        yield connection


def keep_log(connection: psycopg.Connection[Any], key: bytes, sequence: int, payload: bytes) -> None:
    connection.execute(
        "INSERT INTO log (key, sequence, payload) VALUES (%s, %s, %s)", (key, sequence, payload)
    )


def test_it_keeps_the_newest(postgres: PostgresServer, table: str) -> None:
    with PostgresSink(postgres.conninfo, table) as sink:
        assert sink.get("k") is None
        for sequence, payload in [(5, b"five"), (4, b"four"), (5, b"again"), (2**53 - 1, b"last"), (6, b"")]:
            sink.take(b"k\x00\xff", sequence, payload)
        sink.take(b"", 1, b"other")
        sink.take(random.Random(1).randbytes(2600), 1, b"long")
        with pytest.raises(ValueError, match="at most 2600 bytes, not 2601"):
            sink.take(bytes(2601), 1, b"")
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.take(b"k", 1, b"")
    with PostgresSink(postgres.conninfo, table) as sink:
        assert sink.get(b"k\x00\xff") == (2**53 - 1, b"last")
        assert sink.get("") == (1, b"other")


def test_each_effect_is_there_once(
    postgres: PostgresServer, table: str, log: psycopg.Connection[Any]
) -> None:
    broken = [True]

    def effect(connection: psycopg.Connection[Any], key: bytes, sequence: int, payload: bytes) -> None:
        keep_log(connection, key, sequence, payload)
        if sequence == 2 and broken.pop():
            raise ValueError("not that one")

    with PostgresSink(postgres.conninfo, table, effect=effect) as sink:
        sink.take(b"k", 1, b"1")
        with pytest.raises(ValueError, match="not that one"):
            sink.take(b"k", 2, b"2")
        assert sink.get("k") == (1, b"1")
        broken.append(False)
        for sequence in (1, 2, 2, 1, 3):
            sink.take(b"k", sequence, b"%d" % sequence)
    assert log.execute("SELECT sequence FROM log ORDER BY id").fetchall() == [(1,), (2,), (3,)]


def test_calls_from_threads_and_other_sinks(
    postgres: PostgresServer, table: str, log: psycopg.Connection[Any]
) -> None:
    calls = [(b"k%d" % (number % 3), number) for number in range(1, 100)] * 2
    random.Random(7).shuffle(calls)
    together = threading.Barrier(4)

    def sinks() -> PostgresSink:
        together.wait()
        return PostgresSink(postgres.conninfo, table, effect=keep_log)

    with ThreadPoolExecutor(4) as pool:
        # All find no table, and create it.
        made = list(pool.map(lambda _: sinks(), range(4)))
        list(pool.map(lambda at: made[at % 4].take(*calls[at], b""), range(len(calls))))
    assert [made[0].get(b"k%d" % number) for number in range(3)] == [(99, b""), (97, b""), (98, b"")]
    for number in range(3):
        found = log.execute("SELECT sequence FROM log WHERE key = %s ORDER BY id", (b"k%d" % number,))
        sequences = [sequence for (sequence,) in found]
        assert len(sequences) == len(set(sequences))
    for sink in made:
        sink.close()


def test_a_late_item_waits_for_the_newer_one(postgres: PostgresServer, table: str) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def effect(connection: psycopg.Connection[Any], key: bytes, sequence: int, payload: bytes) -> None:
        if sequence == 2:
            entered.set()
            go_on.wait()

    with PostgresSink(postgres.conninfo, table, effect=effect) as sink, ThreadPoolExecutor(2) as pool:
        newer = pool.submit(sink.take, b"k", 2, b"newer")
        entered.wait()
        older = pool.submit(sink.take, b"k", 1, b"older")
        with psycopg.connect(postgres.conninfo, autocommit=True) as other:
            while not other.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount:
                pass  # the older one does not wait for the row's lock yet
        go_on.set()
        newer.result()
        older.result()
        assert sink.get("k") == (2, b"newer")


def test_it_survives_a_restart_of_the_server(postgres: PostgresServer, table: str) -> None:
    with PostgresSink(postgres.conninfo, table) as sink:
        sink.take(b"k", 1, b"1")
        postgres.restart()
        sink.take(b"k", 2, b"2")
        assert sink.get("k") == (2, b"2")


def test_settings_of_the_user_that_would_lose_items(postgres: PostgresServer, table: str) -> None:
    options = r"-c synchronous_commit=off -c default_transaction_isolation=serializable"
    shown: list[Any] = []

    def effect(connection: psycopg.Connection[Any], key: bytes, sequence: int, payload: bytes) -> None:
        names = ("synchronous_commit", "transaction_isolation", "statement_timeout")
        shown.extend(connection.execute(f"SHOW {name}".encode()).fetchone() for name in names)

    conninfo = f"{postgres.conninfo} options='{options}'"
    with PostgresSink(conninfo, table, effect=effect, timeout=1.5) as sink:
        sink.take(b"k", 1, b"")
    assert shown == [("on",), ("read committed",), ("1500ms",)]


def test_a_user_without_the_right_to_create(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS own")
        connection.execute("CREATE ROLE writer LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA own TO writer")
        conninfo = postgres.conninfo.replace("user=postgres", "user=writer")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            PostgresSink(conninfo, "own.exports")
        PostgresSink(postgres.conninfo, "own.exports").close()
        connection.execute("GRANT SELECT, INSERT, UPDATE ON own.exports TO writer")
        with PostgresSink(conninfo, "own.exports") as sink:
            sink.take(b"k", 1, b"1")
            sink.take(b"k", 2, b"2")
            assert sink.get("k") == (2, b"2")


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="timeout is in seconds and above 0"):
        PostgresSink("host=/nowhere", timeout=0)
    with pytest.raises(psycopg.OperationalError):
        PostgresSink("host=/nowhere")


def test_under_workers(
    db: Database, postgres: PostgresServer, table: str, log: psycopg.Connection[Any]
) -> None:
    with PostgresSink(postgres.conninfo, table, effect=keep_log) as sink:
        committed = export_all(db, sink)
        for key, payloads in committed.items():
            found = log.execute("SELECT payload FROM log WHERE key = %s ORDER BY id", (key,)).fetchall()
            assert [payload for (payload,) in found] == payloads
            newest = sink.get(key)
            assert newest is not None
            assert newest[1] == payloads[-1]
