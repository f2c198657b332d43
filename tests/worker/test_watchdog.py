"""Where a timeout may strike: in the observer, never in the middle of the store's bookkeeping."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import percolator_core
from percolator_core import Cell, Worker
from percolator_core.worker.watchdog import may_be_interrupted
from tests.chains import chain_of, put, watch
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from types import FrameType

    from percolator_core import Database, Transaction

LIBRARY = percolator_core.__name__
BETWEEN = {"guard", "release", "limited"}
"""Functions that begin and end the time limit of a run."""


def observes(t: Transaction, cell: Cell) -> None:
    """Reads, waits, writes."""
    text = t.get("docs", cell.row, "text")
    t.get_many([("docs", "other", "text"), ("sums", "other", "sum")])
    dict(t.scan("sums", limit=3))
    t.set("sums", cell.row, "sum", text or b"")


class Decisions:
    """Asks at each call of a function, as a tick of the watchdog would there, and notes the answer."""

    def __init__(self) -> None:
        self.by_function: dict[tuple[str, str], set[bool]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
            self.by_function.setdefault(name, set()).add(may_be_interrupted(frame))

    def of(self, *packages: str) -> dict[tuple[str, str], set[bool]]:
        """The answers for the functions of some packages or modules of the library."""
        places = [f"{LIBRARY}.{package}" for package in packages]
        return {
            name: found
            for name, found in self.by_function.items()
            if any(name[0] == place or name[0].startswith(f"{place}.") for place in places)
        }


@pytest.fixture(params=["threads", "hub"])
def decisions(db: Database, request: pytest.FixtureRequest) -> Decisions:
    """Those of a worker that runs an observer once."""
    found = Decisions()
    chain = chain_of(watch("it", observes, "docs.text", executor=request.param, timeout=60.0))
    chain.create_tables(db)
    put(db, "a", b"1")
    worker = Worker(db, chain, threads=1)

    def run() -> None:
        sys.setprofile(found)
        try:
            worker.run_until_idle(timeout=PATIENCE)
        finally:
            sys.setprofile(None)

    threading.setprofile(found)
    try:
        run()
    finally:
        threading.setprofile(None)
    assert db.snapshot().get("sums", "a", "sum") == b"1"
    return found


def test_the_observer_may_be_interrupted(decisions: Decisions) -> None:
    assert decisions.by_function[__name__, "observes"] == {True}


def test_the_store_is_interrupted_in_the_wait_for_a_reply_alone(decisions: Decisions) -> None:
    store = decisions.of("store")
    assert len(store) > 20, "the profile did not reach the store"
    assert {name for name, found in store.items() if True in found} == {
        (f"{LIBRARY}.store.pipeline", "_receive")
    }


def test_a_lock_is_never_interrupted(decisions: Decisions) -> None:
    locks = {name: found for name, found in decisions.of("runtime.process").items() if name[1] != "<lambda>"}
    # A `with` statement calls the inner lock, which is not written in Python; a new lock calls `_renew`.
    assert (f"{LIBRARY}.runtime.process", "_renew") in locks
    assert set().union(*locks.values()) == {False}


def test_the_ends_of_a_time_limit_are_not_interrupted(decisions: Decisions) -> None:
    limits = {name: found for name, found in decisions.of("worker").items() if name[1] in BETWEEN}
    assert "limited" in {name for _, name in limits}
    assert set().union(*limits.values()) == {False}
