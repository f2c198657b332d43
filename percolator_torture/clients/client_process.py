"""The process of one client of a run: ``python -m percolator_torture.clients.client_process``.

The first line on stdin has its instructions, as JSON. The line ``finish`` lets it end early, after the steps
under way. The end of stdin means that the parent has ended; then the process ends at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from percolator_core.errors import BaseDamaged, CommitUndetermined, StoreUnavailable
from percolator_core.layout.keys import Keyspace
from percolator_torture.clients.gauge import Gauge
from percolator_torture.clients.schedule import Nemesis, NetworkPlan
from percolator_torture.faults.clock import FakeClock
from percolator_torture.faults.damage import note_refusal
from percolator_torture.faults.store import FaultyDatabase, connect
from percolator_torture.histories.recorder import NOT_COMMITTED, Recorder
from percolator_torture.workloads import WORKLOADS

LOCK_WAIT: Final = 10.0
PATIENCE: Final = 300.0
"""Seconds for which a request is repeated: enough for a killed server to start and read its log."""
ORPHANED: Final = 3
_PAUSE: Final = 0.02
"""Seconds of the pause after `StoreUnavailable`."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The instructions for a client.

    ``name`` is unique in the folder. ``seat`` is the client's number, which its successor after a kill gets,
    too. The client runs the steps from ``first`` to before ``stop``, ``width`` at a time; the share
    ``two_phase`` (0 to 1) of them commits in two phases. ``lock_ttl`` is in seconds. With ``fake_clock`` the
    server's clock can be set.
    """

    url: str
    namespace: str
    folder: str
    name: str
    workload: str
    seed: int
    seat: int
    clients: int
    first: int
    stop: int
    width: int = 16
    two_phase: float = 0.5
    lock_ttl: float = 0.5
    nemeses: tuple[str, ...] = ()
    fake_clock: bool = True

    def to_json(self) -> str:
        """Encode the instructions in one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Orders:
        """Decode instructions."""
        found = json.loads(line)
        return cls(**{**found, "nemeses": tuple(found["nemeses"])})


def open_databases(orders: Orders) -> tuple[FaultyDatabase, FaultyDatabase]:
    """Open two databases of one store: one commits in one call if possible, the other in two phases.

    Raises the errors of `percolator_core.connect`.
    """
    one = connect(
        orders.url,
        orders.namespace,
        clock=FakeClock(Keyspace(orders.namespace)) if orders.fake_clock else None,
        lock_ttl=orders.lock_ttl,
        lock_wait=LOCK_WAIT,
        patience=PATIENCE,
    )
    two = FaultyDatabase(one.faulty, one.client.timeouts)
    # As on a cluster, whose scripts can access one tablet only.
    two.client.one_call_a_tablet = True
    return one, two


def open_patiently(orders: Orders) -> tuple[FaultyDatabase, FaultyDatabase]:
    """Call `open_databases` again and again while a server does not answer."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return open_databases(orders)
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
        time.sleep(_PAUSE)


class Player:
    """Runs the steps of one client."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._folder = Path(orders.folder)
        self._gauge = Gauge(self._folder / f"{orders.name}.gauge")
        self._workload = WORKLOADS[orders.workload](orders.clients)
        self._one, self._two = open_patiently(orders)
        self._store = self._one.faulty
        self.finishing = threading.Event()

    def play(self) -> None:
        """Run the steps, then execute late requests and close all connections."""
        orders = self._orders
        with (
            self._one,
            closing(self._two.client),  # the two databases share the store, which is closed once
            Recorder(self._one, self._folder, f"{orders.name}.a") as one,
            Recorder(self._two, self._folder, f"{orders.name}.b") as two,
        ):
            self._recorders = one, two
            self._store.plan = NetworkPlan(
                f"{orders.seed}/{orders.name}", map(Nemesis, orders.nemeses), orders.lock_ttl
            )
            with self._one.concurrency(orders.width) as executor:
                for _ in executor.map(self._step, self._numbers()):
                    pass
            self._store.plan = None
            self._store.deliver()
            self._note_faults()

    def _numbers(self) -> Iterator[int]:
        for number in range(self._orders.first, self._orders.stop):
            if self.finishing.is_set():
                return
            yield number

    def _step(self, number: int) -> None:
        if self.finishing.is_set():
            return
        orders = self._orders
        dice = random.Random(f"{orders.seed}/{orders.seat}/{number}")
        recorder = self._recorders[dice.random() < orders.two_phase]
        outcome, began = "ok", time.monotonic_ns()
        try:
            for sentence in self._workload.step(recorder, dice, number):
                self._complain(sentence)
        except CommitUndetermined:
            outcome = "unknown"
        except BaseDamaged as error:
            outcome = "fail"
            note_refusal(self._folder, orders.name, error, began)
        except NOT_COMMITTED as error:
            outcome = "fail"
            if isinstance(error, StoreUnavailable):
                self._store.sleep(_PAUSE)
        self._gauge[outcome] += 1
        self._gauge["done"] += 1
        self._note_faults()

    def _complain(self, sentence: str) -> None:
        with (self._folder / f"{self._orders.name}.wrong").open("a", encoding="utf-8") as file:
            file.write(sentence + "\n")

    def _note_faults(self) -> None:
        for kind, count in self._store.counts.items():
            self._gauge[kind] = count


def obey(finishing: threading.Event, obeyed: Callable[[str], object] = str) -> None:
    """Read lines until stdin ends, then exit: ``finish`` sets ``finishing``, ``obeyed`` gets all others."""
    for line in sys.stdin:
        if line.strip() == "finish":
            finishing.set()
        else:
            obeyed(line)
    os._exit(ORPHANED)


def main() -> None:
    """Follow the instructions of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    player = Player(Orders.from_json(sys.stdin.readline()))
    threading.Thread(target=obey, args=(player.finishing,), daemon=True).start()
    player.play()


if __name__ == "__main__":
    main()
