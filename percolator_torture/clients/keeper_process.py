"""The process of a maintainer or a worker: ``python -m percolator_torture.clients.keeper_process``.

It gets its orders as a client does. Its seat is the position of its role in the workload's ``keepers``. The
roles ``flush``, ``compact`` and ``collect`` maintain the tables again and again, and ``compact`` also moves
their bases; the role ``work`` runs the observers.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

from percolator_core.base import compaction, flush, row_set
from percolator_core.errors import BaseDamaged, LockTimeout, StoreUnavailable
from percolator_core.maintenance import bases
from percolator_core.maintenance.bases import BaseMaintainer
from percolator_core.worker import Worker
from percolator_torture.clients.client_process import Orders, obey, open_patiently
from percolator_torture.clients.gauge import Gauge
from percolator_torture.clients.schedule import Nemesis, NetworkPlan
from percolator_torture.faults.damage import note_refusal
from percolator_torture.faults.doom import Doom
from percolator_torture.workloads import WORKLOADS
from percolator_torture.workloads.twin import make_chain

PROGRAM: Final = (sys.executable, "-m", "percolator_torture.clients.keeper_process")
"""The command of a keeper process."""

LEASE: Final = 0.3
"""Seconds of a lease: less than the time for which a maintainer is stopped."""
GRACE: Final = 5.0
"""Seconds before a file that no manifest names is removed."""

_SMALL: Final = (
    (bases, "LEASE", LEASE),
    (flush, "_STEP_ROWS", 8),
    (row_set, "GROUP_ROWS", 16),
    (compaction, "FEWEST_RUNS", 2),
)
"""Constants of the library, set so that the maintenance of a small table has many small steps."""
_PAUSE: Final = 0.4
"""The longest pause between two passes, in seconds. The pauses let transactions commit: each pass causes the
refusal of those that began before it.
"""

_RATE: Final = 30_000.0
"""Bytes per second of a slow maintainer: other processes act between its steps."""

_MOVES: Final = 0.05
"""The share of ``compact``'s passes that move a base to another folder, or change only its declaration."""


class Keeper:
    """Does the work of one role until it has to finish."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._folder = Path(orders.folder)
        self._role = WORKLOADS[orders.workload].keepers[orders.seat]
        self._gauge = Gauge(self._folder / f"{orders.name}.gauge")
        self._db, self._two = open_patiently(orders)
        network = NetworkPlan(f"{orders.seed}/{orders.name}", map(Nemesis, orders.nemeses), orders.lock_ttl)
        self.doom = Doom(network)
        self.finishing = threading.Event()

    def keep(self) -> None:
        """Work, then execute late requests and close all connections."""
        with self._db, closing(self._two.client):
            self._db.faulty.plan = self.doom
            if self._role == "work":
                self._work()
            else:
                self._maintain()
            self._db.faulty.plan = None
            self._db.faulty.deliver()

    def _work(self) -> None:
        worker = Worker(self._db, make_chain(), width=16, listener=lambda _: self._count("ok"))

        def stop() -> None:
            self.finishing.wait()
            worker.stop()

        threading.Thread(target=stop, daemon=True).start()
        while not self.finishing.is_set():
            try:
                worker.run()
            except StoreUnavailable:
                time.sleep(_PAUSE)  # it was about to register

    def _maintain(self) -> None:
        dice = random.Random(f"{self._orders.seed}/{self._orders.name}")
        while not self.finishing.wait(dice.uniform(0, _PAUSE)):
            began, outcome = time.monotonic_ns(), "fail"
            try:
                self._pass(dice)
                outcome = "ok"
            except BaseDamaged as error:
                note_refusal(self._folder, self._orders.name, error, began)
            except (LockTimeout, StoreUnavailable):
                pass  # as on a full disk: the next pass goes on
            self._count(outcome)

    def _pass(self, dice: random.Random) -> None:
        client, changes = self._db.client, self._db.schema_changes
        maintainer = BaseMaintainer(client, changes, dice.choice([None, _RATE]), grace=GRACE)
        table = dice.choice(maintainer.tables())
        self.doom.doing = self._role
        if self._role == "collect":
            self._db.collect_garbage(timedelta(seconds=dice.choice([0, 1])))
        elif self._role == "compact" and dice.random() < _MOVES:
            place = self._folder / dice.choice(["base", "other"])
            self._db.set_base(table, str(place), cold_after=timedelta(0))
        elif self._role == "compact" and dice.random() < 0.7:
            maintainer.compact(table)
        else:
            self.doom.doing = "flush"
            maintainer.flush(table, everything=dice.random() < 0.5)

    def _count(self, outcome: str) -> None:
        self._gauge[outcome] += 1
        self._gauge["done"] += 1


def main() -> None:
    """Follow the orders of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    for module, name, value in _SMALL:
        setattr(module, name, value)
    keeper = Keeper(Orders.from_json(sys.stdin.readline()))
    threading.Thread(target=obey, args=(keeper.finishing, keeper.doom.arm), daemon=True).start()
    keeper.keep()


if __name__ == "__main__":
    main()
