"""A randomized attack on every promise at once, over the public interface, on each kind of server.

Each test is one part of it, so that it can be run alone; `test_everything_together` is the whole. The seed is
fixed. PERCOLATOR_ATTACK_ROUNDS runs so many seeds, from PERCOLATOR_ATTACK_SEED on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.actor import WEIGHTS
from tests.attack.attack import STALL, Attack
from tests.attack.observing import activate_beside_commits, recreate_observed_table
from tests.attack.places import KINDS, Place, place_of
from tests.servers.plain import binaries

ROOT = Path(__file__).parents[2]
FIRST = int(os.environ.get("PERCOLATOR_ATTACK_SEED", "2"))
ROUNDS = int(os.environ.get("PERCOLATOR_ATTACK_ROUNDS", "1"))
SEEDS = range(FIRST, FIRST + ROUNDS)
TABLES = ("stock", "shape")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600 * ROUNDS),
    pytest.mark.skipif("system" not in binaries(), reason="NOT TESTED: no redis-server on PATH"),
]


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A store of each kind, for all parts of the attack."""
    with place_of(request.param) as place:
        yield place


def test_reads_beside_changes_of_tables(place: Place) -> None:
    """Transactions and snapshots wait before and between their reads; one thread, so all is repeatable."""
    attack_alone(place, steps=160, clients=3, ranges=1)


def test_open_scans(place: Place) -> None:
    """Scans and selects are half read when their table changes, and fetch in several steps."""
    weights = {"begin": 10, "scan": 25, "go_on": 25, "change": 9, "finish": 4}
    attack_alone(place, steps=60, clients=2, most_tablets=1, ranges=0, weights=weights, rows=400, bulk=4000)


def test_recreated_table_is_observed(place: Place) -> None:
    """An observed table is dropped and made again, with a worker at work and without."""
    for seed in SEEDS:
        recreate_observed_table(place, seed, 3)


def test_activation_beside_two_phase_commits(place: Place) -> None:
    """A chain is activated between two operations of a commit, whose client then goes on or dies."""
    for seed in SEEDS:
        activate_beside_commits(place, seed, 12)


@pytest.mark.parametrize("way", ["timer", "calls", "finalizers", "tasks"])
def test_signal_handlers(place: Place, way: str) -> None:
    """Handlers and finalizers use the database of the code that they interrupt.

    By a timer; at calls that the dice choose, in tasks of an executor too; when Python looks for cycles.
    """
    for seed in SEEDS:
        run_apart(place, way, seed, 120 if place.kind == "plain" else 50)


def test_forks(place: Place) -> None:
    """Children carry on what the parent began, and work on their own, while another thread is at work."""
    for seed in SEEDS:
        run_apart(place, "forks", seed, 90)


def test_everything_together(place: Place) -> None:
    """Four threads, changes of tables, collections, failovers and moves of slots."""
    for seed in SEEDS:
        with Attack(place.url + place.durable, seed, disturbed=place.durable != "") as attack:
            changer = attack.actor("changer", 1, tables=TABLES, ranges=2, weights={**WEIGHTS, "change": 30})
            for table in TABLES:
                changer.changer.create(table)
                changer.fill(table, "a")
            quiet = {**WEIGHTS, "change": 0}
            others = [attack.actor(f"client{one}", 1, tables=TABLES, weights=quiet) for one in range(3)]
            attack.run([changer, *others], 120, lambda: place.disturb(attack))
            print(attack.conclude())


def attack_alone(
    place: Place, *, steps: int, clients: int, most_tablets: int | None = None, **limits: Any
) -> None:
    """One actor makes ``steps`` steps on tables that have rows."""
    for seed in SEEDS:
        with Attack(place.url, seed) as attack:
            actor = attack.actor("client", clients, tables=TABLES, **limits)
            if most_tablets is not None:
                actor.changer.most_tablets = most_tablets
            for table in TABLES:
                actor.changer.create(table, typed=table == "stock")
                actor.fill(table, "a")
            attack.run([actor], steps)
            print(attack.conclude())


def run_apart(place: Place, way: str, seed: int, steps: int) -> None:
    """Run a part of the attack in a process of its own, which ends by itself also if something hangs."""
    command = [sys.executable, "-m", "tests.attack.program", way, str(seed), str(steps), place.url]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=6 * STALL,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, (
        f"seed {seed}, {way}: it ended with {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    )
