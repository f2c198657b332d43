"""Which observers run, how often, and what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Cell, TableDefinition, Worker
from percolator_core.admin.quarantine import Quarantine
from tests.chains import TABLES, chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from percolator_core import Chain, Database, Transaction


def drain(db: Database, chain: Chain, **settings: Any) -> Worker:
    worker = Worker(db, chain, **settings)
    worker.run_until_idle(PATIENCE)
    assert not sum(dirty_of(db, chain).backlog().values())
    return worker


def test_a_strong_observer_is_told_the_cell_and_the_time_of_its_change(db: Database) -> None:
    seen: list[Cell] = []
    chain = chain_of(watch("look", lambda t, cell: seen.append(cell), "docs.text"))
    chain.create_tables(db)
    at = put(db, "a", b"1")
    counts = drain(db, chain).counts
    assert seen == [Cell("docs", b"a", "text", at)]
    assert counts.ran == 1
    drain(db, chain)
    assert len(seen) == 1


def test_a_weak_observer_is_told_the_time_of_the_mark(db: Database) -> None:
    seen: list[tuple[Cell, int]] = []
    observer = watch("add", lambda t, cell: seen.append((cell, t.start_timestamp)), "sums.dirty", mode="weak")
    chain = chain_of(observer)
    chain.create_tables(db)
    before = db.timestamp()
    with db.transaction() as t:
        t.set("docs", "a", "text", b"1")
        t.notify("sums", "all", "dirty")
    drain(db, chain)
    [(cell, start_ts)] = seen
    assert (cell.table, cell.row, cell.column) == ("sums", b"all", "dirty")
    assert before - 1 <= cell.timestamp < start_ts


def test_a_notification_alone_wakes_and_a_discarded_one_does_not(db: Database) -> None:
    seen: list[bytes] = []
    chain = chain_of(watch("add", lambda t, cell: seen.append(cell.row), "sums.dirty", mode="weak"))
    chain.create_tables(db)
    with db.transaction() as t:
        t.notify("sums", "yes", "dirty")
    discarded = db.begin()
    discarded.notify("sums", "no", "dirty")
    discarded.rollback()
    drain(db, chain)
    assert seen == [b"yes"]


@pytest.mark.parametrize("one_call_a_tablet", [False, True])
def test_a_chain_of_three_ends_in_a_sum(db: Database, one_call_a_tablet: bool) -> None:
    db.client.one_call_a_tablet = one_call_a_tablet

    def split(t: Transaction, cell: Cell) -> None:
        t.set("docs", cell.row, "words", str(len((t.get("docs", cell.row, "text") or b"").split())).encode())

    def count(t: Transaction, cell: Cell) -> None:
        t.set("sums", cell.row, "count", t.get("docs", cell.row, "words") or b"0")
        t.notify("sums", "all", "dirty")

    def add(t: Transaction, cell: Cell) -> None:
        total = sum(int(cells["count"]) for _, cells in t.scan("sums", columns=["count"]))
        t.set("sums", cell.row, "total", str(total).encode())

    chain = chain_of(
        watch("split", split, "docs.text", writes=("docs.words",)),
        watch("count", count, "docs.words", writes=("sums.count", "sums.dirty")),
        watch("add", add, "sums.dirty", mode="weak", writes=("sums.total",)),
    )
    chain.create_tables(db)
    for number in range(60):
        put(db, f"d{number}", b"w " * number)
    counts = drain(db, chain).counts
    assert db.snapshot().get("sums", "all", "total") == str(sum(range(60))).encode()
    assert [counts.observers[name].ran for name in ("split", "count")] == [60, 60]
    assert 1 <= counts.observers["add"].ran <= 60


def test_one_observer_of_several_columns_and_two_of_one(db: Database) -> None:
    seen: list[tuple[str, str]] = []

    def noting(name: str) -> Any:
        return lambda t, cell: seen.append((name, cell.column))

    chain = chain_of(
        watch("both", noting("both"), "docs.text", "docs.title"), watch("text", noting("text"), "docs.text")
    )
    chain.create_tables(db)
    with db.transaction() as t:
        t.set("docs", "a", "text", b"1")
        t.set("docs", "a", "title", b"1")
    drain(db, chain)
    assert sorted(seen) == [("both", "text"), ("both", "title"), ("text", "text")]
    put(db, "a", b"2", column="title")
    drain(db, chain)
    assert seen[3:] == [("both", "title")]


def test_messages_collapse_and_the_last_run_sees_the_last_write(db: Database) -> None:
    seen: list[bytes | None] = []

    def look(t: Transaction, cell: Cell) -> None:
        seen.append(t.get("docs", cell.row, "text"))
        if len(seen) < 4:
            put(db, "a", b"%d" % (10 + len(seen)))  # races this run

    chain = chain_of(watch("look", look, "docs.text"))
    chain.create_tables(db)
    for number in range(5):
        put(db, "a", b"%d" % number)
    drain(db, chain)
    assert seen == [b"4", b"11", b"12", b"13"]


def test_deletions_are_observed_and_an_early_read_of_none_too(db: Database) -> None:
    seen: list[bytes | None] = []
    chain = chain_of(watch("look", lambda t, cell: seen.append(t.get("docs", cell.row, "text")), "docs.text"))
    chain.create_tables(db)
    put(db, "a", b"1")
    drain(db, chain)
    with db.transaction() as t:
        t.delete("docs", "a", "text")
    drain(db, chain)
    assert seen == [b"1", None]


@pytest.mark.parametrize("one_call_a_tablet", [False, True])
def test_feedback_runs_to_its_fixpoint(db: Database, one_call_a_tablet: bool) -> None:
    db.client.one_call_a_tablet = one_call_a_tablet

    def halve(t: Transaction, cell: Cell) -> None:
        number = int(t.get("docs", cell.row, "text") or b"0")
        if number > 1:
            t.set("docs", cell.row, "text", b"%d" % (number // 2))
            t.set("sums", cell.row, "last", b"%d" % number)

    chain = chain_of(watch("halve", halve, "docs.text", writes=("docs.text",), feedback=True))
    chain.create_tables(db)
    for number in range(20):
        put(db, f"r{number}", b"1000")
    counts = drain(db, chain).counts
    assert {cells["text"] for _, cells in db.snapshot().scan("docs")} == {b"1"}
    assert counts.ran == 20 * 10


def test_rows_and_columns_of_any_bytes(db: Database) -> None:
    column = "a.b:c{d}*\N{SNOWMAN} ,\n"
    rows = [b"", b"\0", b"{x}", b"*?[a]", b"\xff\xfe", "ü\n".encode(), b"a,b:c", bytes(range(256))]
    seen: list[tuple[bytes, str]] = []
    plain = "a.b:c{d}*\N{SNOWMAN} ,"
    chain = chain_of(
        watch(
            "look", lambda t, cell: seen.append((cell.row, cell.column)), f"docs.{column}", f"docs.{plain}"
        ),
        watch("fails", lambda t, cell: 1 / 0, f"docs.{column}"),
    )
    chain.create_tables(db)
    for row in rows:
        put(db, row, b"1", column=column)
        put(db, row, b"1", column=plain)
    drain(db, chain)
    assert sorted(seen) == sorted((row, name) for row in rows for name in (column, plain))
    quarantine = Quarantine(db, chain)
    assert {(cell.row, cell.column) for cell in quarantine.cells()} == {(row, column) for row in rows}
    assert quarantine.retry(list(quarantine.cells())[:3]) == 3
    assert quarantine.retry() == len(rows) - 3


def test_an_empty_chain_of_work_returns_at_once(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    counts = drain(db, chain).counts
    assert counts.ran == 0
    assert counts.seconds < 5


def test_new_observers_get_later_writes_and_retired_ones_lose_their_marks(db: Database) -> None:
    seen: list[tuple[str, bytes]] = []

    def noting(name: str) -> Any:
        return lambda t, cell: seen.append((name, cell.row))

    old = chain_of(watch("old", noting("old"), "docs.text"), watch("moves", noting("moves"), "docs.text"))
    new = chain_of(watch("new", noting("new"), "docs.text"), watch("moves", noting("moves"), "docs.title"))
    old.create_tables(db)
    put(db, "before", b"1")
    new.create_tables(db)
    put(db, "after", b"1")
    put(db, "after", b"1", column="title")
    drain(db, new)
    assert sorted(seen) == [("moves", b"after"), ("new", b"after")]
    assert not any(dirty_of(db, old).backlog().values())


def test_marks_vanish_where_an_observer_no_longer_watches_the_table(db: Database) -> None:
    old = chain_of(watch("moves", lambda t, cell: None, "docs.text"))
    old.create_tables(db)
    put(db, "a", b"1")
    chain_of(watch("moves", lambda t, cell: None, "sums.text")).create_tables(db)
    assert dirty_of(db, old).backlog() == {"moves": 0}


def test_a_hot_cell_is_counted_right(db: Database) -> None:
    """Every run writes the same total: they conflict, and each is repeated until it is counted."""

    def count(t: Transaction, cell: Cell) -> None:
        for row in (cell.row, b"total"):
            t.set("sums", row, "n", b"%d" % (int(t.get("sums", row, "n") or b"0") + 1))

    chain = chain_of(watch("count", count, "docs.text"))
    chain.create_tables(db)
    for number in range(150):
        put(db, f"d{number}", b"1")
    counts = drain(db, chain).counts
    assert counts.ran == 150
    assert db.snapshot().get("sums", "total", "n") == b"150"


def test_many_tablets_one_of_them_full(db: Database) -> None:
    """20 000 dirty cells in one tablet do not keep another tablet's few from running."""
    order: list[str] = []
    tables = (TableDefinition("docs", 1), TableDefinition("others", 1), *TABLES[1:])
    chain = chain_of(
        watch("full", lambda t, cell: order.append("full"), "docs.text"),
        watch("few", lambda t, cell: order.append("few"), "others.text"),
        tables=tables,
    )
    chain.create_tables(db)
    for start in range(0, 20_000, 2_000):
        with db.transaction() as t:
            for number in range(start, start + 2_000):
                t.set("docs", f"{number}", "text", b"")
    for number in range(5):
        put(db, f"{number}", b"1", table="others")
    worker = Worker(db, chain)

    def stop(t: Transaction, cell: Cell) -> None:
        order.append("few")
        if order.count("few") == 5:
            worker.stop()

    chain = chain_of(chain.observers["full"], watch("few", stop, "others.text"), tables=tables)
    worker = Worker(db, chain)
    worker.run()
    assert order.count("few") == 5
    assert order.count("full") < 3_000
