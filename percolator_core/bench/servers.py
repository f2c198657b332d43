"""The private servers that the benchmarks measure; nothing of the user's is touched."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import redis

from percolator_core.database import Database, connect
from percolator_core.errors import StoreUnavailable
from percolator_core.store.binary import find_binary

Transport = Literal["unix", "tcp"]
TRANSPORTS: Final[tuple[Transport, ...]] = ("unix", "tcp")

NAMESPACE: Final = "bench"

_START_LIMIT: Final = 10.0
_STOP_LIMIT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """A server to measure: its name and URL, the database, and a redis-py client as a user would make it."""

    name: str
    url: str
    db: Database
    raw: redis.Redis


@contextmanager
def place(transport: Transport) -> Iterator[Place]:
    """A private server, reached over a Unix socket (the embedded one, as it ships) or TCP on the loopback."""
    with (
        tempfile.TemporaryDirectory(prefix="percolator-bench-") as folder,
        _url(transport, Path(folder)) as url,
        connect(url, namespace=NAMESPACE) as db,
    ):
        raw = _raw_client(db, url)
        try:
            yield Place("unix socket" if transport == "unix" else "TCP loopback", url, db, raw)
        finally:
            raw.close()


def _raw_client(db: Database, url: str) -> redis.Redis:
    embedded = db.store.embedded
    if embedded is not None:
        return redis.Redis(unix_socket_path=str(embedded.socket_path))
    return redis.Redis.from_url(url)


@contextmanager
def _url(transport: Transport, folder: Path) -> Iterator[str]:
    if transport == "unix":
        yield f"embedded:{folder}/state"
        return
    port = _free_port()
    settings = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(folder),
        # As the embedded server is set, so that the two differ by the transport alone.
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "hash-max-ziplist-entries": "512",
        "hash-max-ziplist-value": "1024",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(
            [find_binary().path, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _wait_until_ready(server, port, folder / "redis.log")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        try:
            server.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_LIMIT
    while time.monotonic() < until and server.poll() is None:
        try:
            with redis.Redis(host="127.0.0.1", port=port) as client:
                client.ping()
        except redis.exceptions.ConnectionError:
            time.sleep(0.01)
        else:
            return
    server.kill()
    server.wait()
    raise StoreUnavailable(
        f"the benchmark's redis-server did not start: {log.read_text(errors='replace')[-500:]}"
    )
