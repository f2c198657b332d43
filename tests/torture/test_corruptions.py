"""Simulated histories are clean, and no single corruption of one goes unnoticed."""

from __future__ import annotations

import random
from functools import cache

import pytest

from percolator_torture.checker.check import check
from percolator_torture.checker.report import Anomaly
from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import History
from tests.torture.corruptions import ALONE, WITH_OTHERS, Corruption, Parts
from tests.torture.simulator import Mix, simulate

SEEDS = range(15)
MIX = Mix(scans=0.15, own_reads=0.2, unknown=0.12, given_up=0.05)


@cache
def sound(seed: int) -> tuple[History, FinalState]:
    return simulate(seed, 400, cells=25, mix=MIX)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_simulated_history_is_clean(seed: int) -> None:
    for cells in (1, 4, 25):
        history, final = simulate(seed, 400, cells=cells, mix=MIX)
        report = check(history, final)
        assert report.ok, f"seed {seed}, {cells} cells: {report}"
        assert report.committed_unknown > 0
        assert set(report.outcomes) == {"ok", "fail", "unknown"}
        assert all(report.outcomes.values())


def test_the_same_seed_gives_the_same_history() -> None:
    (one, final), (other, same) = simulate(5, 200), simulate(5, 200)
    assert list(one) == list(other)
    assert final.cells == same.cells


@pytest.mark.parametrize(
    ("corrupt", "anomaly"), ALONE + WITH_OTHERS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_corruption_is_flagged(corrupt: Corruption, anomaly: Anomaly) -> None:
    for seed in SEEDS:
        parts = Parts.of(*sound(seed))
        corrupt(parts, random.Random(seed))
        report = check(*parts.whole())
        assert anomaly in report.names, f"seed {seed}: {report}"
        if (corrupt, anomaly) in ALONE:
            assert report.names == {anomaly}, f"seed {seed}: {report}"
