"""The contention suite, tiny: every point is there, and the amounts are checked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from percolator_bench import Scale, contention
from percolator_bench.servers import Place, place
from percolator_bench.workers import Workers, shipped_chain, workers_of
from percolator_core.errors import PercolatorError, StoreUnavailable


def test_every_way_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "SHARES", (0.0, 0.1, 1.0))
    figures = list(contention.measure(Scale(operations=40, rounds=1)))
    found = {(figure.name, figure.at): figure for figure in figures}
    assert len(found) == len(figures)
    for way in ("read and write", "weak notifications", "combine queue"):
        for share in contention.SHARES:
            assert found[way, share].unit == "/s"
            assert found[way, share].value > 0
            assert found[way, share].axis == "hot share"
            aborted = found[f"{way}, aborted attempts", share]
            assert aborted.unit == "share"
            assert 0 <= aborted.value < 1
    for way in ("weak notifications", "combine queue"):
        # Each transaction writes a row of its own.
        assert found[f"{way}, aborted attempts", 1.0].value == 0
        assert found[f"{way} ÷ read and write", 1.0].unit == "ratio"


@contextmanager
def hot_rows() -> Iterator[tuple[Place, Workers]]:
    with (
        shipped_chain("hot_rows") as chain,
        place("unix") as here,
        workers_of(here, chain) as workers,
    ):
        yield here, workers


def test_a_lost_update_is_an_error() -> None:
    def loses(*_: object) -> None:
        pass

    with hot_rows() as (here, workers):
        race = contention.Race(here.db, workers, 10)
        with pytest.raises(PercolatorError, match="the amounts come to 0"):
            race.run(contention.Way("broken", "plain", loses), 0.5)


def test_a_worker_that_ended_is_not_waited_for() -> None:
    with hot_rows() as (here, workers):
        race = contention.Race(here.db, workers, 5)
        [worker] = workers.running
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable, match=r"ended by itself \(SIGKILL\)"):
            race.run(contention.WAYS[2], 1.0)
