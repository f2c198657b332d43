"""When a worker is alive, and when it is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from percolator_core import Worker
from percolator_core.errors import StoreUnavailable
from percolator_core.monitoring.health import SLACK, liveness, readiness, stall_limit
from percolator_core.monitoring.probe import Probe
from tests.chains import chain_of, put, watch
from tests.monitoring.conftest import State
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Chain, Database


def chain() -> Chain:
    quick = watch("quick", lambda t, cell: None, "docs.text", timeout=7.0)
    slow = watch("slow", lambda t, cell: None, "docs.text", timeout=500.0, executor="threads")
    return chain_of(quick, slow)


def test_a_loop_may_stand_still_for_the_longest_run_in_it() -> None:
    assert stall_limit(chain()) == SLACK + 7.0  # what runs in a thread holds nothing up
    assert stall_limit(chain_of()) == SLACK


def test_liveness() -> None:
    state = State(chain())
    alive = liveness(state.subject())
    assert (alive.ok, alive.reason) == (True, "the worker's loop runs")
    assert alive.details == {"stalled_seconds": 0.0, "limit_seconds": 37.0, "processes": 1}
    state.begun = False
    assert liveness(state.subject()).reason == "the worker starts"
    state.stalled = 37.1
    stuck = liveness(state.subject())
    assert not stuck.ok
    assert stuck.reason == "the worker's loop has been blocked for 37 s; the limit is 37 s"


def test_readiness_from_nothing_to_stopping(db: Database, probe_of: Callable[[Chain], Probe]) -> None:
    state = State(chain())
    probe = probe_of(state.chain)
    db.create_table("docs", tablets=4)

    def judged() -> tuple[bool, str]:
        probe.fresh_until = 0.0
        health = readiness(state.subject(), probe.latest())
        return health.ok, health.reason

    assert judged() == (False, "the chain is not active yet: quick, slow")
    state.chain.create_tables(db)
    assert judged() == (True, "the store answers and the chain is active")
    state.begun = False
    assert judged() == (False, "the worker starts")
    state.begun, state.stopping = True, True
    assert judged() == (False, "the worker is stopping")
    probe.close()


def test_without_a_store_it_is_not_ready() -> None:
    def refused() -> Database:
        raise StoreUnavailable("nobody answers at the door")

    state = State(chain())
    health = readiness(state.subject(), Probe(refused, state.chain).latest())
    assert not health.ok
    assert health.reason == "the store cannot be read: nobody answers at the door"
    assert health.details["store"] is False
    assert liveness(state.subject()).ok  # a new start would not bring the store back


def test_a_look_is_remembered(
    db: Database, opened: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = []

    def connect() -> Database:
        connections.append(opened())
        return connections[-1]

    state = State(chain())
    probe = Probe(connect, state.chain)
    first = probe.latest()
    assert first.status is not None
    assert probe.latest() is first
    probe.fresh_until = 0.0
    assert probe.latest() is not first
    assert len(connections) == 1
    monkeypatch.setattr("percolator_core.monitoring.probe.status", broken_by_the_end)
    probe.close()
    probe.fresh_until = 0.0
    assert probe.latest() is probe.latest()  # closed: whatever comes late is told what was seen last


def broken_by_the_end(*_: object) -> None:
    raise AssertionError("looked at the store after the end")


def test_the_pulse_of_a_worker(db: Database) -> None:
    seen: list[tuple[bool, float]] = []
    watched = chain_of(
        watch("quick", lambda t, cell: seen.append((worker.begun, worker.stalled())), "docs.text")
    )
    worker = Worker(db, watched)
    assert not worker.begun
    worker.made_at -= 1000
    assert worker.stalled() >= 1000
    watched.create_tables(db)
    put(db, "a", b"x")
    worker.run_until_idle(PATIENCE)
    ((begun, stalled),) = seen
    assert begun
    assert stalled < 1000  # since its loop turned, not since the worker was made
    assert not worker.begun
    assert worker.stalled() >= 1000
