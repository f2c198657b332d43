"""Breaches of thresholds, and their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from percolator_core.admin.locks import HeldLock
from percolator_core.admin.status import ObserverStatus, Status, StoreStatus
from percolator_core.errors import ConfigurationError
from percolator_core.notifications.activation import LiveWorker
from percolator_core.observers.scheduling import ThresholdsDeclaration

PARSE = ObserverStatus("parse", ("docs.text",), 0, 0, None, 0, active=True, ran=100, failures=10)
RANK = replace(PARSE, name="rank")
WORKER = LiveWorker(owner="w", digest="d", where="here", since=1, name="w")
LOCK = HeldLock("docs", b"r", "text", 1, 100.0, 10.0, ("docs", b"r", "text"), True, "w", False)
QUIET = Status("shop", 1, StoreStatus("redis://", "7.0", 500, 1000), (), (PARSE, RANK), ())
NOTHING: dict[str, Any] = {"oldest": None, "quarantine": None, "failure_rate": None, "lock_age": None}


def judged(
    allowed: Mapping[str, Any],
    now: Status = QUIET,
    before: Mapping[str, tuple[int, int]] | None = None,
    locks: tuple[HeldLock, ...] = (),
) -> list[str]:
    from percolator_core.admin.thresholds import Runs, breaches

    runs = {name: Runs(*each) for name, each in (before or {}).items()}
    return breaches(now, runs, locks, ThresholdsDeclaration.model_validate(allowed))


def of(**changes: Any) -> Status:
    return replace(QUIET, observers=(replace(PARSE, **changes), RANK))


OBSERVERS = {
    "backlog": (of(backlog=1001), {"backlog": 1000}, "parse: the backlog is 1,001 cells, more than 1,000"),
    "oldest": (
        of(oldest=601.0),
        {"oldest": "10m"},
        (
            "parse: a cell has waited for 10 min, longer than 10 min: start workers or a drain, or see why "
            "its runs fail"
        ),
    ),
    "quarantine": (
        of(failed=2),
        {"quarantine": 1},
        "parse: 2 cells in quarantine, more than 1: correct the cause, then retry or discard them",
    ),
}


@pytest.mark.parametrize(("now", "allowed", "expected"), OBSERVERS.values(), ids=OBSERVERS)
def test_of_an_observer(now: Status, allowed: dict[str, Any], expected: str) -> None:
    assert judged(NOTHING | allowed, now) == [expected]
    assert judged(NOTHING | allowed) == []
    assert judged(NOTHING, now) == []
    (name,) = allowed
    own = {"observers": {"parse": {name: None}}}
    assert judged(NOTHING | allowed | own, now) == []
    assert judged(NOTHING | {"observers": {"parse": allowed}}, now) == [expected]
    assert judged(NOTHING | {"observers": {"rank": allowed}}, now) == []


def test_the_defaults_tell_of_failures_and_of_what_waits_long() -> None:
    assert judged({}) == []
    assert len(judged({}, of(failed=1, oldest=601.0))) == 2
    assert len(judged({}, of(ran=5, failures=6), {"parse": (0, 0)})) == 1


@pytest.mark.parametrize(
    ("before", "breach"),
    [
        ((90, 0), True),  # 10 of 20 since then
        ((50, 0), False),  # 10 of 60
        ((100, 3), False),  # 7 of 7, too few to tell
        ((200, 0), False),  # another namespace than now
        (None, False),
    ],
)
def test_the_failure_rate_is_of_the_runs_since_the_last_look(
    before: tuple[int, int] | None, breach: bool
) -> None:
    found = judged(NOTHING | {"failure_rate": "40%"}, before={} if before is None else {"parse": before})
    sentence = "parse: 50% of its runs since the last check failed, more than 40%"
    assert found == ([sentence] if breach else [])


def test_of_locks() -> None:
    old = (LOCK, replace(LOCK, age=61.0), replace(LOCK, age=59.0))
    (sentence,) = judged({"lock_age": "1m"}, locks=old)
    assert sentence == (
        "2 locks older than 60.0 s, the oldest 100.0 s in docs, whose owner is gone: check that the "
        "maintenance DAG runs"
    )
    assert judged({"lock_age": "2m"}, locks=old) == []


def test_of_the_store() -> None:
    assert judged({"memory": "40%"}) == [
        "the store holds 500 B of 1000 B, more than 400 B: collect garbage, or give it more memory"
    ]
    assert len(judged({"memory": "499B"})) == 1
    assert judged({"memory": "60%"}) == judged({"memory": "501B"}) == []
    assert judged({"memory": "40%"}, replace(QUIET, store=StoreStatus("", "7.0", 500, 0))) == []


def test_of_workers_drains_do_not_count() -> None:
    drain = replace(WORKER, until_idle=True)
    assert judged({"workers": 2}, replace(QUIET, workers=(WORKER, drain))) == [
        "1 continuous worker alive, fewer than 2: start some"
    ]
    assert judged({"workers": 1}, replace(QUIET, workers=(WORKER,))) == []


def test_thresholds_that_cannot_be_are_a_sentence_each() -> None:
    from percolator_airflow.operators.monitor import MonitorOperator

    with pytest.raises(ConfigurationError, match=r"^thresholds: backlogg: is not a known key; did you mean"):
        MonitorOperator(task_id="look", chain="shop", thresholds={"backlogg": 1})
    with pytest.raises(ValueError, match="on_breach is fail or warn"):
        MonitorOperator(task_id="look", chain="shop", on_breach="cry")  # type: ignore[arg-type]
