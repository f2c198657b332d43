"""Check that timestamps stay unique and increase while their server dies and is replaced."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self, TypeVar

from percolator_core.errors import StoreUnavailable
from percolator_core.layout.keys import Keyspace
from percolator_core.store import Store
from percolator_torture.faults.clock import HOUR, FakeClock
from percolator_torture.faults.store import connect
from percolator_torture.servers.private_server import PrivateServer
from percolator_torture.servers.replication import follow, promote

_T = TypeVar("_T")

_NAMESPACE: Final = "timestamps"
_WIDTHS: Final = (1, 1, 1, 8)
"""For each client: the number of tasks that take timestamps at the same time. More than one needs a hub."""

_PATIENCE: Final = 0.2
_LIMIT: Final = 60.0


class Restart(StrEnum):
    """The ways in which the server restarts."""

    KILLED = "killed"
    """SIGKILL; the kernel still writes the server's data to the log."""
    CUT = "killed, log cut"
    """SIGKILL; the log is cut at a random byte after those that `_sync` has put on disk."""
    STOPPED = "stopped"
    """An orderly shutdown."""
    PROMOTED = "replica promoted"
    """SIGKILL; its replica takes over, at another address."""


@dataclass(frozen=True, slots=True)
class TimestampsResult:
    """The outcome of all restarts, all clients together. Outcomes can be added.

    ``repeated`` timestamps were issued before; ``backwards`` timestamps are at or below one that a client had
    received before they were requested. ``clock_jumps`` is the number of times the clock was set back.
    """

    restarts: int
    by_kind: dict[str, int]
    handed_out: int
    repeated: int
    backwards: int
    clock_jumps: int

    def __add__(self, other: TimestampsResult) -> TimestampsResult:
        return TimestampsResult(
            self.restarts + other.restarts,
            dict(Counter(self.by_kind) + Counter(other.by_kind)),
            self.handed_out + other.handed_out,
            self.repeated + other.repeated,
            self.backwards + other.backwards,
            self.clock_jumps + other.clock_jumps,
        )


class Taken(NamedTuple):
    """A timestamp, and the times of its request and its return, in nanoseconds of this process."""

    begun: int
    ended: int
    timestamp: int


def timestamps(restarts: int, seed: int, tell: Callable[[str], None]) -> TimestampsResult:
    """Let clients request timestamps without a pause, while the server is killed repeatedly.

    At a third of the restarts its clock is also set back one hour. Before it is killed again, the writes of
    its recovery have to be on disk: "everysec" does not protect against two power cuts within one second.

    Args:
        restarts: 1 or more, of about a second each.
        seed: of all random choices.
        tell: called with a line for each restart.

    Raises:
        StoreUnavailable: a server does not start, or issues no timestamp for a minute.
    """
    choices = random.Random(seed)
    clock = FakeClock(Keyspace(_NAMESPACE))
    kinds = _shuffled(choices, list(Restart), restarts)
    jumps = _shuffled(choices, [True, False, False], restarts)
    with ExitStack() as servers:
        server = servers.enter_context(_server())
        with _Takers(server.url, clock) as takers:
            for number, (kind, jump) in enumerate(zip(kinds, jumps, strict=True), 1):
                takers.await_more(choices.randint(50, 200))
                server = _restart(server, kind, takers, choices, servers)
                if jump:
                    with connect(server.url, _NAMESPACE, clock=clock) as db:
                        clock.set_back(db.store, HOUR)
                tell(f"restart {number} of {restarts}: {kind}{', an hour back' if jump else ''}")
            takers.await_more(200)
    taken = takers.taken
    return TimestampsResult(
        restarts,
        dict(Counter(kind.value for kind in kinds)),
        len(taken),
        len(taken) - len({one.timestamp for one in taken}),
        backwards(taken),
        sum(jumps),
    )


def backwards(taken: Iterable[Taken]) -> int:
    """Count the timestamps that are at or below one received before they were requested."""
    by_end = sorted(taken, key=lambda one: one.ended)
    newest = position = wrong = 0
    for one in sorted(by_end, key=lambda one: one.begun):
        while by_end[position].ended < one.begun:
            newest = max(newest, by_end[position].timestamp)
            position += 1
        wrong += one.timestamp <= newest
    return wrong


class _Takers:
    """Clients, each with a database of its own, that take timestamps until the context ends."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        self.url = url
        """The URL to which they connect after they lose the server; set it to redirect them."""
        self.taken: list[Taken] = []
        self._clock = clock
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(len(_WIDTHS))
        self._clients: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._clients = [self._pool.submit(self._client, width) for width in _WIDTHS]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()

    def await_more(self, count: int) -> None:
        """Wait until ``count`` timestamps were requested and received, from now on."""
        now, position = time.monotonic_ns(), len(self.taken)
        until = time.monotonic() + _LIMIT
        while count > 0:
            if time.monotonic() > until or any(client.done() for client in self._clients):
                raise StoreUnavailable("no timestamp was handed out for a minute: check the server")
            self._over.wait(0.002)
            arrived = self.taken[position:]
            position += len(arrived)
            count -= sum(one.begun > now for one in arrived)

    def _client(self, width: int) -> None:
        while not self._over.is_set():
            try:
                with connect(self.url, _NAMESPACE, clock=self._clock, patience=_PATIENCE) as db:
                    if width == 1:
                        self._take(db.store)
                        continue
                    with db.concurrency(width) as executor:
                        for task in [executor.submit(self._take, db.store) for _ in range(width)]:
                            task.result()
            except StoreUnavailable:
                self._over.wait(0.01)  # the server does not answer, or redirects

    def _take(self, store: Store) -> None:
        while not self._over.is_set():
            begun = time.monotonic_ns()
            # Not through the client's oracle, which would refuse a timestamp that is too low.
            timestamp, *_ = store.timestamp_then()
            self.taken.append(Taken(begun, time.monotonic_ns(), timestamp))


def _server() -> PrivateServer:
    return PrivateServer(
        listens=True, appendonly="yes", appendfsync="everysec", auto_aof_rewrite_percentage="0"
    )


def _restart(
    server: PrivateServer, kind: Restart, takers: _Takers, choices: random.Random, servers: ExitStack
) -> PrivateServer:
    """Kill the server while it is in use, then start it again or promote a replica; return the new server."""
    _sync(server)
    log, synced = server.newest_log(), server.log_size()
    assert log is not None
    if kind is Restart.PROMOTED:
        replica = servers.enter_context(_server())
        follow(replica, server)
        takers.await_more(choices.randint(20, 100))
        server.kill()
        promote(replica)
        takers.url = replica.url
        return replica
    takers.await_more(choices.randint(20, 400))
    if kind is Restart.STOPPED:
        server.stop()
    else:
        server.kill()
    if kind is Restart.CUT:
        os.truncate(log, choices.randint(synced, log.stat().st_size))
    server.start()
    return server


def _sync(server: PrivateServer) -> None:
    """Wait until all writes of the server so far are on its disk."""
    with server.client() as client:
        client.config_set("appendfsync", "always")
        client.incr("synced")
        client.config_set("appendfsync", "everysec")


def _shuffled(choices: random.Random, values: Sequence[_T], count: int) -> list[_T]:
    """Return ``count`` of the values, each equally often, in random order."""
    repeated = (list(values) * (count // len(values) + 1))[:count]
    choices.shuffle(repeated)
    return repeated
