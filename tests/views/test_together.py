"""Many changed rows in one transaction, groups for which runs compete, and the fill of a view."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import percolator_core
from percolator_core import Worker
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.views import fill
from percolator_core.errors import StoreUnavailable, UnknownColumn
from percolator_core.layout.queue_rows import key_row
from percolator_core.observers import Chain
from percolator_core.transaction.transaction import Transaction
from percolator_core.views import hot
from percolator_core.views.hot import HotGroups
from percolator_core.views.runs import ViewRuns
from percolator_core.views.stored import STATE, StoredGroup, groups_table
from percolator_core.worker.attempt import Admission
from tests.servers.plain import PATIENCE
from tests.views.test_stored_views import VIEWS, Shop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from percolator_core import Database
    from percolator_core.notifications.dirty import Lease


ROWS = range(60)

EXITS = """\
import sys
from percolator_core import view_function

@view_function()
def checked(number: int) -> int:
    if number == 7:
        sys.exit("seven")
    return number
"""


def write_orders(shop: Shop, amount: int = 1) -> None:
    with shop.db.transaction() as t:
        for key in ROWS:
            t.upsert(shop.order(id=key, customer=key % 2, amount=amount))


def run(shop: Shop, **settings: Any) -> Worker:
    worker = Worker(shop.db, shop.chain, **settings)
    worker.run_until_idle(PATIENCE)
    return worker


def add(shop: Shop, tmp_path: Path, name: str, sql: str) -> None:
    (tmp_path / "shop" / "views" / f"{name}.sql").write_text(f"CREATE VIEW {name} AS {sql}")
    shop.chain = Chain.load(tmp_path / "shop")
    shop.chain.create_tables(shop.db)


def states_of(shop: Shop, view: str, key: bytes) -> int:
    """Return how often the state of a group was written."""
    table = groups_table(shop.chain.views[view].stored.name)
    return len(list(shop.db.history(table, b"\xfe" + key_row(key), STATE)))


def connected(shop: Shop) -> Database:
    return percolator_core.connect(shop.db.url, namespace=shop.db.namespace)


def before_commit(
    monkeypatch: pytest.MonkeyPatch, view: str, interfere: Callable[[], object], times: int = 1
) -> None:
    """Call ``interfere`` after the first transactions of a view have read, and before they commit."""
    original = ViewRuns.run_together
    calls = [0]

    def interfering(self: ViewRuns, *arguments: Any, **settings: Any) -> Any:
        result = original(self, *arguments, **settings)
        if self.plan.name == view and calls[0] < times:
            calls[0] += 1
            interfere()
        return result

    monkeypatch.setattr(ViewRuns, "run_together", interfering)


def touch_group(shop: Shop, view: str, key: bytes) -> None:
    """Write the state of a group, as a run of another process does."""

    def touch(t: Transaction) -> None:
        t.writes_view = shop.chain.views[view].fingerprint
        group = StoredGroup(t, shop.chain.views[view].stored.name, key)
        group.state = group.state

    shop.db.run(touch, attempts=100)


def test_rows_that_wait_are_processed_in_one_transaction(shop: Shop) -> None:
    write_orders(shop)
    worker = run(shop)
    assert worker.counts.observers[shop.observer("sums", "rows")].ran == len(ROWS)
    key = shop.chain.views["sums"].model.row_key(customer=1)
    assert states_of(shop, "sums", key) < len(ROWS) // 4
    shop.must_be_right()


def test_a_row_without_a_result_holds_back_no_other(shop: Shop, tmp_path: Path) -> None:
    add(shop, tmp_path, "shares", "SELECT customer, sum(100 // amount) AS n FROM orders GROUP BY customer")
    write_orders(shop)
    with shop.db.transaction() as t:
        t.update(shop.order, id=7, amount=0)
    run(shop)
    cells = Quarantine(shop.db, shop.chain).cells()
    found = {one.row for one in cells if one.observer == shop.observer("shares", "rows")}
    assert found == {shop.order.row_key(id=7)}
    assert [row["n"] for row in shop.db.snapshot().select("shares")] == [3000, 2900]


def test_a_row_that_another_worker_runs_meanwhile_holds_back_no_other(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_orders(shop)
    before_commit(monkeypatch, "cheap", lambda: shop.run_alone("cheap", "orders", shop.order.row_key(id=3)))
    counts = run(shop).counts.observers[shop.observer("cheap", "rows")]
    assert (counts.conflicts, counts.ran, counts.collapsed) == (1, len(ROWS) - 1, 1)
    shop.must_be_right()


def test_a_row_that_a_client_writes_meanwhile_runs_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    write_orders(shop)

    def write() -> None:
        with connected(shop) as other, other.transaction() as t:
            t.update(shop.order, id=3, amount=50)

    before_commit(monkeypatch, "sums", write)
    assert run(shop).counts.observers[shop.observer("sums", "rows")].ran == len(ROWS) + 1
    shop.must_be_right()


@pytest.mark.parametrize("times", [1, 100])
def test_a_group_for_which_others_compete_gets_its_deltas_by_a_queue(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(hot, "_HOT", 3600.0)
    write_orders(shop)
    run(shop)
    write_orders(shop, amount=2)
    key = shop.chain.views["sums"].model.row_key(customer=1)
    before_commit(monkeypatch, "sums", lambda: touch_group(shop, "sums", key), times)
    counts = run(shop).counts.observers
    assert counts[shop.observer("sums", "rows")].conflicts == 1
    assert counts[shop.observer("sums", "groups")].ran
    shop.must_be_right()


def test_a_group_is_hot_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("percolator_core.views.hot.time.monotonic", lambda: now[0])
    groups = HotGroups()
    groups.add([b"a"])
    assert (b"a" in groups, b"b" in groups) == (True, False)
    now[0] = 1.5
    assert b"a" not in groups
    groups.add(b"%d" % number for number in range(10_001))
    now[0] = 3.0
    groups.add([b"c"])
    assert b"c" in groups


def test_rows_are_run_one_by_one_if_their_chain_is_traced(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop" / "chain.yaml").write_text(
        "version: 1\nchain: shop\nschemas: view_models\ntrace: true\n"
    )
    shop.chain = Chain.load(tmp_path / "shop")
    shop.chain.create_tables(shop.db)
    monkeypatch.delattr(ViewRuns, "run_together")
    write_orders(shop)
    run(shop)
    shop.must_be_right()


def test_a_store_that_does_not_answer_leaves_the_marks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    write_orders(shop)
    calls = [0]

    def away() -> None:
        calls[0] += 1
        raise StoreUnavailable("away")

    before_commit(monkeypatch, "sums", away)
    run(shop)
    assert calls == [1]
    shop.must_be_right()


def test_a_fill_leaves_to_workers_what_it_cannot_do(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_orders(shop)
    with shop.db.transaction() as t:
        t.update(shop.order, id=7, amount=0)
    run(shop)
    add(shop, tmp_path, "shares", "SELECT customer, sum(100 // amount) AS n FROM orders GROUP BY customer")
    counts = fill(shop.db, shop.chain, "shares")
    assert (counts.rows, counts.known, counts.marked) == (len(ROWS), 0, 1)
    run(shop)
    assert Quarantine(shop.db, shop.chain).count()[shop.observer("shares", "rows")] == 1
    add(shop, tmp_path, "contended", VIEWS["sums"])
    key = shop.chain.views["contended"].model.row_key(customer=1)
    monkeypatch.setattr("percolator_core.views.hot.HotGroups.__contains__", lambda *_: False)
    before_commit(monkeypatch, "contended", lambda: touch_group(shop, "contended", key), 20)
    assert fill(shop.db, shop.chain, "contended").marked == len(ROWS)
    run(shop)
    shop.must_be_right({**VIEWS, "contended": VIEWS["sums"]})


def test_a_fill_leaves_to_workers_a_page_with_a_row_that_the_store_refuses(
    shop: Shop, tmp_path: Path
) -> None:
    write_orders(shop)
    with shop.db.transaction() as t:
        t.update(shop.order, id=7, note="x" * 66_000)
    run(shop)
    sql = "SELECT note, count(*) AS n FROM orders WHERE note IS NOT NULL GROUP BY note"
    add(shop, tmp_path, "notes", sql)
    marked = 0
    with suppress(ValueError):
        marked = fill(shop.db, shop.chain, "notes").marked
    assert marked == len(ROWS)
    run(shop)
    [cell] = Quarantine(shop.db, shop.chain).cells()
    assert (cell.observer, cell.row) == (shop.observer("notes", "rows"), shop.order.row_key(id=7))


def test_an_error_outside_of_the_runs_leaves_no_row_waiting(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_orders(shop)
    original, failed = Admission.admits, [0]

    def admits(self: Admission, lease: Lease) -> bool:
        if lease.observer == shop.observer("sums", "rows") and not failed[0]:
            failed[0] += 1
            raise UnknownColumn("a column that is being renamed")
        return original(self, lease)

    monkeypatch.setattr(Admission, "admits", admits)
    Worker(shop.db, shop.chain).run_until_idle(30)
    assert failed == [1]
    shop.must_be_right()


def test_a_function_that_exits_ends_its_run_and_not_the_worker(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "view_watchers.py").write_text(EXITS)
    (tmp_path / "shop" / "chain.yaml").write_text(
        "version: 1\nchain: shop\nschemas: view_models\nviews: view_watchers\n"
    )
    write_orders(shop)
    ended = False
    add(shop, tmp_path, "checked", "SELECT id, checked(id) AS number FROM orders")
    with shop.db.transaction() as t:
        t.update(shop.order, id=7, note="again")
        t.update(shop.order, id=8, note="again")
    try:
        run(shop)
    except SystemExit:
        ended = True
    assert not ended
    assert [cell.row for cell in Quarantine(shop.db, shop.chain).cells()] == [shop.order.row_key(id=7)]
    assert [row["number"] for row in shop.db.snapshot().select("checked")] == [8]


def test_a_joined_row_that_is_gone_leaves_nothing(shop: Shop) -> None:
    with shop.db.transaction() as t:
        t.upsert(shop.customer(id=1, city="Rome"))
        t.upsert(shop.order(id=1, customer=1, amount=5))
    run(shop)
    with shop.db.transaction() as t:
        t.remove(shop.customer, id=1)
    run(shop)
    for _ in range(3):
        shop.db.collect_garbage(timedelta(0))
    handle = shop.db.catalog.table("customers")
    assert shop.db.store.one((b"HKEYS", handle.row_key(shop.customer.row_key(id=1)))) == []
    shop.must_be_right()


def test_a_value_that_is_too_long_for_a_group_gets_into_no_queue(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(shop, tmp_path, "notes", "SELECT customer, max(note) AS last FROM orders GROUP BY customer")
    write_orders(shop)
    run(shop)
    monkeypatch.setattr("percolator_core.views.hot.HotGroups.__contains__", lambda *_: True)
    with shop.db.transaction() as t:
        t.update(shop.order, id=7, note="x" * 65_530)
        t.update(shop.order, id=9, note="y")
    run(shop)
    [cell] = Quarantine(shop.db, shop.chain).cells()
    assert (cell.observer, cell.row) == (shop.observer("notes", "rows"), shop.order.row_key(id=7))
    assert [row["last"] for row in shop.db.snapshot().select("notes")] == [None, "y"]
