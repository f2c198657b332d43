"""A worker that has caught up claims only in tablets that may have due cells, and misses none of them.

In these tests no claim examines all tablets again by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import pytest

import percolator_core.notifications.dirty
from percolator_core import Cell, Chain, Database, Transaction
from percolator_core.notifications.dirty import DirtyIndex, Lease
from percolator_core.worker import candidates
from percolator_core.worker.candidates import Candidates
from percolator_core.worker.executors import Slots
from tests.chains import chain_of, dirty_of, put, running, watch
from tests.servers.plain import PATIENCE, until


@pytest.fixture(autouse=True)
def _never_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "ALL_EVERY", 3600.0)


@pytest.fixture
def of_worker(monkeypatch: pytest.MonkeyPatch) -> list[Candidates]:
    """The candidates of the worker, once it has claimed."""
    found: list[Candidates] = []
    examined = Candidates.examined

    def noted(candidates: Candidates, *args: Any, **settings: Any) -> None:
        examined(candidates, *args, **settings)
        found[:] = [candidates]

    monkeypatch.setattr(Candidates, "examined", noted)
    return found


@pytest.fixture
def caught_up(db: Database, of_worker: list[Candidates]) -> Callable[[Chain], None]:
    """Wait until no mark is left and the worker examines no tablet without a reason."""

    def wait(chain: Chain) -> None:
        until(lambda: any(one._are_enough for one in of_worker))
        until(lambda: not any(dirty_of(db, chain).backlog().values()))

    return wait


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[Collection[bytes] | None]:
    """The tablets of each claim; None means all. Leases are long, so that no claim waits for their end."""
    monkeypatch.setattr(percolator_core.notifications.dirty, "LEASE", 600.0)
    seen: list[Collection[bytes] | None] = []
    claim = DirtyIndex.claim

    def noted(dirty: DirtyIndex, *args: Any, only: Collection[bytes] | None = None, **settings: Any) -> Any:
        seen.append(only)
        return claim(dirty, *args, only=only, **{"lease": 600.0, **settings})

    monkeypatch.setattr(DirtyIndex, "claim", noted)
    return seen


def looking(seen: list[bytes]) -> Chain:
    return chain_of(watch("look", lambda t, cell: seen.append(cell.row), "docs.text"))


def test_only_the_written_tablet_is_examined(
    db: Database, caught_up: Callable[[Chain], None], examined: list[Collection[bytes] | None]
) -> None:
    rows: list[bytes] = []
    chain = looking(rows)
    chain.create_tables(db)
    with running(db, chain):
        caught_up(chain)
        del examined[:]
        put(db, "third", b"x")
        until(lambda: b"third" in rows)
    tag = db.client.catalog.table("docs").tag(b"third")
    assert {tag} in examined
    assert all(only == {tag} for only in examined)


def test_a_change_during_the_run_is_observed(db: Database, caught_up: Callable[[Chain], None]) -> None:
    values: list[bytes | None] = []

    def look(t: Transaction, cell: Cell) -> None:
        values.append(t.get("docs", cell.row, "text"))
        if values[-1] == b"old":
            put(db, cell.row, b"new")

    chain = chain_of(watch("look", look, "docs.text"))
    chain.create_tables(db)
    with running(db, chain):
        caught_up(chain)
        put(db, "a", b"old")
        until(lambda: values == [b"old", b"new"])


def test_a_failed_run_is_repeated(db: Database, caught_up: Callable[[Chain], None]) -> None:
    tries: list[bytes] = []

    def look(t: Transaction, cell: Cell) -> None:
        tries.append(cell.row)
        if tries.count(cell.row) < 3:
            raise ValueError("not yet")

    chain = chain_of(watch("look", look, "docs.text"))
    chain.create_tables(db)
    with running(db, chain):
        caught_up(chain)
        put(db, "a", b"x")
        until(lambda: len(tries) == 3)


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_a_change_that_settles_is_observed(
    db: Database, caught_up: Callable[[Chain], None], mode: Any
) -> None:
    added: list[bytes] = []
    go = threading.Event()

    def feed(t: Transaction, cell: Cell) -> None:
        with db.transaction() as other:
            if mode == "weak":
                other.notify("sums", cell.row, "dirty")
            else:
                other.set("sums", cell.row, "text", b"1")
        assert go.wait(PATIENCE)

    chain = chain_of(
        watch("feed", feed, "docs.text", writes=("sums.dirty", "sums.text"), executor="threads"),
        watch(
            "add",
            lambda t, cell: added.append(cell.row),
            "sums.dirty" if mode == "weak" else "sums.text",
            mode=mode,
            settle=3600.0,
        ),
    )
    chain.create_tables(db)
    with running(db, chain):
        caught_up(chain)
        put(db, "a", b"1")
        until(lambda: dirty_of(db, chain).backlog()["add"])
        go.set()
        until(lambda: added == [b"a"])


def test_a_failure_after_a_claim_of_all_tablets_is_repeated(
    db: Database,
    caught_up: Callable[[Chain], None],
    of_worker: list[Candidates],
    examined: list[Collection[bytes] | None],
) -> None:
    begun, go, tries = threading.Event(), threading.Event(), []

    def look(t: Transaction, cell: Cell) -> None:
        tries.append(cell.row)
        if len(tries) == 1:
            begun.set()
            assert go.wait(PATIENCE)
            raise ValueError("not yet")

    chain = chain_of(watch("look", look, "docs.text", executor="threads"))
    chain.create_tables(db)
    with running(db, chain):
        caught_up(chain)
        put(db, "a", b"x")
        assert begun.wait(PATIENCE)
        del examined[:]
        of_worker[0].all_at = 0.0
        tag = db.client.catalog.table("docs").tag
        other = next(row for row in (b"b", b"c", b"d", b"e") if tag(row) != tag(b"a"))
        put(db, other, b"x")
        until(lambda: None in examined and other in tries and dirty_of(db, chain).backlog()["look"] == 1)
        go.set()
        until(lambda: tries.count(b"a") == 2)


def test_a_run_that_ends_during_a_claim_does_not_make_it_complete() -> None:
    slots = Slots(DirtyIndexOfRuns(), frozenset(["one", "two"]), 9, frozenset())  # type: ignore[arg-type]
    slots.dirty.slots = slots  # type: ignore[attr-defined]
    for number in range(7):
        slots.begin(lease_of("one" if number < 3 else "two", number))
    assert slots.free == 2
    leases, _, is_all = slots.claim({}, frozenset(), None)
    assert len(leases) == 2
    assert not is_all


def lease_of(observer: str, number: int) -> Lease:
    return Lease(observer, "docs", b"{docs}", b"%d" % number, b"text", 0, 0, 1, 1, 0.0)


class DirtyIndexOfRuns:
    """It has as many due cells as a claim asks for, and a run ends during the claim."""

    slots: Slots

    def claim(self, most: int, **_: Any) -> tuple[list[Lease], None]:
        self.slots.end(next(iter(self.slots.running.values())), 0)
        return [lease_of("one", 90 + number) for number in range(most)], None


def test_a_lease_that_ends_is_found(db: Database) -> None:
    rows: list[bytes] = []
    chain = looking(rows)
    chain.create_tables(db)
    for row in ("a", "b"):
        put(db, row, b"x")
    assert len(dirty_of(db, chain).claim(2, lease=0.3)[0]) == 2
    with running(db, chain):
        until(lambda: sorted(rows) == [b"a", b"b"])


def test_a_lost_subscription_loses_no_change(db: Database, caught_up: Callable[[Chain], None]) -> None:
    rows: list[bytes] = []
    chain = looking(rows)
    chain.create_tables(db)
    with running(db, chain):
        for row in (b"a", b"b", b"c"):
            caught_up(chain)
            db.store.one((b"CLIENT", b"KILL", b"TYPE", b"pubsub"))
            put(db, row, b"x")
            until(lambda row=row: row in rows)  # type: ignore[misc]


class Messages:
    """Stands for the subscription: ``channels`` are heard next, None if messages were lost."""

    def __init__(self) -> None:
        self.channels: set[bytes] | None = set()
        self.is_open = True

    def heard(self) -> set[bytes] | None:
        heard, self.channels = self.channels, set()
        return heard

    def sockets(self) -> list[object]:
        return [self] if self.is_open else []


def test_tablets_stay_until_they_have_no_marks() -> None:
    messages = Messages()
    some = Candidates(messages)  # type: ignore[arg-type]
    assert some.take(0.0) is None
    some.examined(None, 0.0, None, complete=True)
    messages.channels = {b"{a}wake", b"{b}wake"}
    both = frozenset([b"{a}", b"{b}"])
    assert some.take(1.0) == both
    some.examined(both, 1.0, 5.0, complete=True)  # a mark that is due later
    assert some.take(2.0) == both
    some.examined(both, 2.0, None, frozenset([b"{a}"]), complete=True)
    assert some.take(3.0) == both
    messages.channels = {b"{c}wake"}
    assert some.hear()
    some.examined(both, 3.0, None, complete=True)
    assert some.take(4.0) == frozenset([b"{c}"])
    some.examined(None, 5.0, None, frozenset([b"{d}"]), complete=True)
    assert some.take(5.5) == frozenset([b"{d}"])


def test_all_tablets_are_examined_if_something_may_be_missed() -> None:
    messages = Messages()
    some = Candidates(messages)  # type: ignore[arg-type]
    some.examined(None, 0.0, 2.0, complete=True)
    assert some.take(1.0) == frozenset()
    assert some.take(2.0) is None  # a mark of the last such claim is due
    for now in (10.0, 20.0, 30.0, 40.0):
        some.examined(None, now, None, complete=True)
        assert some.take(now + 1) == frozenset()
        if now == 10.0:
            messages.channels = None
        elif now == 20.0:
            messages.is_open = False
        elif now == 30.0:
            some.lose()
        else:
            some.examined(None, now, None, complete=False)
        assert some.take(now + 2) is None
        messages.is_open = True
