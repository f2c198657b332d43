"""Workloads on a cluster and behind sentinels, while slots move and servers change roles as planned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from redis.crc import key_slot

from percolator_torture.clients.schedule import HARMLESS
from percolator_torture.suites.result import Result
from percolator_torture.suites.settings import Settings
from percolator_torture.suites.workload_suite import run_workload
from tests.servers.cluster import Cluster, Node
from tests.servers.plain import PATIENCE, binaries, until
from tests.servers.sentinel import DataServer, Sentinels

SYSTEM = binaries().get("system", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SYSTEM, reason="NOT TESTED: no redis-server on PATH"),
]

SEED = 17


class Runs(NamedTuple):
    """The workloads that run side by side, and the size of each."""

    names: tuple[str, ...]
    transactions: int
    kills: int


RUNS = [Runs(("bank", "append"), 4000, 6), Runs(("twin",), 2000, 3)]
BEGIN_AT = 0.1
"""The part of a workload's transactions after which it happens."""


class Midway:
    """Does something in a thread of its own, in the middle of runs of `run_workload`."""

    def __init__(self, action: Callable[[Midway], None], runs: Runs) -> None:
        self._action = action
        self._transactions = runs.transactions
        self._thread = threading.Thread(target=self._act, daemon=True)
        self._starting = threading.Lock()
        self._error: BaseException | None = None
        self._over = False
        self.done = dict.fromkeys(runs.names, 0)
        """The finished transactions of each."""
        self.marks: list[dict[str, int]] = []
        """How many those were at each part of what is done."""

    def tell(self, what: str, done: int, of: int) -> None:
        """As `Settings.tell`."""
        if what in self.done:
            self.done[what] = done
            with self._starting:
                if self._thread.ident is None and done >= BEGIN_AT * of:
                    self._thread.start()

    def goes_on(self, count: int = 100) -> None:
        """Wait until each has finished so many more transactions, or is over."""
        self.marks.append(dict(self.done))
        goals = {name: min(self._transactions, done + count) for name, done in self.done.items()}
        until(lambda: self._over or all(self.done[name] >= goal for name, goal in goals.items()))

    def conclude(self) -> None:
        """The runs are over. Wait for its end, too; raises what went wrong with it."""
        self._over = True
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _act(self) -> None:
        try:
            self._action(self)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self._error = error


def run_while(url: str, action: Callable[[Midway], None], runs: Runs) -> None:
    """Run the workloads side by side, in namespaces of their own, and ``action`` in the middle."""
    midway = Midway(action, runs)
    settings = Settings(
        seed=SEED,
        transactions=runs.transactions,
        kills=runs.kills,
        clients=2,
        nemeses=HARMLESS,
        url=url,
        tell=midway.tell,
    )
    try:
        with ThreadPoolExecutor(len(runs.names)) as pool:
            results = list(pool.map(lambda name: run_workload(name, settings), runs.names))
    finally:
        midway.conclude()
    for result in results:
        check(result, runs)
    print("finished after each part:", midway.marks)
    # On a fast machine not all parts may be.
    assert max(midway.marks[0].values()) < runs.transactions, "it was to happen in the middle"


def check(result: Result, runs: Runs) -> None:
    figures = result.figures
    print(result.suite, result.run, result.found, figures)
    assert result.ok, f"seed {SEED}, histories in {result.folder}: {result.wrong[:20]}"
    assert (figures["lost"], figures["doubled"], figures["violations"]) == (0, 0, 0)
    assert (figures["undetermined"]["torn"], figures["locks_left"]) == (0, 0)
    assert (figures["transactions"], figures["struck"]["kill"]) == (runs.transactions, runs.kills)
    assert figures["ended"]["ok"] > runs.transactions / 2


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three primaries with a replica each."""
    with Cluster(SYSTEM, 3, 1) as cluster:
        yield cluster


@pytest.fixture
def group() -> Iterator[Sentinels]:
    with Sentinels(SYSTEM, 1) as group:
        yield group


def keys_of_a_run(cluster: Cluster) -> tuple[bytes, list[bytes]]:
    """The key of an oracle, and one of each tablet of the same namespace."""
    found: set[bytes] = set()
    for node in cluster.primaries:
        found.update(node.ask("KEYS", "{torture-*}oracle"), node.ask("KEYS", "{torture-*:torture*:*}rows"))
    oracle = min(key for key in found if key.endswith(b"oracle"))
    namespace = oracle[: oracle.index(b"}")]
    return oracle, sorted(key for key in found - {oracle} if key.startswith(namespace))


def another(cluster: Cluster, than: Node) -> Node:
    return next(node for node in cluster.primaries if node is not than)


@pytest.mark.parametrize("runs", RUNS, ids=lambda runs: runs.names[0])
def test_slots_move_and_primaries_change_roles(cluster: Cluster, runs: Runs) -> None:
    moved: list[int] = []

    def act(midway: Midway) -> None:
        oracle, tablets = keys_of_a_run(cluster)
        for key in (tablets[0], oracle):
            slot = key_slot(key)
            moved.append(cluster.move_slot(slot, another(cluster, cluster.owner(slot))))
            midway.goes_on()
        first = cluster.primary_of(oracle)
        second = next(node for tablet in tablets if (node := cluster.primary_of(tablet)) is not first)
        for primary in (first, second):
            cluster.change_roles(cluster.replica_of(primary))
            midway.goes_on()

    run_while(cluster.url, act, runs)
    assert len(moved) == 2
    assert all(moved)


def hand_over(group: Sentinels) -> None:
    """A planned failover. The sentinels see to no order, so the master is kept from writing until it is over.

    Else there would be seconds in which others read there what it cannot pass on any more.
    """
    old, replica = group.master, group.replicas[0]
    old.ask("CLIENT", "PAUSE", 60_000, "WRITE")
    offset = int(old.ask("ROLE")[1])
    until(lambda: int(replica.ask("ROLE")[4]) >= offset)
    new = group.switch()
    old.ask("REPLICAOF", "127.0.0.1", new.port)  # the sentinels would say so seconds later
    old.ask("CLIENT", "UNPAUSE")


@pytest.mark.parametrize("runs", RUNS, ids=lambda runs: runs.names[0])
def test_sentinels_make_the_replica_the_master(group: Sentinels, runs: Runs) -> None:
    old: list[DataServer] = []

    def act(midway: Midway) -> None:
        old.append(group.master)
        hand_over(group)
        midway.goes_on()

    run_while(f"{group.url}?durability=replicas=1,timeout=0.3", act, runs)
    assert group.master not in old
