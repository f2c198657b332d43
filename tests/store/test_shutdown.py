"""An embedded server that could not write its log says so when it is closed, and the next start knows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core import Database, StoreUnavailable, TransactionAborted
from percolator_core.store.embedded import shutdown
from percolator_core.store.embedded.binary import Binary
from percolator_core.store.embedded.server import EmbeddedServer
from tests.servers.plain import until
from tests.store.embedding import ROOT, Disk, User, client, gone, kill, lives, logs

SECOND = 1_000_000


def open_store(state: Path, namespace: str = "ns") -> Database:
    db = percolator.connect(f"embedded:{state}", namespace)
    db.create_table("t")
    return db


def server_of(db: Database) -> EmbeddedServer:
    assert db.store.embedded is not None
    return db.store.embedded


def put(db: Database, number: int) -> None:
    with db.transaction() as t:
        t.set("t", f"row {number}", "v", b"x" * 1000)


def rows(db: Database) -> int:
    return sum(1 for _ in db.snapshot().scan("t"))


def floor(db: Database) -> int:
    return int(db.store.one((b"HGET", db.store.keyspace.oracle, b"floor")) or 0)


def fill_up(db: Database, disk: Disk) -> int:
    """Commit until the server refuses; returns how many rows it has acknowledged, the last in vain."""
    put(db, 0)
    disk.fill(server_of(db), room=5000)
    for number in range(1, 1000):
        try:
            put(db, number)
        except StoreUnavailable:
            return number
    raise AssertionError("the disk never was full")


def one_sentence(error: pytest.ExceptionInfo[StoreUnavailable]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert not text.endswith(".")
    return text


def test_close_tells_that_commits_are_lost(state: Path, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    db = open_store(state)
    before = db.timestamp()
    acknowledged = fill_up(db, disk)
    caplog.clear()
    with pytest.raises(StoreUnavailable) as lost:
        db.close()
    assert "free space if the disk is full" in one_sentence(lost)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [str(lost.value)]
    assert not lives(state)
    db.close()
    with open_store(state) as after:
        assert "was not shut down properly" in caplog.text
        assert rows(after) < acknowledged
        assert floor(after) > before
        assert after.timestamp() > time.time() * SECOND + 5 * SECOND


def test_the_users_own_exception_comes_out(state: Path, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    db = open_store(state)
    fill_up(db, disk)
    with pytest.raises(KeyError, match="of the user"), db:
        raise KeyError("of the user")
    assert "free space if the disk is full" in caplog.text
    assert not lives(state)


def test_the_command_line_tells_by_its_exit_code(state: Path, disk: Disk) -> None:
    script = """
import os, sys
from pathlib import Path
import percolator_core as percolator
from percolator_core import StoreUnavailable
from tests.store.embedding import Disk
from tests.store.test_shutdown import fill_up, open_store
print("up", flush=True)
print(fill_up(open_store(Path(sys.argv[1])), Disk), flush=True)
sys.stdin.readline()
"""
    user = User(state, script=script)
    assert int(user.line()) > 1
    user.kill()
    command = [sys.executable, "-m", "percolator_core", "get", "t", "row 0", "v"]
    found = subprocess.run(
        [*command, "--url", f"embedded:{state}", "--namespace", "ns"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 3, found.stderr
    assert "free space if the disk is full" in found.stderr
    assert not lives(state)


def test_who_is_not_the_last_is_told_too(state: Path, disk: Disk) -> None:
    with open_store(state) as other:
        db = open_store(state)
        acknowledged = fill_up(db, disk)
        with pytest.raises(StoreUnavailable) as danger:
            db.close()
        assert "only in memory" in one_sentence(danger)
        disk.make_room(server_of(other))
        put(other, 0)
        pid = server_of(other).pid
    assert gone(pid)
    with open_store(state) as after:
        assert rows(after) == acknowledged
        assert not floor(after)


def test_room_that_came_in_time(state: Path, disk: Disk) -> None:
    db = open_store(state)
    acknowledged = fill_up(db, disk)
    disk.make_room(server_of(db))
    db.close()
    with open_store(state) as after:
        assert rows(after) == acknowledged
        assert not floor(after)


def test_only_the_last_write_does_not_fit(state: Path, disk: Disk) -> None:
    """Nobody was refused before the end."""
    server = EmbeddedServer.join(state)  # without a database, whose own writes could be the last ones
    with client(server) as r:
        assert r.set("key", "value")  # the log exists
        disk.fill(server)
        assert r.set("key", "value")
    with pytest.raises(StoreUnavailable, match="are lost"):
        server.leave()


def end_by_signal(db: Database, disk: Disk) -> None:
    fill_up(db, disk)
    os.kill(server_of(db).pid, signal.SIGTERM)
    until(lambda: not (server_of(db).folder / "redis.pid").exists())


def cut_the_log(db: Database, disk: Disk) -> None:
    put(db, 0)
    db.close()
    for path in logs(server_of(db).folder):
        size = path.stat().st_size
        os.truncate(path, size - min(size, 1000))


def die(db: Database, disk: Disk) -> None:
    put(db, 0)
    kill(server_of(db))


@pytest.mark.parametrize("end", [end_by_signal, cut_the_log, die])
def test_an_end_that_only_looks_orderly(
    state: Path, disk: Disk, end: Callable[[Database, Disk], None]
) -> None:
    db = open_store(state)
    end(db, disk)
    until(lambda: not lives(state))
    db.close()
    with open_store(state) as after:
        assert floor(after)


def test_a_rewrite_of_the_log_under_way_at_the_end(state: Path, binary: Binary) -> None:
    with open_store(state) as db:
        for number in range(50):
            put(db, number)
        with client(server_of(db)) as r:
            r.config_set("rdb-key-save-delay", 100_000)
            r.bgrewriteaof()
            until(lambda: r.info("persistence")["aof_rewrite_in_progress"])
        put(db, 50)
    with open_store(state) as after:
        assert rows(after) == 51
        assert not floor(after)


def test_a_namespace_that_nobody_opened_since_the_crash_recovers_too(state: Path, binary: Binary) -> None:
    with open_store(state, "seldom") as db:
        db.timestamp()
    with open_store(state, "often") as db:
        kill(server_of(db))
        db.timestamp()
        assert floor(db)
    with open_store(state, "often") as db:
        recovered = floor(db)
    with open_store(state, "seldom") as db:
        assert floor(db)
    with open_store(state, "often") as db:
        assert floor(db) == recovered


def test_a_transaction_of_before_a_stop_that_lost_writes_is_refused(state: Path, disk: Disk) -> None:
    db = open_store(state)
    put(db, 0)
    t = db.begin()
    assert t.get("t", "row 0", "v")
    t.set("t", "row 0", "v", b"2")
    end_by_signal(db, disk)
    with pytest.raises(TransactionAborted):
        t.commit()
    db.close()


def test_the_settings_are_not_left_for_others_to_start_a_server_with(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state) as server:
        assert not list(state.glob(shutdown.conf_of("*")))
        with client(server) as r:
            assert shutdown.history_of(f"config_file:{r.info('server')['config_file']}\r\n".encode())


def test_a_note_of_another_folders_log_is_not_believed(state: Path, binary: Binary) -> None:
    EmbeddedServer.join(state).leave()
    assert shutdown.unbroken_history(state)
    note = state / "redis.in-order"
    for wrong in (
        b"",
        b"x",
        note.read_bytes()[:-2],
        b"../" + note.read_bytes(),
        note.read_bytes() + b"x 1\n",
    ):
        note.write_bytes(wrong)
        assert not shutdown.unbroken_history(state)


def test_a_server_that_was_dead_already(state: Path, binary: Binary) -> None:
    """Its last user is told nothing: who used it saw it die."""
    server = EmbeddedServer.join(state)
    kill(server)
    server.leave()
    assert not lives(state)
