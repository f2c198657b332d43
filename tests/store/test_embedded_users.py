"""Who uses an embedded server keeps it: processes that join, leave, fork and are killed."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core.errors import StoreUnavailable
from percolator_core.store.embedded.binary import Binary
from percolator_core.store.embedded.server import EmbeddedServer
from tests.servers.plain import hang_up, until
from tests.store.embedding import User, client, gone, lives, starts


def test_the_last_user_stops_it(state: Path, binary: Binary) -> None:
    first, second = EmbeddedServer.join(state), EmbeddedServer.join(state)
    assert first.pid == second.pid
    first.leave()
    first.leave()
    assert lives(state)
    second.leave()
    assert not lives(state)
    second.leave()
    with pytest.raises(StoreUnavailable, match="connect again"):
        second.ensure_running()


def test_another_process_keeps_it(state: Path, binary: Binary) -> None:
    user = User(state)
    with EmbeddedServer.join(state) as server:
        assert user.join() == server.pid
    assert lives(state)
    assert user.end() == 0
    assert not lives(state)


def test_it_outlives_the_process_that_started_it(state: Path, binary: Binary) -> None:
    user = User(state)
    pid = user.join()
    with EmbeddedServer.join(state) as server:
        assert user.end() == 0
        assert lives(state)
        assert server.pid == pid
    assert not lives(state)


def test_a_killed_user_does_not_count(state: Path, binary: Binary) -> None:
    user = User(state)
    pid = user.join()
    with EmbeddedServer.join(state) as server:
        user.kill()
        assert server.pid == pid
        assert lives(state)
    assert not lives(state)


def test_what_a_killed_last_user_left_runs_on_and_is_joined(state: Path, binary: Binary) -> None:
    user = User(state)
    pid = user.join()
    user.kill()
    assert lives(state)
    with EmbeddedServer.join(state) as server:
        assert server.pid == pid
    assert not lives(state)


def test_a_user_killed_while_it_starts_the_server(state: Path, binary: Binary) -> None:
    user = User(state)
    user.tell()
    until((state / "redis.mutex").exists)
    user.kill()
    with EmbeddedServer.join(state) as server, client(server) as r:
        assert r.ping()
    assert not lives(state)


def test_eight_join_at_the_same_moment(state: Path, binary: Binary) -> None:
    users = [User(state) for _ in range(8)]
    for user in users:
        user.tell()
    assert len({user.line() for user in users}) == 1
    assert starts(state) == 1
    for user in users:
        user.tell()
    assert [user.end() for user in users] == [0] * 8
    assert not lives(state)


FORKING = """
import os, sys
from pathlib import Path
from percolator_core.store.embedded.server import EmbeddedServer
print("up", flush=True)
server = EmbeddedServer.join(Path(sys.argv[1]))
if os.fork() == 0:
    server.leave()
    print("left" if server._users else "gone", flush=True)
    sys.stdin.readline()
    server.ensure_running()
    print(server.pid, flush=True)
    sys.stdin.readline()
    server.leave()
    os._exit(0)
sys.stdin.readline() if len(sys.argv) > 2 else None
server.leave()
os.wait()
"""


def test_a_forked_child(state: Path, binary: Binary) -> None:
    """It neither stops the server nor keeps it, until it joins on its own account."""
    with EmbeddedServer.join(state) as server:
        user = User(state, script=FORKING)
        assert user.line() == "left"
        assert lives(state)
        first = server.pid
    until(lambda: not lives(state))  # the child lives on and counts for nobody
    user.tell()
    assert int(user.line()) != first
    assert lives(state)
    assert user.end() == 0
    assert not lives(state)


def test_leave_at_the_end_of_the_interpreter(state: Path, binary: Binary) -> None:
    script = """
import atexit, sys
from pathlib import Path
from percolator_core.store.embedded.server import EmbeddedServer
class Last:
    def __del__(self, sys=sys):
        server.leave()
print("up", flush=True)
server = EmbeddedServer.join(Path(sys.argv[1]))
last = Last()
atexit.register(server.leave)
sys.last = Last()
"""
    user = User(state, script=script, stderr=subprocess.PIPE)
    _, errors = user.process.communicate()
    assert (user.process.returncode, errors) == (0, "")
    assert not lives(state)


def test_the_interpreter_ends_without_leave(state: Path, binary: Binary) -> None:
    user = User(state, script=User.SCRIPT.replace("server.leave()", ""), stderr=subprocess.PIPE)
    user.join()
    _, errors = user.process.communicate("\n")
    assert (user.process.returncode, errors) == (0, "")
    EmbeddedServer.join(state).leave()
    assert not lives(state)


def test_a_process_that_is_not_ours_is_not_stopped(
    state: Path, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedServer.join(state)
    (state / "redis.pid").write_text("1\n")
    with caplog.at_level(logging.WARNING):
        server.leave()
    assert "is not ours" in caplog.text
    assert not gone(server.pid)
    (state / "redis.pid").write_text(f"{server.pid}\n")
    EmbeddedServer.join(state).leave()
    assert gone(server.pid)


def test_a_folder_that_was_replaced_is_not_taken_for_the_own_one(here: Path, binary: Binary) -> None:
    state = here / "state"
    db = percolator.connect(f"embedded:{state}", "ns")
    db.create_table("t")
    state.rename(here / "moved")
    with (
        percolator.connect(f"embedded:{here}/moved", "ns") as same,
        percolator.connect(f"embedded:{state}", "ns") as other,
        db,
    ):
        other.create_table("t")
        assert db.snapshot().get("t", "row", "column") is None  # over a connection that stands
        hang_up(db)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"was replaced by another store.*: connect again$"):
                db.run(lambda t: t.set("t", "row", "column", b"value"))
        assert db.store.embedded is not None
        with pytest.raises(StoreUnavailable, match="was replaced"):
            db.store.embedded.ensure_running()
        child = os.fork()
        if child == 0:
            try:
                db.run(lambda t: t.set("t", "row", "column", b"value"))
            except StoreUnavailable as error:
                os._exit(7 if "was replaced" in str(error) else 1)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        for one in (same, other):
            assert one.snapshot().get("t", "row", "column") is None


def test_the_folder_is_removed_before_leave(
    here: Path, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedServer.join(here / "removed")
    shutil.rmtree(here / "removed")
    with caplog.at_level(logging.WARNING):
        server.leave()
    assert "removed" in caplog.text
    os.kill(server.pid, signal.SIGKILL)
