"""Observers of whole rows: one run for a row and commit, with the row before and after."""

from __future__ import annotations

import random
import threading
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import percolator_core
from percolator_core import Hash, PrimaryKey, RowChange, Table, Worker
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.rerun import _Rerun, rerun
from percolator_core.admin.trace import trace
from percolator_core.archive.marks import Marks
from percolator_core.observers import Retry
from percolator_core.tables.model import definition_of
from tests.chains import TABLES, chain_of, watch
from tests.flushing import flush, is_cold
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from percolator_core import Chain, Database, ObserverTransaction


class Offer(Table, name="offers", partition=[Hash("shop", buckets=4)]):
    shop: PrimaryKey[str]
    item: PrimaryKey[int]
    price: int | None = None
    stock: int = 0
    note: str | None = None


class Coloured(Offer, name="offers", partition=[Hash("shop", buckets=4)]):
    colour: str | None = None


class Rows:
    """A chain with an observer of typed rows and one of raw rows, which record what they get."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.seen: list[RowChange] = []
        self.broken = False
        retry = Retry(1, 0.001, 0.001)
        made = chain_of(
            watch("typed", self.see, "offers.*", retry=retry),
            watch("raw", self.see, "docs.*", retry=retry),
            tables=(*TABLES, definition_of(Offer)),
        )
        self.chain: Chain = replace(made, models={"offers": Offer})
        self.chain.create_tables(db)

    def see(self, t: ObserverTransaction, change: RowChange) -> None:
        del t
        if self.broken:
            raise ValueError("broken")
        self.seen.append(change)

    def work(self) -> list[RowChange]:
        """Run until idle; return what the observers got since the last call."""
        self.seen.clear()
        Worker(self.db, self.chain).run_until_idle(PATIENCE)
        return list(self.seen)

    def commit(self, **cells: Any) -> None:
        with self.db.transaction() as t:
            t.upsert(Offer(shop="a", item=1, **cells))


@pytest.fixture
def rows(db: Database) -> Rows:
    return Rows(db)


@pytest.fixture
def other(store_url: str) -> Iterator[Database]:
    """Another namespace, which is empty."""
    with percolator_core.connect(store_url, namespace=uuid.uuid4().hex) as found:
        yield found


def test_a_new_row_is_one_run_with_all_its_columns(rows: Rows) -> None:
    rows.commit(price=3, stock=1, note="new")
    [change] = rows.work()
    assert (change.table, change.row) == ("offers", Offer.row_key(shop="a", item=1))
    assert change.key == {"shop": "a", "item": 1}
    assert change.before is None
    assert change.after == Offer(shop="a", item=1, price=3, stock=1, note="new")
    assert change.columns == {"price", "stock", "note"}
    assert rows.work() == []


def test_an_update_has_the_row_before_and_after(rows: Rows) -> None:
    rows.commit(price=3, stock=1)
    rows.work()
    with rows.db.transaction() as t:
        t.update(Offer, shop="a", item=1, price=None, stock=2)
    [change] = rows.work()
    assert change.before == Offer(shop="a", item=1, price=3, stock=1)
    assert change.after == Offer(shop="a", item=1, price=None, stock=2)
    assert change.columns == {"price", "stock"}


def test_several_commits_may_be_one_change(rows: Rows) -> None:
    for price in (1, 2, 3):
        rows.commit(price=price)
    [change] = rows.work()
    assert (change.before, change.after.price) == (None, 3)


def test_a_removed_row_has_no_after(rows: Rows) -> None:
    rows.commit(price=3)
    rows.work()
    with rows.db.transaction() as t:
        t.remove(Offer, shop="a", item=1)
    [change] = rows.work()
    assert (change.before, change.after) == (Offer(shop="a", item=1, price=3), None)
    assert change.columns == {"price", "stock"}
    rows.commit(price=4)
    [change] = rows.work()
    assert (change.before, change.after.price) == (None, 4)


@pytest.mark.parametrize("one_call_a_tablet", [False, True])
def test_a_write_during_the_run_is_the_next_change(rows: Rows, one_call_a_tablet: bool) -> None:
    rows.db.client.one_call_a_tablet = one_call_a_tablet

    def write(t: ObserverTransaction, change: RowChange) -> None:
        rows.see(t, change)
        if len(rows.seen) == 1:
            with rows.db.transaction() as other:
                for number in range(8):
                    other.upsert(Offer(shop="a", item=number, note="late"))

    made = chain_of(watch("typed", write, "offers.*"), tables=(*TABLES, definition_of(Offer)))
    rows.chain = replace(made, models={"offers": Offer})
    rows.chain.create_tables(rows.db)
    rows.commit(price=3)
    found = {change.key["item"]: change for change in rows.work()}
    assert found.keys() == set(range(8))
    assert (found[1].before, found[1].after.note) == (Offer(shop="a", item=1, price=3), "late")


def test_a_row_that_came_and_went_before_its_run_is_no_change(rows: Rows) -> None:
    rows.commit(price=3)
    with rows.db.transaction() as t:
        t.remove(Offer, shop="a", item=1)
    assert rows.work() == []
    assert rows.work() == []


def test_a_row_that_is_as_before_is_no_change(rows: Rows) -> None:
    rows.commit(price=3)
    rows.work()
    rows.commit(price=4)
    rows.commit(price=3)
    assert rows.work() == []


def test_raw_rows_are_dicts_of_bytes(rows: Rows) -> None:
    with rows.db.transaction() as t:
        t.set("docs", "r", "text", b"1")
        t.set("docs", "r", "title", b"2")
    [change] = rows.work()
    assert (change.table, change.row, change.key) == ("docs", b"r", {})
    assert (change.before, change.after) == (None, {"text": b"1", "title": b"2"})
    with rows.db.transaction() as t:
        t.delete("docs", "r", "text")
        t.set("docs", "r", "more", b"3")
    [change] = rows.work()
    assert change.before == {"text": b"1", "title": b"2"}
    assert change.after == {"title": b"2", "more": b"3"}
    assert change.columns == {"text", "more"}
    with rows.db.transaction() as t:
        t.delete_row("docs", "r")
    [change] = rows.work()
    assert (change.before, change.after) == ({"title": b"2", "more": b"3"}, None)


def test_a_failed_row_is_one_entry_in_quarantine_until_the_row_changes(rows: Rows) -> None:
    rows.broken = True
    rows.commit(price=3, stock=1, note="bad")
    rows.work()
    quarantine = Quarantine(rows.db, rows.chain)
    [failed] = quarantine.cells()
    assert (failed.observer, failed.table, failed.column) == ("typed", "offers", "*")
    rows.broken = False
    with rows.db.transaction() as t:
        t.update(Offer, shop="a", item=1, note="good")
    [change] = rows.work()
    assert (change.before, change.after.note) == (None, "good")
    assert list(quarantine.cells()) == []


def test_garbage_collection_keeps_what_the_next_run_needs(rows: Rows) -> None:
    rows.commit(price=3)
    rows.work()
    rows.commit(price=4)
    rows.db.collect_garbage(keep=timedelta(0))
    [change] = rows.work()
    assert (change.before.price, change.after.price) == (3, 4)
    with rows.db.transaction() as t:
        t.remove(Offer, shop="a", item=1)
    rows.db.collect_garbage(keep=timedelta(0))
    [change] = rows.work()
    assert (change.before.price, change.after) == (4, None)
    for _ in range(2):
        rows.db.collect_garbage(keep=timedelta(0))
    assert is_cold(rows.db, "offers", Offer.row_key(shop="a", item=1))


def test_garbage_collection_keeps_the_acknowledgement_of_a_raw_row(rows: Rows) -> None:
    with rows.db.transaction() as t:
        t.set("docs", "r", "text", b"1")
    rows.work()
    rows.db.collect_garbage(keep=timedelta(0))
    with rows.db.transaction() as t:
        t.set("docs", "r", "text", b"2")
    [change] = rows.work()
    assert change.before == {"text": b"1"}


def test_a_rerun_keeps_the_row_before(rows: Rows) -> None:
    rows.commit(price=3)
    with rows.db.transaction() as t:
        t.set("docs", "r", "text", b"1")
    rows.work()
    assert rerun(rows.db, rows.chain, "typed").marked == 1
    assert rerun(rows.db, rows.chain, "raw").marked == 1
    typed, raw = sorted(rows.work(), key=lambda one: one.table, reverse=True)
    assert (typed.before, typed.after, typed.columns) == (
        Offer(shop="a", item=1, price=3),
        Offer(shop="a", item=1, price=3),
        frozenset(),
    )
    assert (raw.before, raw.after) == ({"text": b"1"}, {"text": b"1"})
    assert rows.work() == []


@pytest.mark.parametrize("table", ["offers", "docs"])
def test_a_cold_row_is_compared_with_the_base(rows: Rows, tmp_path: Path, table: str) -> None:
    def write(price: int, **more: Any) -> None:
        if table == "offers":
            rows.commit(price=price, **more)
            return
        with rows.db.transaction() as t:
            for name, value in {"price": price, **more}.items():
                t.set("docs", "r", name, str(value).encode())

    key = Offer.row_key(shop="a", item=1) if table == "offers" else b"r"
    rows.db.set_base(table, str(tmp_path))
    write(3, note="first")
    rows.work()
    flush(rows.db, table, tmp_path, observers=["typed", "raw"])
    assert is_cold(rows.db, table, key)
    write(4)
    # The row is dirty, so no flush may replace what the base has of it.
    assert flush(rows.db, table, tmp_path, observers=["typed", "raw"]) == 0
    [change] = rows.work()
    assert change.columns == {"price"}
    if table == "offers":
        assert (change.before.price, change.before.note) == (3, "first")
        assert (change.after.price, change.after.note) == (4, "first")
    else:
        assert change.before == {"price": b"3", "note": b"first"}
        assert change.after == {"price": b"4", "note": b"first"}
    flush(rows.db, table, tmp_path, observers=["typed", "raw"])
    assert is_cold(rows.db, table, key)
    assert rerun(rows.db, rows.chain, "typed" if table == "offers" else "raw").marked == 1
    [change] = rows.work()
    assert (change.before, change.columns) == (change.after, frozenset())
    assert rows.work() == []


def test_the_acknowledgement_stays_as_long_as_a_cell_of_the_row(rows: Rows, tmp_path: Path) -> None:
    rows.db.set_base("docs", str(tmp_path))
    with rows.db.transaction() as t:
        t.set("docs", "r", "old", b"1")
    rows.work()
    before = rows.db.timestamp()
    with rows.db.transaction() as t:
        t.set("docs", "r", "new", b"1")
    rows.work()
    flush(rows.db, "docs", tmp_path, before, observers=["raw"])
    with rows.db.transaction() as t:
        t.set("docs", "r", "new", b"2")
    [change] = rows.work()
    assert change.before == {"old": b"1", "new": b"1"}
    assert change.columns == {"new"}


def test_each_change_is_counted_once_beside_writers_and_workers(rows: Rows) -> None:
    """The sums of what was added and taken away are those of the table, whatever runs were repeated."""
    sums: dict[str, int] = {}

    def add(t: ObserverTransaction, change: RowChange) -> None:
        total = int(t.get("sums", b"all", "total") or 0)
        total += sum(one.stock for one in (change.after,) if one) - sum(
            one.stock for one in (change.before,) if one
        )
        t.set("sums", b"all", "total", b"%d" % total)

    chain = chain_of(
        watch("add", add, "offers.*", writes=("sums.total",)), tables=(*TABLES, definition_of(Offer))
    )
    chain = replace(chain, models={"offers": Offer})
    chain.create_tables(rows.db)
    draw = random.Random(7)
    ended = threading.Event()

    def write() -> None:
        try:
            for number in range(150):
                with rows.db.transaction() as t:
                    shop, item = draw.choice("abc"), draw.randrange(4)
                    if draw.random() < 0.3:
                        t.remove(Offer, shop=shop, item=item)
                    else:
                        t.upsert(Offer(shop=shop, item=item, stock=number))
        finally:
            ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        Worker(rows.db, chain, threads=4).run_until_idle(PATIENCE)
    writer.join()
    Worker(rows.db, chain).run_until_idle(PATIENCE)
    sums["table"] = sum(one.stock for one in rows.db.snapshot().select(Offer))
    assert int(rows.db.snapshot().get("sums", b"all", "total") or 0) == sums["table"]


@pytest.mark.parametrize("table", ["offers", "docs"])
def test_a_row_keeps_what_was_seen_when_it_leaves_the_base(rows: Rows, tmp_path: Path, table: str) -> None:
    def write(price: int) -> None:
        if table == "offers":
            rows.commit(price=price)
            return
        with rows.db.transaction() as t:
            t.set("docs", "r", "price", b"%d" % price)

    rows.db.set_base(table, str(tmp_path))
    write(3)
    rows.work()
    rows.db.flush(table, everything=True)
    rows.db.set_base(table, None)
    write(4)
    [change] = rows.work()
    assert change.before is not None
    seen = change.before.price if table == "offers" else int(change.before["price"])
    assert seen == 3
    assert change.columns == {"price"}


def test_a_restored_chain_goes_on_where_the_backup_ended(rows: Rows, tmp_path: Path, other: Database) -> None:
    """Rows of the store and of the base; processed ones, and ones with a change that no run has seen."""
    rows.db.set_base("docs", str(tmp_path / "base"))
    with rows.db.transaction() as t:
        for row in ("cold", "hot", "gone", "dirty"):
            t.set("docs", row, "text", b"1")
    rows.work()
    rows.db.flush("docs", everything=True)
    with rows.db.transaction() as t:
        t.set("docs", "hot", "more", b"2")
    rows.work()
    with rows.db.transaction() as t:
        t.set("docs", "dirty", "text", b"3")
        t.delete("docs", "gone", "text")
    percolator_core.backup(rows.db, str(tmp_path / "backup"))
    percolator_core.restore(str(tmp_path / "backup"), other)
    there = Rows(other)
    found = {change.row: change for change in there.work()}
    assert found.keys() == {b"dirty", b"gone"}
    assert (found[b"dirty"].before, found[b"dirty"].after) == ({"text": b"1"}, {"text": b"3"})
    assert (found[b"gone"].before, found[b"gone"].after) == ({"text": b"1"}, None)
    with other.transaction() as t:
        t.set("docs", "cold", "text", b"4")
        t.set("docs", "hot", "text", b"4")
    found = {change.row: change for change in there.work()}
    assert found[b"cold"].before == {"text": b"1"}
    assert found[b"hot"].before == {"text": b"1", "more": b"2"}


def test_a_trace_shows_the_run_for_the_row(rows: Rows) -> None:
    rows.commit(price=3)
    [waiting] = {
        outcome.state
        for change in trace(rows.db, rows.chain, "offers", Offer.row_key(shop="a", item=1)).changes
        for outcome in change.outcomes
    }
    assert waiting == "pending"
    rows.work()
    found = trace(rows.db, rows.chain, "offers", Offer.row_key(shop="a", item=1))
    [run] = found.runs
    assert (run.observer, run.column) == ("typed", "*")
    assert {change.column for change in found.changes} >= {"price", "stock"}


def test_a_new_column_is_compared_from_its_first_value_on(rows: Rows) -> None:
    rows.chain = replace(rows.chain, models={}, tables=TABLES)
    rows.commit(price=3)
    rows.work()
    rows.db.add_column(Coloured, "colour")
    found = []
    for colour in ("red", "blue"):
        with rows.db.transaction() as t:
            t.update("offers", shop="a", item=1, colour=colour)
        found += rows.work()
    assert [one.columns for one in found] == [{"colour"}, {"colour"}]
    assert [(one.before["colour"], one.after["colour"]) for one in found] == [(None, "red"), ("red", "blue")]


def test_a_flush_between_the_two_steps_of_a_rerun_loses_no_run(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.db.set_base("docs", str(tmp_path))
    with rows.db.transaction() as t:
        t.set("docs", "r", "text", b"1")
    rows.work()
    mark = _Rerun._mark

    def flushed(*arguments: Any) -> int:
        flush(rows.db, "docs", tmp_path, observers=["raw"])
        return mark(*arguments)

    monkeypatch.setattr(_Rerun, "_mark", flushed)
    assert rerun(rows.db, rows.chain, "raw").marked == 1
    assert len(rows.work()) == 1


def test_what_changed_and_changed_back_during_a_backup_is_restored(
    rows: Rows, tmp_path: Path, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot of the backup has changes that no run has seen, and they are undone during the backup."""
    with rows.db.transaction() as t:
        t.set("docs", "r", "text", b"1")
    rows.work()
    with rows.db.transaction() as t:
        t.set("docs", "r", "text", b"2")
    made = Marks.__init__

    def undone(*arguments: Any) -> None:
        with rows.db.transaction() as t:
            t.set("docs", "r", "text", b"1")
        assert rows.work() == []
        made(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Marks, "__init__", undone)
        percolator_core.backup(rows.db, str(tmp_path / "backup"))
    percolator_core.restore(str(tmp_path / "backup"), other)
    found = [(change.before, change.after) for change in Rows(other).work()]
    assert found == [({"text": b"1"}, {"text": b"2"})]


def test_a_change_of_the_table_is_no_change_of_the_row(rows: Rows) -> None:
    # The observer gets dicts, because the model does not change with the table.
    rows.chain = replace(rows.chain, models={}, tables=TABLES)
    rows.commit(price=3)
    rows.work()
    rows.db.drop_column("offers", "note")
    with rows.db.transaction() as t:
        t.update("offers", shop="a", item=1, price=4)
    [change] = rows.work()
    assert change.before == {"shop": "a", "item": 1, "price": 3, "stock": 0}
    assert change.columns == {"price"}
