"""How long runs take, in buckets, and what the log says of each when a fault is sought."""

from __future__ import annotations

import pytest
import structlog
import structlog.testing

from percolator_core.runtime.histogram import BOUNDS, Histogram
from percolator_core.worker.runs import EndedRun, RunTimes


def test_buckets_hold_their_upper_bound() -> None:
    made = Histogram()
    for bound in BOUNDS:
        made.add(bound)
    made.add(BOUNDS[-1] + 1)
    assert made.counts == [1] * (len(BOUNDS) + 1)
    assert made.cumulative()[0] == ("0.001", 1)
    assert made.cumulative()[-1] == ("+Inf", len(BOUNDS) + 1)


def test_histograms_are_summed_and_come_out_as_they_went_in() -> None:
    one, other = Histogram(), Histogram()
    one.add(0.002)
    other.add(0.002)
    other.add(100.0)
    both = Histogram.sum([one, other])
    assert (sum(both.counts), both.counts[1]) == (3, 2)
    assert both.seconds == pytest.approx(100.004)
    assert (sum(one.counts), sum(other.counts)) == (1, 2)
    assert Histogram.from_flat(both.flat()) == both
    with pytest.raises(ValueError, match="16 buckets, not 1"):
        Histogram.from_flat([1.0, 2])


def test_runs_are_counted_and_logged_for_whoever_looks() -> None:
    times = RunTimes(["a", "b"], logged=True)
    run = EndedRun("a", "docs", b"row", "text", 2, 1234, "ran", 0.25)
    before, configured = structlog.get_config(), structlog.is_configured()
    logged = structlog.testing.LogCapture()
    every = structlog.make_filtering_bound_logger(0)
    structlog.configure(processors=[logged], wrapper_class=every, cache_logger_on_first_use=False)
    try:
        times.take(run)
        times.take(run._replace(outcome="collapsed"))
    finally:
        structlog.reset_defaults()
        if configured:
            structlog.configure(**before)
    assert times.histograms() == {"a": Histogram.from_flat([0.25, *(bound == 0.25 for bound in BOUNDS), 0])}
    assert logged.entries[0] == {
        "event": "run ended",
        "log_level": "debug",
        "observer": "a",
        "table": "docs",
        "row": b"row",
        "column": "text",
        "attempt": 2,
        "run": 1234,
        "outcome": "ran",
        "seconds": 0.25,
    }
    times.histograms()["a"].add(1.0)
    assert sum(times.histograms()["a"].counts) == 1
