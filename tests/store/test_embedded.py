"""The embedded server, on each redis-server that is here: start, stop, state, and names of the folder."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.store.embedded import server as embedded
from percolator_core.store.embedded.binary import Binary, find_binary
from percolator_core.store.embedded.server import EmbeddedServer
from tests.store.embedding import client, gone, kill, lives, starts


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
        "zset-max-ziplist-value": "512",
    }
    assert {name: settings[name] for name in expected} == expected
    assert gone(server.pid)


def test_a_start_takes_little_longer_than_the_server_needs(
    here: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last pause is all that a start can add: it is short beside the waiting before it."""
    find_binary()
    pauses: list[float] = []
    sleep = time.sleep

    mine = threading.get_ident()

    def pause(seconds: float) -> None:
        if threading.get_ident() == mine:  # not those of other threads
            pauses.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    with EmbeddedServer.join(here):
        assert pauses, "a server was there before it was started"
        assert pauses[-1] <= max(0.005, sum(pauses) / 4)


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
    ask = embedded.ask

    def interrupted(path: str) -> embedded.Answer:
        seen.append(ask(path))
        if seen[-1].working and sum(answer.working for answer in seen) == 1:
            raise KeyboardInterrupt
        return seen[-1]

    monkeypatch.setattr(embedded, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedServer.join(state)
    assert not lives(state)  # Ctrl-C while it loads leaves nothing behind
    with EmbeddedServer.join(state) as server, client(server) as r:
        assert r.dbsize() == rows
    assert sum(answer.working for answer in seen) > 1


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
        other_private = temporary() / private.name  # another user, with another TMPDIR
        (here / "short").symlink_to(long)
        with EmbeddedServer.join(here / "short") as other:
            assert other.pid == server.pid
            assert Path(other.socket_path).parent == other_private
            path = server.socket_path
            kill(server)
            other.ensure_running()
            assert server.socket_path == path
            with client(server) as r:  # connected users find it where it was
                assert r.ping()
        shutil.copytree(long, here / ("copy" * 40), ignore=shutil.ignore_patterns("*.sock"))
        with EmbeddedServer.join(here / ("copy" * 40)) as copy:
            assert copy.pid != server.pid
    assert not list(other_private.iterdir())


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
