"""The latency suite, tiny: loads and chains; that a latency counts from when the write was due."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from percolator_bench import Scale, Target, latency
from percolator_core.database import Database
from percolator_core.transaction.transaction import Transaction

WRITES = 3


def test_idle_and_loaded_over_the_length_of_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "LENGTHS", (1, 3))
    monkeypatch.setattr(latency, "TRIALS", 2)
    figures = list(latency.measure(Scale(writes=WRITES)))
    found = {(figure.place, figure.name, figure.at): figure for figure in figures}
    assert len(found) == len(figures)
    assert found["TCP loopback", "idle, median", 1].target == Target("at most", 5)
    for length in latency.LENGTHS:
        assert found["unix socket", "highest rate", length].value > 0
        targets = {"idle": latency.IDLE, "half of the highest rate": Target("at most", 50)}
        for load in ("idle", *latency.LOADS):
            median = found["unix socket", f"{load}, median", length]
            assert 0 < median.value <= found["unix socket", f"{load}, p99", length].value
            assert median.target == (targets.get(load) if length == 1 else None)
    assert found["unix socket", "idle, median", 1].samples == WRITES


def test_a_latency_counts_from_when_the_write_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    stall = 0.3
    begin = Database.transaction

    @contextmanager
    def late(db: Database, *arguments: Any) -> Iterator[Transaction]:
        # The store stands still once; the writes that are due meanwhile are late, though each is quick.
        monkeypatch.setattr(Database, "transaction", begin)
        time.sleep(stall)
        with begin(db, *arguments) as t:
            yield t

    with latency.chain_of_observers("unix", 1) as line:
        monkeypatch.setattr(Database, "transaction", late)
        offered = line.offer([0.0, 0.05, 0.1])
    assert len(offered.latencies) == 3
    assert min(offered.latencies) > (stall - 0.1) * 1000
    assert offered.share == 0


@pytest.mark.parametrize("limit", [50.0, 900.0, 12_345.0])
def test_the_highest_rate_is_found_within_a_tenth(limit: float) -> None:
    found = latency.highest_rate(lambda rate: rate <= limit, 1000.0)
    assert limit / latency.CLOSE <= found <= limit


def test_one_failure_is_forgiven_and_a_second_is_not() -> None:
    failed: set[float] = set()

    def at_the_second_time(rate: float) -> bool:
        again = rate in failed
        failed.add(rate)
        return again and rate <= 3000

    assert latency.highest_rate(at_the_second_time, 1000.0) > 3000 / latency.CLOSE


def test_where_no_rate_is_sustained_the_lowest_one_stands() -> None:
    tried: list[float] = []

    def never(rate: float) -> bool:
        tried.append(rate)
        return False

    assert latency.highest_rate(never, 1000.0) == min(tried)
