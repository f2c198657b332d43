"""Worker processes beside a benchmark: what they did is known, or refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from percolator_bench.servers import Place, place
from percolator_bench.workers import Workers, shipped_chain, workers_of
from percolator_core.errors import StoreUnavailable

LIMIT = 60.0


@pytest.fixture
def here() -> Iterator[Place]:
    with place("unix") as made:
        yield made


@pytest.fixture
def workers(here: Place) -> Iterator[Workers]:
    with shipped_chain("changes") as chain, workers_of(here, chain, 2) as made:
        yield made


def change(here: Place, rows: int) -> None:
    for number in range(rows):
        with here.db.transaction() as t:
            t.set("changes", b"row:%d" % number, "written", b"1")


def test_what_all_of_them_did_is_added_up(here: Place, workers: Workers) -> None:
    change(here, 20)
    workers.wait_until_idle(LIMIT)
    assert workers.backlog() == 0
    assert workers.stop().ran == 20
    assert workers.running == ()


def test_what_a_killed_one_reported_counts_on(here: Place, workers: Workers) -> None:
    change(here, 20)
    workers.wait_until_idle(LIMIT)
    while workers.counts().ran < 20:
        workers.listen(0.05)
    lazier, busier = sorted(workers.running, key=lambda one: one.counts.total().ran)
    workers.kill(busier)
    assert workers.running == (lazier,)
    assert workers.stop().ran == 20


def test_one_that_is_gone_is_not_waited_for(here: Place, workers: Workers) -> None:
    os.kill(workers.running[0].pid, signal.SIGKILL)
    with pytest.raises(StoreUnavailable, match=r"ended by itself \(SIGKILL\)"):
        workers.listen(LIMIT)


def test_one_that_died_makes_the_counts_void(here: Place, workers: Workers) -> None:
    os.kill(workers.running[0].pid, signal.SIGKILL)
    with pytest.raises(StoreUnavailable, match=r"ended instead of getting done \(SIGKILL\)"):
        workers.stop()


def test_marks_that_stay_are_not_waited_for_for_ever(here: Place) -> None:
    with shipped_chain("changes") as chain, workers_of(here, chain, 0) as workers:
        change(here, 3)
        assert workers.backlog() == 3
        with pytest.raises(StoreUnavailable, match=r"did not get done in 0\.1 s"):
            workers.wait_until_idle(0.1)
