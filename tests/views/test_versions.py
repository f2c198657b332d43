"""Views whose SQL changes, and views that are dropped."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from percolator_core import Chain, ConfigurationError, SnapshotTooOld, TransactionConflict, Worker
from percolator_core.admin import views as views_module
from percolator_core.admin.views import drop, fill, leftover_views, swap, to_fill, views
from percolator_core.layout.keys import MARKER
from percolator_core.notifications.activation import Registration, activate
from percolator_core.notifications.dirty import Lease
from percolator_core.transaction.transaction import Transaction
from percolator_core.views import swapping
from percolator_core.views.hot import HotGroups
from tests.servers.plain import PATIENCE
from tests.views.shops import change_views, leaves_nothing, rule_of, show, watch
from tests.views.test_stored_views import VIEWS, Shop

NEW_VIEWS = {
    "cheap": "SELECT id, 'new' AS age, amount * 3 AS thrice FROM orders WHERE price < 5",
    "sums": "SELECT customer, sum(amount) AS total FROM orders WHERE customer > 0 GROUP BY customer",
    "best": (
        "SELECT id, customer, amount FROM orders WHERE customer IS NOT NULL "
        "QUALIFY row_number() OVER (PARTITION BY customer ORDER BY amount, id) <= 1"
    ),
    "cities": "SELECT c.city, o.id FROM orders o JOIN customers c ON o.customer = c.id",
}


def test_a_changed_view_is_built_beside_the_old_one_and_swapped(shop: Shop, tmp_path: Path) -> None:
    draw = random.Random(1)
    shop.changes(draw, 25)
    shop.settle()
    before = {name: rule_of(shop, name) for name in (*NEW_VIEWS, "large")}
    rows = {name: list(shop.db.snapshot().select(name)) for name in before}
    change_views(shop, tmp_path, **NEW_VIEWS)
    shop.changes(draw, 5)
    shop.settle()
    assert rows == {name: list(shop.db.snapshot().select(name)) for name in before}
    assert {one.name for one in views(shop.db, shop.chain) if not one.shown} == set(before)
    show(shop, "large", *NEW_VIEWS)
    shop.must_be_right({**VIEWS, **NEW_VIEWS})
    shop.changes(draw, 10)
    shop.settle()
    shop.must_be_right({**VIEWS, **NEW_VIEWS})
    assert all(leaves_nothing(shop, version) for version in before.values())
    assert all(one.shown and one.versions == 1 for one in views(shop.db, shop.chain))


def test_a_view_returns_to_its_earlier_sql_and_has_missed_nothing(shop: Shop, tmp_path: Path) -> None:
    draw = random.Random(2)
    shop.changes(draw, 25)
    shop.settle()
    change_views(shop, tmp_path, **NEW_VIEWS)
    with shop.db.transaction() as t:
        for key in (0, 1, 2, 3):
            t.remove(shop.order, id=key)
    shop.changes(draw, 5)
    shop.settle()
    shop.db.collect_garbage(timedelta(0))
    change_views(shop, tmp_path, **{name: VIEWS[name] for name in NEW_VIEWS})
    assert not any(one.filled for one in views(shop.db, shop.chain) if one.name in NEW_VIEWS)
    show(shop, "large", *NEW_VIEWS)
    shop.must_be_right()
    assert all(one.filled and one.versions == 1 for one in views(shop.db, shop.chain))


def test_a_view_that_returns_takes_back_rows_that_garbage_collection_has_removed(
    shop: Shop, tmp_path: Path
) -> None:
    with shop.db.transaction() as t:
        for key in range(40):
            t.upsert(shop.order(id=key, customer=key % 2, amount=1))
    shop.settle()
    change_views(shop, tmp_path, sums=NEW_VIEWS["sums"])
    with shop.db.transaction() as t:
        for key in range(20):
            t.remove(shop.order, id=key)
    shop.settle()
    for _ in range(3):
        shop.db.collect_garbage(timedelta(0))
    change_views(shop, tmp_path, sums=VIEWS["sums"])
    shop.db.collect_garbage(timedelta(0))
    show(shop, "sums")
    shop.settle()
    shop.must_be_right()


def test_a_view_that_returns_processes_the_queues_of_its_groups(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.changes(random.Random(3), 10)
    shop.settle()
    with shop.db.transaction() as t:
        for key in range(12):
            t.upsert(shop.order(id=key, customer=key % 4, amount=50))
    names = [shop.observer(name, "rows") for name in ("sums", "best")]
    with monkeypatch.context() as patched:
        patched.setattr(HotGroups, "__contains__", lambda *_: True)
        Worker(shop.db, shop.chain, observers=names).run_until_idle(PATIENCE)
    change_views(shop, tmp_path, sums=NEW_VIEWS["sums"], best=NEW_VIEWS["best"])
    shop.settle()
    change_views(shop, tmp_path, sums=VIEWS["sums"], best=VIEWS["best"])
    show(shop, "sums", "best")
    shop.settle()
    shop.must_be_right()


@pytest.mark.parametrize("again", [False, True], ids=["away", "and back"])
def test_a_fill_beside_which_another_chain_was_activated_is_repeated(
    shop: Shop, tmp_path: Path, again: bool
) -> None:
    with shop.db.transaction() as t:
        for key in range(40):
            t.upsert(shop.order(id=key, customer=1 + key % 2, amount=1))
    shop.settle()
    change_views(shop, tmp_path, sums=NEW_VIEWS["sums"])
    chain = shop.chain

    def interfere(_: object) -> None:
        if shop.chain is chain:
            change_views(shop, tmp_path, sums=VIEWS["sums"])
            with shop.db.transaction() as t:
                for key in range(20):
                    t.remove(shop.order, id=key)
            if again:
                change_views(shop, tmp_path, sums=NEW_VIEWS["sums"])

    with suppress(ConfigurationError):
        fill(shop.db, chain, "sums", interfere)
    change_views(shop, tmp_path, sums=NEW_VIEWS["sums"])
    show(shop, "sums")
    shop.must_be_right({"sums": NEW_VIEWS["sums"]})


def test_observers_get_each_row_of_the_new_version(shop: Shop, tmp_path: Path) -> None:
    watch(shop, tmp_path)
    with shop.db.transaction() as t:
        t.insert(shop.order(id=1, price=1.0, amount=3))
        t.insert(shop.order(id=5, price=1.0, amount=4))
    shop.settle()
    change_views(shop, tmp_path, cheap="SELECT id, amount * 5 AS twice FROM orders WHERE amount = 3")
    show(shop, "cheap")
    shop.settle()
    assert shop.db.snapshot().get_row("copies", "all") == {"1": b"15", "5": b"8"}
    assert shop.db.snapshot().get_row("copies", "before") == {"1": b"none", "5": b"none"}


def test_a_snapshot_reads_the_version_of_its_time_or_is_refused(shop: Shop, tmp_path: Path) -> None:
    with shop.db.transaction() as t:
        t.insert(shop.order(id=1, price=1.0, amount=3))
    shop.settle()
    change_views(shop, tmp_path, cheap=NEW_VIEWS["cheap"])
    fill(shop.db, shop.chain, "cheap")
    half = shop.db.timestamp()
    shop.settle()
    old = shop.db.snapshot()
    swapping.show(shop.db, rule_of(shop, "cheap"))
    assert list(old.select("cheap")) == [{"id": 1, "twice": 6}]
    assert list(shop.db.snapshot().select("cheap")) == [{"id": 1, "age": "new", "thrice": 9}]
    with pytest.raises(SnapshotTooOld):
        list(shop.db.snapshot(at=half).select("cheap"))
    swap(shop.db, shop.chain, "cheap")
    with pytest.raises(SnapshotTooOld):
        list(old.select("cheap"))


def test_a_version_is_shown_only_when_nothing_waits(shop: Shop, tmp_path: Path) -> None:
    with shop.db.transaction() as t:
        t.insert(shop.order(id=1, price=1.0, amount=3))
    shop.settle()
    change_views(shop, tmp_path, cheap=NEW_VIEWS["cheap"], large="SELECT customer FROM sums WHERE total > 1")
    with pytest.raises(ConfigurationError, match="cheap is not filled"):
        swap(shop.db, shop.chain, "cheap")
    fill(shop.db, shop.chain, "cheap")
    with shop.db.transaction() as t:
        t.insert(shop.order(id=2, price=1.0, amount=3))
    with pytest.raises(TimeoutError, match="1 changes of cheap were left"):
        swap(shop.db, shop.chain, "cheap", timeout=0)
    shop.settle()
    swap(shop.db, shop.chain, "cheap", timeout=0)


def test_a_view_with_changes_in_quarantine_is_not_shown(shop: Shop, tmp_path: Path) -> None:
    with shop.db.transaction() as t:
        t.insert(shop.order(id=1, price=1.0, amount=0))
    shop.settle()
    change_views(shop, tmp_path, cheap="SELECT id, 1 // amount AS twice FROM orders")
    fill(shop.db, shop.chain, "cheap")
    shop.settle()
    with pytest.raises(ConfigurationError, match="1 changes of cheap are in quarantine"):
        swap(shop.db, shop.chain, "cheap")
    assert list(shop.db.snapshot().select("cheap")) == [{"id": 1, "twice": 0}]


def test_the_workers_of_the_old_version_have_to_end_first(shop: Shop, tmp_path: Path) -> None:
    old, version = shop.chain, rule_of(shop, "cheap")
    change_views(shop, tmp_path, cheap=NEW_VIEWS["cheap"])
    fill(shop.db, shop.chain, "cheap")
    with_old = Registration(shop.db, old.digest, "here")
    shop.chain.create_tables(shop.db, rolling=True)
    activate(shop.db, old.observed, old.digest, rolling=True)
    with pytest.raises(ConfigurationError, match="stop the workers of the earlier one"):
        swap(shop.db, shop.chain, "cheap")
    with_old.withdraw()
    shop.chain.create_tables(shop.db)
    swap(shop.db, shop.chain, "cheap")
    assert leaves_nothing(shop, version)


class _Died(Exception):
    """The process died here."""


STEPS = [
    (views_module, "fill_from_tables"),
    (views_module, "record"),
    (swapping, "raise_safe_points"),
    (swapping, "record"),
    (views_module, "drop_version"),
]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("module", "step"), STEPS)
def test_a_change_of_sql_that_died_at_any_step_is_repeated(  # noqa: PLR0917
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, before: bool
) -> None:
    draw, old = random.Random(7), rule_of(shop, "cities")
    shop.changes(draw, 25)
    shop.settle()
    change_views(shop, tmp_path, cities=NEW_VIEWS["cities"])
    real = getattr(module, step)

    def die(*given: Any, **named: Any) -> None:
        if not before:
            real(*given, **named)
        raise _Died

    with monkeypatch.context() as broken:
        broken.setattr(module, step, die)
        with pytest.raises(_Died):
            show(shop, "cities")
    shop.changes(draw, 5)
    shop.settle()
    [now] = [one for one in views(shop.db, shop.chain) if one.name == "cities"]
    ages = {"total" in row for row in shop.db.snapshot().select("cities")}
    assert ages == {not now.shown}
    show(shop, "cities")
    shop.must_be_right({**VIEWS, "cities": NEW_VIEWS["cities"]})
    assert leaves_nothing(shop, old)


@pytest.mark.parametrize("done", range(7))
def test_a_drop_that_died_after_any_step_is_repeated(shop: Shop, tmp_path: Path, done: int) -> None:
    shop.changes(random.Random(3), 25)
    shop.settle()
    version = rule_of(shop, "cities")
    change_views(shop, tmp_path, cities=None)
    steps = swapping.dropping(shop.db, version)
    for _ in range(done):
        next(steps, None)
    assert leftover_views(shop.db, shop.chain) == (["cities"] if done < 6 else [])
    if done < 6:
        drop(shop.db, shop.chain, "cities")
    assert leaves_nothing(shop, version)
    change_views(shop, tmp_path, cities=VIEWS["cities"])
    show(shop, "cities")
    shop.must_be_right()


def test_a_view_that_is_in_use_is_not_dropped(shop: Shop, tmp_path: Path) -> None:
    old = shop.chain
    with pytest.raises(ConfigurationError, match="the chain shop has the view sums"):
        drop(shop.db, shop.chain, "sums")
    with pytest.raises(ConfigurationError, match="there is no view 'other' in"):
        drop(shop.db, shop.chain, "other")
    for name in ("sums", "large"):
        (tmp_path / "shop" / "views" / f"{name}.sql").unlink()
    shop.chain = Chain.load(tmp_path / "shop")
    with pytest.raises(ConfigurationError, match=r"large.*@rows observes or reads sums: remove that first"):
        drop(shop.db, shop.chain, "sums")
    with pytest.raises(ConfigurationError, match=r"the observers of large.* are active"):
        drop(shop.db, shop.chain, "large")
    shop.chain.create_tables(shop.db)
    assert leftover_views(shop.db, shop.chain) == ["large", "sums"]
    drop(shop.db, shop.chain, "sums")
    drop(shop.db, shop.chain, "large")
    for name in ("sums", "large"):
        version = old.views[name].stored.view
        assert version is not None
        assert leaves_nothing(shop, version)


@pytest.mark.parametrize("done", [1, 5])
def test_a_version_that_is_being_dropped_does_not_come_back(shop: Shop, tmp_path: Path, done: int) -> None:
    version = rule_of(shop, "cities")
    change_views(shop, tmp_path, cities=None)
    steps = swapping.dropping(shop.db, version)
    for _ in range(done):
        next(steps)
    with pytest.raises(ConfigurationError, match="the view cities with this SQL is being dropped"):
        change_views(shop, tmp_path, cities=VIEWS["cities"])


def test_a_run_that_slept_writes_nothing_to_a_version_that_is_being_dropped(
    shop: Shop, tmp_path: Path
) -> None:
    with shop.db.transaction() as t:
        t.insert(shop.order(id=1, price=1.0, amount=3))
    version, runs = rule_of(shop, "cheap"), shop.chain.observers[f"{rule_of(shop, 'cheap').table}@rows"].view
    assert runs is not None
    t = Transaction(shop.db.client)
    row = shop.order.row_key(id=1)
    tag = shop.db.catalog.table("orders").tag(row)
    change = runs.begin(t, Lease(f"{version.table}@rows", "orders", tag, row, MARKER, 0, 0, 0, 0, 0.0))
    assert change is not None
    runs.process(None, change)
    change_views(shop, tmp_path, cheap=None)
    steps = swapping.dropping(shop.db, version)
    next(steps)
    with pytest.raises(TransactionConflict):
        t.commit()
    for _ in steps:
        pass
    assert leaves_nothing(shop, version)


class Traffic:
    """A writer, a reader of the view ``cheap``, and a worker, in threads."""

    def __init__(self, shop: Shop) -> None:
        self.wrong: list[object] = []
        self._shop = shop
        self._stop = threading.Event()
        self._worker = Worker(shop.db, shop.chain, threads=2)
        self._threads = [threading.Thread(target=one) for one in (self._write, self._read, self._worker.run)]

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._worker.stop()
        for one in self._threads:
            one.join()

    def _write(self) -> None:
        draw = random.Random(5)
        while not self._stop.wait(0.05):
            self._shop.change(draw)

    def _read(self) -> None:
        seen: set[str] = set()
        while not self._stop.is_set():
            try:
                ages = {row.get("age", "old") for row in self._shop.db.snapshot().select("cheap")}
            except SnapshotTooOld:
                continue
            if len(ages) > 1 or ("new" in seen and "old" in ages):
                self.wrong.append(ages)
            seen |= ages


def test_views_change_beside_writers_readers_and_workers(shop: Shop, tmp_path: Path) -> None:
    shop.changes(random.Random(4), 25)
    shop.settle()
    change_views(shop, tmp_path, **NEW_VIEWS)
    with Traffic(shop) as traffic:
        for name in [view for last in ("large", *NEW_VIEWS) for view in to_fill(shop.db, shop.chain, last)]:
            fill(shop.db, shop.chain, name)
            swap(shop.db, shop.chain, name, timeout=PATIENCE)
    assert not traffic.wrong
    shop.settle()
    shop.must_be_right({**VIEWS, **NEW_VIEWS})
