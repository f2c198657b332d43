"""The private servers of the benchmarks; servers of the user are not touched."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

import redis

from percolator_core.database import Database, connect
from percolator_core.store.embedded.folder import COMPACT
from percolator_torture.servers.private_server import LOOPBACK, PrivateServer

Transport = Literal["unix", "tcp"]
TRANSPORTS: Final[tuple[Transport, ...]] = ("unix", "tcp")

NAMESPACE: Final = "bench"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A server to measure: its name and URL, the database, and a redis-py client as a user would create it.

    ``client`` opens another such client, which its caller closes.
    """

    name: str
    url: str
    db: Database
    raw: redis.Redis
    client: Callable[[], redis.Redis]

    def server_cpu(self) -> float:
        """Return the seconds of CPU time that the server has used since its start."""
        info = self.db.store.server_info().raw
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


@contextmanager
def place(transport: Transport) -> Iterator[Place]:
    """Run a private server on a Unix socket (the embedded one, with its defaults) or on TCP (loopback)."""
    with (
        tempfile.TemporaryDirectory(prefix="percolator-bench-") as folder,
        _url(transport, Path(folder)) as url,
        connect(url, namespace=NAMESPACE) as db,
    ):
        client = partial(_raw_client, db, url)
        raw = client()
        try:
            yield Place("unix socket" if transport == "unix" else "TCP loopback", url, db, raw, client)
        finally:
            raw.close()


def for_each(db: Database, width: int, function: Callable[[T], object], items: Iterable[T]) -> None:
    """Call the function with each item, in ``width`` tasks under a hub."""
    with db.concurrency(width) as executor:
        for _ in executor.map(function, items):
            pass


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
    # The settings of the embedded server, so that the two differ by the transport alone.
    settings = {"appendonly": "yes", "appendfsync": "everysec"}
    settings |= {name: str(value) for name, value in COMPACT.items()}
    with PrivateServer(listens=True, **settings) as server:
        yield f"redis://{LOOPBACK}:{server.port}/0"
