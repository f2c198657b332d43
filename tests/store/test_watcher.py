"""A server whose users were all killed ends by itself, in order; and never while one of them lives."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core.store.embedded import shutdown
from percolator_core.store.embedded import watcher as watching
from percolator_core.store.embedded.binary import Binary
from percolator_core.store.embedded.folder import known_socket_path
from percolator_core.store.embedded.locks import MUTEX, USERS, WATCHER, Lock
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.embedded.shutdown import Connection
from tests.servers.plain import until
from tests.store.embedding import ROOT, Disk, User, client, gone, kill, lives, starts

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="NOT TESTED: no /proc here")

_PERIOD = "from percolator_core.store.embedded import server as embedded, start\nstart._WATCH_PERIOD = 0.02\n"
QUICK = User.SCRIPT.replace('print("up"', f'{_PERIOD}print("up"', 1)
"""A user whose server is looked after every moment."""


def watchers(state: Path) -> list[int]:
    """The processes that watch the folder's server."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_one = {os.fsencode(state), os.fsencode(watching.__file__)} <= set(arguments)
        if is_one and arguments[0] != b"/bin/sh" and not gone(int(process.name)):
            found.append(int(process.name))
    return found


def ended(state: Path) -> bool:
    """Whether the server and its watcher, which has the last word, are gone."""
    return not watchers(state) and not lives(state)


def watcher(state: Path) -> int:
    """The one process that watches, once it is at work."""

    def at_work() -> bool:
        with Connection(known_socket_path(state), 10) as connection:
            return b"name=percolator-watcher" in connection.ask("CLIENT LIST")

    until(at_work)
    [found] = watchers(state)
    return found


def write(state: Path, key: str) -> None:
    with Connection(str(state / "redis.sock"), 10) as connection:
        assert connection.ask(f"SET {key} value") == b"+OK"


@contextmanager
def looking(state: Path) -> Iterator[Connection]:
    """A connection as a watcher's, for one look."""
    with Connection(str(state / "redis.sock"), 10) as connection:
        yield connection


def is_unused(state: Path, *, end: bool = False) -> bool:
    with looking(state) as connection, closing(Lock(state / USERS)) as users:
        return watching.look(state, str(state / "redis.sock"), users, connection, end=end)


def test_it_ends_in_order_after_its_last_user_was_killed(state: Path, binary: Binary) -> None:
    users = [User(state, script=QUICK) for _ in range(2)]
    pid = users[0].join()
    assert users[1].join() == pid
    write(state, "key")
    users[0].kill()
    assert not is_unused(state, end=True)
    users[1].kill()
    until(lambda: ended(state))
    assert gone(pid)
    assert shutdown.unbroken_history(state)
    with EmbeddedServer.join(state) as server, client(server) as r:
        assert r.get("key") == "value"


def test_it_ends_though_the_link_to_its_socket_is_gone(here: Path, binary: Binary) -> None:
    state = here / ("long" * 40)
    with tempfile.TemporaryDirectory() as its_own:
        user = User(state, script=QUICK, environment={"TMPDIR": its_own})
        pid = user.join()
        until(lambda: watchers(state))
    user.kill()
    try:
        until(lambda: ended(state))
    finally:
        for left in [*watchers(state), pid]:
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        until(lambda: ended(state))
    assert shutdown.unbroken_history(state)


def test_commits_of_a_killed_process_are_there(state: Path, binary: Binary) -> None:
    script = """
import os, signal, sys
import percolator_core as percolator
from percolator_core.store.embedded import start
start._WATCH_PERIOD = 0.02
print("up", flush=True)
db = percolator.connect(f"embedded:{sys.argv[1]}", "ns")
db.create_table("t")
for number in range(20):
    with db.transaction() as t:
        t.set("t", str(number), "v", b"1")
print(db.store.embedded.pid, flush=True)
sys.stdin.readline()
"""
    user = User(state, script=script)
    assert user.line()
    user.kill()
    until(lambda: ended(state))
    with percolator.connect(f"embedded:{state}", "ns") as db:
        assert sum(1 for _ in db.snapshot().scan("t")) == 20
        assert not db.store.one((b"HGET", db.store.keyspace.oracle, b"floor"))


def test_a_user_that_sleeps_keeps_it(state: Path, binary: Binary) -> None:
    user = User(state)
    user.join()
    os.kill(user.process.pid, signal.SIGSTOP)
    try:
        assert not is_unused(state, end=True)
    finally:
        os.kill(user.process.pid, signal.SIGCONT)
    assert lives(state)
    assert user.end() == 0


def test_who_joins_or_leaves_just_now_keeps_it(state: Path, binary: Binary) -> None:
    user = User(state)
    user.join()
    user.kill()
    until(lambda: is_unused(state))  # the server has noticed the end of the user's connection
    with closing(Lock(state / MUTEX)) as mutex:
        assert mutex.take(fcntl.LOCK_EX)
        assert not is_unused(state, end=True)
    until(lambda: is_unused(state))
    assert lives(state)
    EmbeddedServer.join(state).leave()


def test_a_client_by_the_socket_keeps_it_while_it_speaks(
    state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = User(state)
    user.join()
    with Connection(str(state / "redis.sock"), 10) as other:
        user.kill()
        assert other.ask("PING") == b"+PONG"
        assert not is_unused(state, end=True)
        monkeypatch.setattr(watching, "_SPOKE_LATELY", -1)  # as if that were long ago
        until(lambda: is_unused(state))
        assert lives(state)
        until(lambda: is_unused(state, end=True))
    assert not lives(state)


def test_one_watches_for_all(state: Path, binary: Binary) -> None:
    users = [User(state) for _ in range(4)]
    for user in users:
        user.tell()
    for user in users:
        user.line()
    first = watcher(state)
    with EmbeddedServer.join(state):
        assert watchers(state) == [first]
    for user in users:
        assert user.end() == 0
    until(lambda: not watchers(state))


def test_a_killed_watcher_is_replaced_by_the_next_who_joins(state: Path, binary: Binary) -> None:
    user = User(state, script=QUICK)
    pid = user.join()
    first = watcher(state)
    os.kill(first, signal.SIGKILL)
    until(lambda: not watchers(state))
    assert lives(state)
    next_user = User(state, script=QUICK)
    assert next_user.join() == pid
    assert watcher(state) != first
    user.kill()
    next_user.kill()
    until(lambda: ended(state))


def test_a_server_that_was_started_again_is_watched(state: Path, binary: Binary) -> None:
    script = QUICK.replace("server.leave()", "server.ensure_running()\nprint(server.pid, flush=True)\n") + (
        "sys.stdin.readline()\n"
    )
    user = User(state, script=script)
    pid = user.join()
    watcher(state)  # else the first watcher may start so late that it finds the second server
    os.kill(pid, signal.SIGKILL)
    until(lambda: ended(state))
    user.tell()
    assert user.line()
    user.kill()
    try:
        until(lambda: ended(state))
    finally:
        EmbeddedServer.join(state).leave()


def test_a_server_whose_user_is_killed_while_it_loads_is_watched(state: Path, binary: Binary) -> None:
    rows = 100_000
    state.mkdir()
    with (state / "appendonly.aof").open("wb") as log:
        for row in range(rows):
            log.write(b"*3\r\n$3\r\nSET\r\n$6\r\n%06d\r\n$1\r\n1\r\n" % row)
    # It starts the server, and is killed as soon as it waits for it.
    script = QUICK.replace(
        'print("up"',
        """
import os, signal, time
from types import SimpleNamespace
from percolator_core.store.embedded import folder
folder._SETTINGS += "key-load-delay 100\\n"
embedded.time = SimpleNamespace(
    monotonic=time.monotonic, sleep=lambda _: os.kill(os.getpid(), signal.SIGKILL)
)
print("up\"""",
        1,
    )
    user = User(state, script=script)
    user.tell()
    assert user.process.wait() == -signal.SIGKILL
    user.kill()  # its pipes are closed
    try:
        until(lambda: ended(state))
        assert not starts(state)  # it never was ready
    finally:
        with EmbeddedServer.join(state) as server, client(server) as r:
            assert r.dbsize() == rows


def test_a_server_that_has_yet_to_listen_is_waited_for(
    state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedServer.join(state) as server:
        hidden = state / "redis.hidden"
        Path(server.socket_path).rename(hidden)
        monkeypatch.setattr(time, "sleep", lambda _: hidden.rename(server.socket_path))
        connection = watching.reach(state, server.socket_path, 0.02)
        monkeypatch.undo()
        assert connection is not None
        connection.close()


def test_it_is_out_of_the_way_of_who_started_it(state: Path, binary: Binary) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from percolator_core.store.embedded.server import EmbeddedServer
EmbeddedServer.join(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    # It would not return while somebody has these pipes.
    subprocess.run(
        [sys.executable, "-c", script, str(state)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    pid = watcher(state)
    assert os.getsid(pid) != os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    assert {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)} == {"/dev/null"}
    EmbeddedServer.join(state).leave()
    until(lambda: gone(pid))


def test_when_close_returns_nobody_has_the_folder_open(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state):
        watcher(state)
    with closing(Lock(state / WATCHER)) as lock:
        assert lock.take(fcntl.LOCK_EX)


def test_a_folder_that_is_removed(here: Path, binary: Binary) -> None:
    user = User(here / "removed", script=QUICK)
    pid = user.join()
    watcher(here / "removed")
    shutil.rmtree(here / "removed")
    assert not gone(pid)  # somebody uses it
    user.kill()
    until(lambda: gone(pid))


def rename(state: Path) -> None:
    state.rename(state.with_name("moved"))


@pytest.mark.parametrize("name", ["short", "long" * 40], ids=["short", "long"])
@pytest.mark.parametrize("put_away", [shutil.rmtree, rename])
def test_a_server_that_ends_leaves_the_next_one_in_its_place_alone(
    here: Path, binary: Binary, name: str, put_away: Callable[[Path], object]
) -> None:
    state = here / name
    user = User(state, script=QUICK)
    pid = user.join()
    # The watcher stands still until the next server has the place.
    old_watcher = watcher(state)
    os.kill(old_watcher, signal.SIGSTOP)
    try:
        user.kill()
        put_away(state)
        server = EmbeddedServer.join(state)
    finally:
        os.kill(old_watcher, signal.SIGCONT)
    try:
        until(lambda: gone(pid))
        assert {state / "redis.pid", state / "redis.sock"} <= set(state.iterdir())
        assert "User requested shutdown" not in (state / "redis.log").read_text()
        with client(server) as r:
            assert r.ping()
        server.leave()
        assert not lives(state)
    finally:
        if lives(state):
            kill(server)


def test_a_watcher_that_goes_on_with_the_next_server_looks_for_its_users(state: Path, binary: Binary) -> None:
    users = [User(state, script=QUICK) for _ in range(2)]
    old = users[0].join()
    first = watcher(state)
    os.kill(first, signal.SIGSTOP)
    try:
        users[0].kill()
        shutil.rmtree(state)
        new = users[1].join()
        until(lambda: set(watchers(state)) - {first})  # a shell starts it in the background
        [second] = set(watchers(state)) - {first}
        os.kill(second, signal.SIGKILL)
        until(lambda: gone(second))
    finally:
        os.kill(first, signal.SIGCONT)
    until(lambda: gone(old))
    assert watcher(state) == first
    assert not gone(new)
    users[1].kill()
    until(lambda: ended(state))
    assert shutdown.unbroken_history(state)


def test_what_is_not_on_disk_is_not_thrown_away(state: Path, disk: Disk) -> None:
    user = User(state, script=QUICK)
    user.join()
    with EmbeddedServer.join(state) as server:
        disk.fill(server)
        write(state, "key")
        with pytest.raises(percolator.StoreUnavailable, match="only in memory"):
            server.leave()
    user.kill()
    until(lambda: is_unused(state, end=True))  # not while the watcher looks, too
    assert lives(state)
    disk.empty(server)
    until(lambda: ended(state))
    with EmbeddedServer.join(state) as server, client(server) as r:
        assert r.get("key") == "value"


def test_a_watcher_that_cannot_be_started_is_no_obstacle(
    state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", program)
        with EmbeddedServer.join(state) as server, client(server) as r:
            assert r.ping()
        assert not lives(state)


def test_a_server_that_dies_ends_its_watcher(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state) as server:
        watcher(state)
        kill(server)
        until(lambda: not watchers(state))
