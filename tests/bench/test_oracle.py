"""The oracle suite, tiny: every point is there, and overlapping timestamps are an error."""

from __future__ import annotations

import pytest

from percolator_bench import Scale, Target, oracle
from percolator_core.errors import PercolatorError


def test_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "PROCESSES", (1, 2))
    figures = list(oracle.measure(Scale(operations=30, rounds=1)))
    found = {(figure.name, figure.at): figure for figure in figures}
    assert len(found) == len(figures)
    assert all(figure.value > 0 for figure in figures)
    for callers in oracle.CALLERS:
        assert found["callers under one hub", callers].unit == "/s"
        assert found["callers under one hub", callers].axis == "callers"
    # Who is alone has a request for each timestamp; many share one.
    assert found["callers under one hub, timestamps a request", 1].value <= 1
    assert found["callers under one hub, timestamps a request", 256].value > 1
    for processes in oracle.PROCESSES:
        assert found["callers in processes, 256 each", processes].target is None
        for batch in oracle.BATCHES:
            capacity = found[f"capacity, {batch} a request", processes]
            assert capacity.target == Target("at least", 2_000_000)
            assert capacity.axis == "processes"
            assert found[f"capacity, {batch} a request, server's time for one", processes].unit == "µs"


@pytest.mark.parametrize("replies", [[10, 10], [20, 10], [10, 13]])
def test_overlapping_batches_are_an_error(replies: list[int]) -> None:
    with pytest.raises(PercolatorError, match="overlap"):
        oracle.check_increasing(replies, 4)


def test_batches_side_by_side_are_none() -> None:
    oracle.check_increasing([10, 14, 18], 4)
    oracle.check_increasing([], 4)
