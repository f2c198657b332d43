"""Nothing is lost, and nothing is repeated: crashes at each step, restarts, two processes, a lost slot."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from percolator_core import Database, connect
from percolator_core.errors import CommitUndetermined, ConfigurationError, StoreUnavailable
from percolator_core.replication import SlotInUse, replicate
from percolator_core.replication.apply import Applier, SlotState
from percolator_core.replication.report import lsn_of, lsn_text
from percolator_core.replication.server import PostgreSQL
from percolator_core.replication.stream import Stream
from tests.replication.conftest import Shop
from tests.servers.fixtures import BINARIES
from tests.servers.plain import Server, until


class Killed(BaseException):
    """A crash: nothing of the library catches it, and it confirms nothing to PostgreSQL."""


@contextmanager
def crash(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, when: str, call: int = 1
) -> Iterator[None]:
    """Crash ``before`` or ``after`` one call of a method."""
    original = getattr(owner, method)
    calls = [0]

    def crashing(*arguments: Any, **settings: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and when == "before":
            raise Killed
        result = original(*arguments, **settings)
        if calls[0] == call:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, crashing)
        with pytest.raises(Killed):
            yield


def must_never_go_back(shop: Shop, column: str = "price") -> None:
    """Each version of a counted column is above the one before it: no transaction was applied twice."""
    for row in shop.rows():
        history = shop.db.history("items", row, column)
        values = [float(one.value) for one in history if one.value is not None]
        assert values == sorted(set(values), reverse=True), row


@pytest.mark.parametrize(
    ("owner", "method", "when", "call"),
    [
        (Applier, "begin_copy", "after", 1),
        (PostgreSQL, "create_slot", "before", 1),
        (PostgreSQL, "create_slot", "after", 1),
        (Applier, "copy", "before", 2),
        (Applier, "copy", "after", 3),
        (Applier, "apply", "before", 1),
        (Applier, "apply", "after", 1),
    ],
)
def test_a_crash_of_the_copy(  # noqa: PLR0917
    shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, when: str, call: int
) -> None:
    shop.items("INSERT INTO items SELECT n, 'n' || n, 1 FROM generate_series(1, 3500) AS n")
    with crash(monkeypatch, owner, method, when, call):
        shop.replicate()
    shop.sql("DELETE FROM items WHERE id <= 1200", "UPDATE items SET price = 2 WHERE id < 2200")
    shop.sql("INSERT INTO items VALUES (-1, 'new', 1)")
    report = shop.replicate()
    # Only a crash after the last step of the copy needs no second copy.
    assert report.copied == (0 if (method, when) == ("apply", "after") else 2301)
    assert shop.rows() == shop.expected()
    must_never_go_back(shop)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "method"), [(Applier, "apply"), (Stream, "confirm")])
def test_a_crash_beside_the_confirmation(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, when: str
) -> None:
    shop.items("INSERT INTO items VALUES (1, 'one', 1), (2, 'two', 1)")
    shop.replicate()
    for n in range(2, 6):
        with shop.connection.transaction():
            shop.sql(f"UPDATE items SET price = {n}", f"INSERT INTO items VALUES ({n + 10}, 'n', {n})")
        # A stream confirms its start first.
        with crash(monkeypatch, owner, method, when, 2 if owner is Stream else 1):
            shop.replicate()
    report = shop.replicate()
    is_applied = owner is Stream or when == "after"
    assert report.transactions == (0 if is_applied else 4)
    assert shop.rows() == shop.expected()
    must_never_go_back(shop)


def test_a_commit_with_an_unknown_outcome_is_not_repeated(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.items("INSERT INTO items VALUES (1, 'one', 1)")
    shop.replicate()
    before = SlotState.of(shop.db.snapshot(), shop.slot)
    assert before is not None
    shop.sql("UPDATE items SET price = 2")
    original = Database.run
    calls = [0]

    def lossy(self: Database, fn: Any, attempts: int = 10) -> Any:
        result = original(self, fn, attempts)
        calls[0] += 1
        if calls[0] % 2:
            raise CommitUndetermined(1)
        return result

    monkeypatch.setattr(Database, "run", lossy)
    shop.replicate()
    assert shop.rows() == shop.expected()
    assert len(shop.db.history("items", "1", "price")) == 2
    positions = [one.value for one in shop.db.history("replication", shop.slot, "position")]
    lsns = [json.loads(one or b"")["lsn"] for one in positions]
    applied = [lsn for lsn in lsns if lsn > before.lsn]
    assert applied
    assert applied == sorted(set(applied), reverse=True)


def test_a_killed_process_is_continued_by_another(shop: Shop) -> None:
    shop.items("INSERT INTO items SELECT n, 'n', 1 FROM generate_series(1, 50) AS n")
    program = (
        "import sys, percolator_core\n"
        "from percolator_core.replication import replicate\n"
        "url, namespace, conninfo = sys.argv[1:]\n"
        "db = percolator_core.connect(url, namespace)\n"
        "replicate(db, conninfo, slot=namespace, publication='shop')\n"
    )
    command = [sys.executable, "-c", program, shop.url, shop.db.namespace, shop.conninfo]
    child = subprocess.Popen(command)
    try:
        until(lambda: len(shop.rows()) == 50)
        for n in range(2, 30):
            shop.sql(f"UPDATE items SET price = {n} WHERE id % 3 = {n % 3}")
        until(lambda: shop.rows()["1"]["price"] != "1.00")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    shop.replicate()
    assert shop.rows() == shop.expected()
    must_never_go_back(shop)


# Restarts.


def test_postgresql_is_restarted(shop: Shop) -> None:
    shop.items("INSERT INTO items VALUES (1, 'one', 1)")
    with shop.following():
        until(lambda: shop.rows() == shop.expected())
        for n in range(2, 5):
            shop.connection.close()
            shop.server.restart()
            shop.connection = psycopg.connect(shop.conninfo, autocommit=True)
            shop.sql(f"UPDATE items SET price = {n}", f"INSERT INTO items VALUES ({n}, 'n', 1)")
            until(lambda: shop.rows() == shop.expected())
    must_never_go_back(shop)


def test_the_copy_survives_a_restart_of_postgresql(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.items("INSERT INTO items SELECT n, 'n', 1 FROM generate_series(1, 3500) AS n")
    original = Applier.copy
    calls = [0]

    def restarting(self: Applier, changes: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            shop.connection.close()
            shop.server.restart()
            shop.connection = psycopg.connect(shop.conninfo, autocommit=True)
            shop.sql("DELETE FROM items WHERE id < 100")
        return original(self, changes)

    monkeypatch.setattr(Applier, "copy", restarting)
    report = shop.replicate()
    assert (report.new, report.deleted) == (3500, 99)
    assert shop.rows() == shop.expected()


@pytest.mark.skipif("system" not in BINARIES, reason="NOT TESTED: no redis-server on the path")
def test_the_store_stops_during_copy_and_stream(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.items("INSERT INTO items SELECT n, 'n', 1 FROM generate_series(1, 2500) AS n")
    store = Server(BINARIES["system"], "--appendonly", "yes", "--appendfsync", "always")
    try:
        with connect(store.unix, shop.db.namespace, patience=0.05) as db:
            shop.db = db
            db.create_table("items", tablets=2)
            for owner_method in ("copy", "apply"):
                stop_before(monkeypatch, owner_method, store)
                shop.replicate()
                assert shop.rows() == shop.expected()
                shop.sql("UPDATE items SET price = price + 1", "DELETE FROM items WHERE id < 50")
            must_never_go_back(shop)
    finally:
        store.close()


def stop_before(monkeypatch: pytest.MonkeyPatch, method: str, store: Server) -> None:
    """Kill the store before the second transaction, and start it again a little later."""
    original = getattr(Applier, method)
    calls = [0]

    def stopping(self: Applier, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            store.kill()
            threading.Timer(0.3, store.start).start()
        return original(self, *arguments)

    monkeypatch.setattr(Applier, method, stopping)


def test_a_server_that_never_answers_is_reported(shop: Shop) -> None:
    shop.items()
    with pytest.raises(StoreUnavailable, match=r"PostgreSQL cannot be reached: .* check its address"):
        replicate(shop.db, "host=/nowhere dbname=x", slot="s", publication="shop", once=True)
    with pytest.raises(ConfigurationError, match="is not valid: write postgresql://") as raised:
        replicate(shop.db, "postgresql://user:secret@h:port/x y", slot="s", publication="shop")
    assert "secret" not in str(raised.value)
    for value in ({"patience": 0.0}, {"max_transaction": 0}):
        with pytest.raises(ValueError, match="are above 0"):
            shop.replicate(**value)


def test_a_connection_that_went_silent_is_given_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("stream._SILENCE", 0.1),
        ("stream._LONGEST_SILENCE", 0.5),
        ("server._LOCK_WAIT", 0.1),
    ):
        monkeypatch.setattr(f"percolator_core.replication.{name}", seconds)
    shop.items("INSERT INTO items VALUES (1, 'one', 1)")
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = current_database() AND active"
    with capture_logs() as logs, shop.following():
        until(lambda: shop.rows() == shop.expected() and shop.sql(query))
        ((pid,),) = shop.sql(query)
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: any("has not answered" in one.get("error", "") for one in logs))
            shop.sql("INSERT INTO items VALUES (2, 'two', 1)")
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: shop.rows() == shop.expected())


# Two processes.


def test_a_second_process_is_refused_until_the_first_one_ends(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.replication.server._LOCK_WAIT", 0.2)
    shop.items("INSERT INTO items VALUES (1, 'one', 1)")
    with shop.following():
        until(lambda: shop.rows() == shop.expected())
        with (
            connect(shop.url, shop.db.namespace) as other,
            pytest.raises(SlotInUse, match=r"slot .* \(PostgreSQL's process \d+ serves it\)"),
        ):
            replicate(other, shop.conninfo, slot=shop.slot, publication="shop", once=True)
        shop.sql("INSERT INTO items VALUES (2, 'two', 1)")
        until(lambda: shop.rows() == shop.expected())
    shop.replicate()


def test_a_process_that_lost_its_slot_writes_no_more(shop: Shop) -> None:
    shop.items("INSERT INTO items VALUES (1, 'one', 1)")
    shop.replicate()
    state = SlotState.of(shop.db.snapshot(), shop.slot)
    assert state is not None
    late = Applier(shop.db, shop.slot, state, {})
    shop.replicate()  # takes over
    with pytest.raises(SlotInUse, match="another process has taken over"):
        late.apply((), state.lsn + 10)
    with pytest.raises(SlotInUse, match="another process has taken over"):
        late.copy(())


# A slot that does not fit the store.


def test_a_slot_of_another_program_is_left_alone(shop: Shop) -> None:
    shop.items()
    shop.sql("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    for overwrite in (False, True):
        with pytest.raises(ConfigurationError, match="has not made: name another"):
            shop.replicate(overwrite=overwrite)
    assert len(shop.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = current_database()")) == 1


def drop(shop: Shop) -> None:
    # The last run has ended, and PostgreSQL notices this a moment later.
    query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = current_database() AND active"
    until(lambda: not shop.sql(query))
    shop.sql("SELECT pg_drop_replication_slot(current_database())")


def make_again(shop: Shop) -> None:
    drop(shop)
    shop.sql("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")


def move_back(shop: Shop) -> None:
    """As a failover of the store that lost its last commits does."""
    state = SlotState.of(shop.db.snapshot(), shop.slot)
    assert state is not None
    with shop.db.transaction() as t:
        t.set("replication", shop.slot, "position", replace(state, lsn=state.lsn - 1).to_bytes())


def go_back(shop: Shop) -> None:
    """As the restore of an old copy of PostgreSQL does: its log ends before the store's position."""
    state = SlotState.of(shop.db.snapshot(), shop.slot)
    assert state is not None
    with shop.db.transaction() as t:
        t.set("replication", shop.slot, "position", replace(state, lsn=state.lsn + (1 << 40)).to_bytes())


def another_server(shop: Shop) -> None:
    state = SlotState.of(shop.db.snapshot(), shop.slot)
    assert state is not None
    drop(shop)
    with shop.db.transaction() as t:
        t.set("replication", shop.slot, "position", replace(state, system="7").to_bytes())


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (drop, "PostgreSQL has no slot"),
        (make_again, "after the store's position"),
        (move_back, "after the store's position"),
        (go_back, "has gone back to"),
        (another_server, "of the server"),
    ],
)
def test_lost_changes_are_noticed(shop: Shop, lose: Callable[[Shop], None], why: str) -> None:
    shop.items("INSERT INTO items SELECT n, 'n', 1 FROM generate_series(1, 20) AS n")
    shop.replicate()
    shop.sql("DELETE FROM items WHERE id = 1", "UPDATE items SET price = 2 WHERE id = 2")
    lose(shop)
    before = shop.rows()
    with pytest.raises(ConfigurationError, match=f"{why}.* copy the tables again with --overwrite"):
        shop.replicate()
    assert shop.rows() == before
    report = shop.replicate(overwrite=True)
    assert (report.copied, report.new, report.changed, report.deleted) == (19, 0, 1, 1)
    assert shop.rows() == shop.expected()


def test_changes_of_other_tables_let_the_log_be_dropped(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percolator_core.replication.follow._POSITION_BYTES", 10_000)
    shop.items("CREATE TABLE noise (text text)")

    def confirmed() -> int:
        query = (
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = current_database()"
        )
        found = shop.sql(query)
        return lsn_of(found[0][0]) if found and found[0][0] else 0

    with shop.following():
        until(lambda: confirmed() > 0)
        shop.sql("INSERT INTO noise SELECT 'noise' FROM generate_series(1, 5000)")
        (end,) = shop.sql("SELECT pg_current_wal_flush_lsn()::text")[0]
        shop.sql("INSERT INTO noise SELECT 'noise' FROM generate_series(1, 5000)")
        until(lambda: confirmed() >= lsn_of(end))
        before = confirmed()  # read first: both move on
        state = SlotState.of(shop.db.snapshot(), shop.slot)
        assert state is not None
        assert state.lsn >= before


def test_positions_as_text() -> None:
    for number in (0, 1, 2**32 - 1, 2**32, 2**63 + 17):
        assert lsn_of(lsn_text(number)) == number
    assert lsn_text(0x16B374D848) == "16/B374D848"


# All of it together.


def some_transaction(connection: psycopg.Connection[Any], rng: random.Random) -> None:
    with connection.transaction():
        for _ in range(rng.randrange(1, 6)):
            low, high = sorted((rng.randrange(60), rng.randrange(60)))
            choices = [
                f"""INSERT INTO items VALUES ({low}, '{rng.random()}', nextval('turn'))
                ON CONFLICT (id) DO UPDATE SET price = excluded.price""",
                f"UPDATE items SET price = nextval('turn') WHERE id BETWEEN {low} AND {high}",
                f"""UPDATE items SET big = repeat('{low % 10}', 9000), price = nextval('turn')
                WHERE id = {low}""",
                f"""UPDATE items SET id = {high}, price = nextval('turn') WHERE id = {low}
                AND NOT EXISTS (SELECT FROM items WHERE id = {high})""",
                f"DELETE FROM items WHERE id BETWEEN {low} AND {(low + high) // 2}",
                f"UPDATE items SET name = NULL, price = nextval('turn') WHERE id = {low}",
                *["TRUNCATE items"] * (rng.random() < 0.05),
            ]
            connection.execute(rng.choice(choices).encode())
        if rng.random() < 0.2:
            raise psycopg.Rollback


def write_at_random(shop: Shop, seed: int, most: int) -> None:
    rng = random.Random(seed)
    with psycopg.connect(shop.conninfo, autocommit=True) as connection:
        for _ in range(most):
            try:
                some_transaction(connection, rng)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                pass  # the writers meet: PostgreSQL rolls one of them back


@pytest.mark.parametrize("seed", range(3))
def test_writers_crashes_and_restarts(shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    shop.sql("CREATE SEQUENCE turn")
    shop.items("ALTER TABLE items ADD big text", "ALTER TABLE items ALTER big SET STORAGE EXTERNAL")
    shop.sql("ALTER TABLE items ALTER price TYPE numeric")
    if seed == 1:
        shop.sql("ALTER TABLE items REPLICA IDENTITY FULL")
    write_at_random(shop, 1000 + seed, 40)
    writers = [
        threading.Thread(target=write_at_random, args=(shop, 10 * seed + number, 80)) for number in range(2)
    ]
    for writer in writers:
        writer.start()
    try:
        while any(writer.is_alive() for writer in writers):
            point = rng.choice(
                [(Applier, "apply"), (Applier, "copy"), (Stream, "confirm"), (Stream, "receive")]
            )
            call, when = rng.randrange(1, 4), rng.choice(["before", "after"])
            original = getattr(*point)
            try:
                with crash(monkeypatch, *point, when, call):
                    shop.replicate()
            except pytest.fail.Exception:
                assert getattr(*point) is original  # it had caught up before the crash
    finally:
        for writer in writers:
            writer.join()
    shop.replicate()
    assert shop.rows() == shop.expected()
    for row in shop.rows():
        history = shop.db.history("items", row, "price")
        values = [int(one.value) for one in history if one.value is not None]
        # Each change of a row takes a new number, so a transaction that came twice would show.
        assert len(values) == len(set(values)), row
