"""Concurrent runs of observers in the orders that could leave stale pages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from observers.pagedeps import digest, fan_out, parse, relay, render
from percolator_core import Transaction, TransactionConflict
from percolator_core.observers.guard import ObserverTransaction, guards
from tests.pagedeps.conftest import CHAIN, Tracker, page, sheet

MANY = [f"{number:02}" for number in range(30)]


@pytest.fixture
def crowd(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """Thirty pages that use one image, notified four at a time."""
    monkeypatch.setattr(fan_out, "BATCH", 4)
    tracker.resources({"i.png": "1"})
    tracker.pages({name: page("i.png") for name in MANY})
    tracker.settled()
    return tracker


def position(tracker: Tracker) -> bytes | None:
    return tracker.db.snapshot().get("resources", "i.png", "position")


def begin(tracker: Tracker, module: ModuleType, table: str, row: str, column: str) -> Transaction:
    """A run of an observer that is about to commit."""
    observer = tracker.chain.observers[module.__name__.rpartition(".")[2]]
    assert (table, column) in observer.observe
    cell = tracker.cell(table, row, column)
    transaction = tracker.db.begin()
    module.process(ObserverTransaction(transaction, guards(tracker.chain)[observer.name]), cell)
    return transaction


def step(tracker: Tracker, module: ModuleType, table: str, row: str, column: str) -> None:
    """One run of an observer."""
    begin(tracker, module, table, row, column).commit()


def change(tracker: Tracker, **contents: str) -> None:
    """Change resources and run digest, without notifying the dependents."""
    resources = {name.replace("_", "."): content for name, content in contents.items()}
    tracker.resources(resources)
    for name in resources:
        step(tracker, digest, "resources", name, "content")


def test_many_notifications_are_one_run(tracker: Tracker) -> None:
    tracker.pages({"1": page()})
    tracker.settled()
    for _ in range(40):
        with tracker.db.transaction() as t:
            t.notify("pages", "1", "stale")
    assert tracker.run().observers["render"].ran == 1
    assert tracker.renders() == {"1": 1}


def test_many_resources_that_change_are_one_render(tracker: Tracker) -> None:
    names = [f"i{number}_png" for number in range(40)]
    tracker.pages({"1": page(*(name.replace("_", ".") for name in names))})
    change(tracker, **dict.fromkeys(names, "1"))
    tracker.run()
    assert tracker.renders() == {"1": 1}
    change(tracker, **dict.fromkeys(names, "2"))
    # Forty fan-outs wake the render; all runs after the first find the same inputs.
    tracker.run()
    assert tracker.renders() == {"1": 2}
    assert tracker.violations() == []


def test_many_dependents_are_told_in_batches(crowd: Tracker) -> None:
    crowd.resources({"i.png": "2"})
    counts = crowd.run().observers
    assert counts["fan_out"].ran == 8
    assert counts["relay"].ran == 1
    assert set(crowd.renders().values()) == {2}
    assert position(crowd) is None


def test_a_batch_goes_on_where_the_last_one_stopped(crowd: Tracker) -> None:
    change(crowd, i_png="2")
    step(crowd, relay, "resources", "i.png", "touched")
    told: list[bytes | None] = []
    while (place := position(crowd)) is not None:
        told.append(place[-2:])
        step(crowd, fan_out, "resources", "i.png", "more")
    assert told == [b""] + [name.encode() for name in MANY[3::4]]


def test_a_change_in_the_middle_begins_again(crowd: Tracker) -> None:
    change(crowd, i_png="2")
    step(crowd, relay, "resources", "i.png", "touched")
    step(crowd, fan_out, "resources", "i.png", "more")
    step(crowd, render, "pages", MANY[0], "stale")
    change(crowd, i_png="3")
    running = begin(crowd, fan_out, "resources", "i.png", "more")
    step(crowd, relay, "resources", "i.png", "touched")
    assert position(crowd) == b""
    # The batch from the older position must not win, or the first pages would never be notified.
    with pytest.raises(TransactionConflict):
        running.commit()
    crowd.settled()


def test_a_page_that_comes_while_others_are_told(tracker: Tracker) -> None:
    tracker.resources({"a.css": sheet("i.png"), "i.png": "1"})
    tracker.settled()
    tracker.pages({"1": page("a.css")})
    coming = begin(tracker, parse, "pages", "1", "html")
    change(tracker, i_png="2")
    for name in ("i.png", "a.css"):
        step(tracker, relay, "resources", name, "touched")
        step(tracker, fan_out, "resources", name, "more")
    coming.commit()
    tracker.settled()


def test_who_saw_what_was_there_for_a_moment_is_told_when_it_is_gone(tracker: Tracker) -> None:
    tracker.resources({"a.css": sheet("b.css"), "b.css": sheet("i.png"), "i.png": "1"})
    tracker.pages({"1": page("a.css")})
    tracker.settled()
    change(tracker, i_png="2")
    # Another wake-up of a.css finds the new image, before b.css is notified.
    step(tracker, relay, "resources", "a.css", "touched")
    change(tracker, i_png="1")
    tracker.settled()


@pytest.mark.parametrize("gone", [False, True])
def test_html_that_is_there_for_a_moment(tracker: Tracker, gone: bool) -> None:
    tracker.resources({"i.png": "1"})
    tracker.pages({"1": page("i.png")})
    tracker.settled()
    tracker.pages({"1": None if gone else page("i.png", text="for a moment")})
    change(tracker, i_png="2")
    step(tracker, render, "pages", "1", "stale")
    assert "for a moment" not in tracker.snapshot("1")
    tracker.pages({"1": page("i.png")})
    assert tracker.settled() == {"1"}


def test_both_columns_of_a_resource_change_beside_each_other(tracker: Tracker) -> None:
    tracker.resources({"a": "x"})
    tracker.pages({"1": page("a")})
    tracker.settled()
    with tracker.db.transaction() as t:
        t.set("resources", "a", "content_type", b"image/gif")
    running = begin(tracker, digest, "resources", "a", "content")
    with tracker.db.transaction() as t:
        t.delete("resources", "a", "content_type")
    # This run finds the first state and changes nothing; the other run must not commit its older view later.
    step(tracker, digest, "resources", "a", "content_type")
    with pytest.raises(TransactionConflict):
        running.commit()
    tracker.settled()


KILLED = """
import os, signal, sys
from functools import partialmethod
from observers.pagedeps import fan_out
from percolator_core import Chain, Worker, connect
from percolator_core.notifications.dirty import DirtyIndex
DirtyIndex.claim = partialmethod(DirtyIndex.claim, lease=0.3)
fan_out.BATCH = 4
process, runs = fan_out.process, []
def dying(t, cell):
    process(t, cell)
    runs.append(cell)
    if len(runs) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
fan_out.process = dying
with connect(sys.argv[1], sys.argv[2]) as db:
    Worker(db, Chain.load(sys.argv[3])).run_until_idle(timeout=60)
"""


def test_a_worker_is_killed_while_it_tells(crowd: Tracker, store_url: str) -> None:
    crowd.resources({"i.png": "2"})
    environment = os.environ | {"PYTHONPATH": str(CHAIN.parents[1])}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, store_url, crowd.db.namespace, str(CHAIN)],
        env=environment,
        cwd=CHAIN.parents[1],
        check=False,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (position(crowd) or b"")[-2:] == MANY[7].encode()
    assert crowd.settled() <= set(MANY)
    assert set(crowd.renders().values()) == {2}
