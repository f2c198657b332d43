from __future__ import annotations

import random
import threading

import pytest

import percolator_core as percolator
from percolator_core import Worker
from tests.pagedeps.conftest import Tracker, mutate, page, sheet
from tests.servers.plain import PATIENCE


def test_only_the_pages_that_depend_on_what_changed_are_rendered(tracker: Tracker) -> None:
    tracker.resources({"a.css": sheet("b.css"), "b.css": sheet("i.png"), "i.png": "1", "j.png": "1"})
    tracker.pages({"1": page("a.css"), "2": page("b.css", "j.png"), "3": page("j.png"), "4": page()})
    assert tracker.settled() == {"1", "2", "3", "4"}
    assert set(tracker.renders().values()) == {1}
    tracker.resources({"i.png": "2"})
    assert tracker.settled() == {"1", "2"}
    tracker.resources({"j.png": "2"})
    assert tracker.settled() == {"2", "3"}
    tracker.resources({"a.css": sheet(text="alone")})
    assert tracker.settled() == {"1"}
    tracker.resources({"i.png": "3", "b.css": sheet("i.png", text="new")})
    assert tracker.settled() == {"2"}
    tracker.pages({"4": page("j.png"), "3": None})
    assert tracker.settled() == {"4"}
    tracker.resources({"j.png": "3"})
    assert tracker.settled() == {"2", "4"}


def test_what_is_written_again_wakes_its_own_observer_only(tracker: Tracker) -> None:
    tracker.resources({"a.css": sheet("i.png"), "i.png": "1"})
    tracker.pages({"1": page("a.css")})
    tracker.settled()
    tracker.resources({"a.css": sheet("i.png"), "i.png": "1"})
    ran = {name: counts.ran for name, counts in tracker.run().observers.items() if counts.ran}
    assert ran == {"digest": 2}
    tracker.pages({"1": page("a.css")})
    ran = {name: counts.ran for name, counts in tracker.run().observers.items() if counts.ran}
    # A render may have found new HTML before, and relies on this wake-up.
    assert ran == {"parse": 1, "render": 1}
    assert tracker.renders() == {"1": 1}


def test_a_missing_resource_has_a_placeholder_until_it_comes(tracker: Tracker) -> None:
    tracker.resources({"a.css": sheet("b.css")})
    tracker.pages({"1": page("a.css", "i.png"), "2": page()})
    tracker.settled()
    assert 'data-missing="i.png"' in tracker.snapshot("1")
    assert "/* missing: b.css */" in tracker.snapshot("1")
    tracker.resources({"i.png": "here"})
    assert tracker.settled() == {"1"}
    assert "data-missing" not in tracker.snapshot("1")
    tracker.resources({"b.css": sheet(text="also here")})
    assert tracker.settled() == {"1"}
    assert "also here" in tracker.snapshot("1")
    tracker.resources({"i.png": None})
    assert tracker.settled() == {"1"}
    assert 'data-missing="i.png"' in tracker.snapshot("1")


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_cycle_of_imports_comes_to_rest(tracker: Tracker, length: int) -> None:
    sheets = [f"s{number}.css" for number in range(length)]
    tracker.resources({name: sheet(sheets[(number + 1) % length]) for number, name in enumerate(sheets)})
    tracker.pages({name.removesuffix(".css"): page(name) for name in sheets})
    tracker.settled()
    tracker.resources({sheets[0]: sheet(sheets[-1], text="new")})
    assert len(tracker.settled()) == length if length < 3 else 2
    tracker.resources({sheets[0]: sheet(sheets[(1) % length], "i.png", text="third")})
    counts = tracker.run()
    # Each sheet propagates the change once, and each propagation wakes it at most once more.
    assert counts.observers["relay"].ran <= 2 * length + 2
    assert tracker.violations() == []
    tracker.resources({"i.png": "an image that all of the cycle depend on"})
    assert len(tracker.settled()) == length


def test_deleted_pages_leave_nothing_and_deleted_sheets_no_entries(tracker: Tracker) -> None:
    tracker.resources({"a.css": sheet("b.css"), "b.css": sheet("i.png")})
    tracker.pages({"1": page("a.css", "i.png")})
    tracker.settled()
    tracker.pages({"1": None})
    tracker.resources({"a.css": None, "b.css": None})
    tracker.settled()
    for table in ("pages", "dependents"):
        assert list(tracker.db.snapshot().scan(table)) == []


def test_the_declared_type_decides(tracker: Tracker) -> None:
    tracker.resources({"a": sheet(text="styled")})
    tracker.pages({"1": '<link rel=stylesheet href="a"><img src="a">'})
    tracker.settled()
    assert "styled" not in tracker.snapshot("1")
    with tracker.db.transaction() as t:
        t.set("resources", "a", "content_type", b"text/css; charset=utf-8")
    assert tracker.settled() == {"1"}
    assert "styled" in tracker.snapshot("1")
    assert 'data-missing="a"' in tracker.snapshot("1")


def test_rows_that_are_no_addresses_are_left_alone(tracker: Tracker) -> None:
    with tracker.db.transaction() as t:
        for row in (b"\xff\xfe", b"a\0b", b"line\nbreak"):
            t.set("pages", row, "html", page("a.css").encode())
            t.set("resources", row, "content", b"x")
    assert tracker.settled() == set()


@pytest.mark.parametrize("seed", range(3))
def test_random_changes(tracker: Tracker, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        for _ in range(rng.randrange(1, 20)):
            mutate(tracker, rng)
        tracker.settled()


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_under_three_workers(
    tracker: Tracker, store_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("observers.pagedeps.fan_out.BATCH", 2)
    rng = random.Random(seed)
    failures: list[BaseException] = []
    written = threading.Event()

    def work() -> None:
        try:
            with percolator.connect(store_url, namespace=tracker.db.namespace) as db:
                while True:
                    last = written.is_set()
                    counts = Worker(db, tracker.chain, width=16).run_until_idle(timeout=PATIENCE)
                    assert counts.quarantined == 0
                    if last:
                        break
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(120):
        mutate(tracker, rng)
    written.set()
    for worker in workers:
        worker.join()
    assert failures == []
    tracker.settled()
