"""What a transaction keeps of what it has read, and how many cells it asks for at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from percolator_core import Database, PercolatorError, SnapshotTooOld, Transaction
from percolator_core.catalog.table_handle import COLUMN_BYTES
from percolator_core.store import Store
from percolator_core.store.packing import parts
from percolator_core.store.request import Exchange
from percolator_core.transaction.cache import CACHE_COLUMN
from percolator_core.transaction.prefetch import Habits
from percolator_core.transaction.scan import first_page
from tests.servers.plain import cache_of
from tests.transaction.phases import X, Y, Z


def put(db: Database, row: bytes, column: str, value: bytes | None) -> None:
    with db.transaction() as t:
        if value is None:
            t.delete("t", row, column)
        else:
            t.set("t", row, column, value)


@pytest.fixture(params=["plain", "prefetching"])
def t(request: pytest.FixtureRequest, db: Database) -> Transaction:
    return db.begin() if request.param == "plain" else Transaction(db.client, habits=Habits())


def test_a_cell_is_read_once(db: Database, t: Transaction) -> None:
    put(db, X, "v", b"old")
    assert t.get("t", X, "v") == b"old"
    assert t.get("t", X, "absent") is None
    put(db, X, "v", b"new")
    put(db, X, "absent", b"new")
    for _ in range(2):
        assert t.get("t", X, "v") == b"old"
        assert t.get("t", X, "absent") is None
        assert t.get_many([("t", X, "v"), ("t", X, "absent")]) == [b"old", None]
        assert t.get_row("t", X, ["v", "absent"]) == {"v": b"old"}
    assert (t.cost.sent, t.cost.requests, t.cost.cached) == (2, 2, 12)
    assert t.cost.operations == 14


@pytest.mark.parametrize("way", ["get", "get_many", "get_row"])
def test_columns_that_are_read_do_not_grow_without_bound(t: Transaction, way: str) -> None:
    cache_of(t).room = 2000
    names = [f"c{number}" for number in range(100)]
    match way:
        case "get":
            found = [t.get("t", X, name) for name in names]
        case "get_many":
            found = t.get_many([("t", X, name) for name in names])
        case _:
            found = list(t.get_row("t", X, names).values()) + [None] * 100
    assert set(found) == {None}
    assert len(cache_of(t)) < 2000 / CACHE_COLUMN
    assert cache_of(t).room >= 0


def test_what_took_the_slow_path_is_kept_too(db: Database, t: Transaction) -> None:
    put(db, X, "v", b"old")
    assert t.start_timestamp
    put(db, X, "v", b"new")
    assert t.get("t", X, "v") == b"old"
    assert t.cost.sent == 2
    assert t.get("t", X, "v") == b"old"
    assert t.cost.sent == 2


def test_a_whole_row_that_was_read_answers_for_its_cells(db: Database, t: Transaction) -> None:
    put(db, X, "v", b"old")
    assert t.get_row("t", X) == {"v": b"old"}
    put(db, X, "v", b"new")
    assert t.get("t", X, "v") == b"old"
    assert t.cost.sent == 0


def test_own_writes_lie_above_what_was_read(db: Database, t: Transaction) -> None:
    for column in ("a", "b"):
        put(db, X, column, b"old")
    assert t.get_row("t", X, ["a", "b"]) == {"a": b"old", "b": b"old"}
    t.set("t", X, "a", b"own")
    t.delete("t", X, "b")
    assert t.get("t", X, "a") == b"own"
    assert t.get("t", X, "b") is None
    assert t.get_many([("t", X, "a"), ("t", X, "b")]) == [b"own", None]
    assert t.get_row("t", X, ["a", "b"]) == t.get_row("t", X) == {"a": b"own"}
    assert list(t.scan("t")) == [(X, {"a": b"own"})]
    t.delete_row("t", X)
    assert t.get("t", X, "a") is None
    assert t.get_row("t", X) == {}
    t.commit()
    assert db.snapshot().get_row("t", X) == {}


def test_a_row_that_was_handed_out_may_be_changed(db: Database, t: Transaction) -> None:
    put(db, X, "v", b"old")
    t.get_row("t", X)["v"] = b"mine"
    t.get_row("t", X, ["v"]).clear()
    assert t.get("t", X, "v") == b"old"


def test_nothing_is_kept_from_one_attempt_to_the_next(db: Database) -> None:
    put(db, X, "v", b"1")
    seen = []

    def add(t: Transaction) -> None:
        value = t.get("t", X, "v")
        seen.append(value)
        if len(seen) == 1:
            put(db, X, "v", b"2")
        t.set("t", X, "v", b"last")

    db.run(add)
    assert seen == [b"1", b"2"]


def test_a_transaction_that_is_over_reads_nothing(t: Transaction) -> None:
    t.get("t", X, "v")
    t.commit()
    with pytest.raises(PercolatorError, match="begin a new one"):
        t.get("t", X, "v")
    with pytest.raises(PercolatorError, match="begin a new one"):
        t.get_many([("t", X, "v")])


def test_the_cache_is_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percolator_core.transaction.transaction.CACHE_BYTES", 1900)
    rows = [b"r%d" % number for number in range(4)]
    for row in rows:
        put(db, row, "v", b"x" * 500)
    one_by_one, by_list = db.begin(), db.begin()
    for row in rows * 2:
        assert one_by_one.get("t", row, "v") == b"x" * 500
        assert by_list.get_many([("t", row, "v")]) == [b"x" * 500]
    for t in (one_by_one, by_list):
        assert (t.cost.sent, t.cost.cached) == (6, 2)


def test_plain_snapshots_keep_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    put(db, X, "v", b"x")
    row = db.catalog.table("t").row_key(X)
    sent: list[Any] = []
    exchange = Store.exchange

    def counted(store: Store, commands: Sequence[Any], *options: Any, **more: Any) -> Exchange:
        sent.extend(commands)
        return exchange(store, commands, *options, **more)

    monkeypatch.setattr(Store, "exchange", counted)
    snapshot = db.snapshot()
    for _ in range(3):
        assert snapshot.get("t", X, "v") == b"x"
    assert sum(b"HMGET" in parts(command) and row in parts(command) for command in sent) == 3


def test_garbage_collection_takes_nothing_away_from_what_was_read(db: Database, t: Transaction) -> None:
    for row in (X, Y):
        put(db, row, "v", b"old")
    assert t.get("t", X, "v") == b"old"
    for row in (X, Y):
        put(db, row, "v", b"new")
    db.collect_garbage(timedelta(0))
    assert t.get("t", X, "v") == b"old"
    with pytest.raises(SnapshotTooOld):
        t.get("t", Y, "v")
    with pytest.raises(SnapshotTooOld):
        t.get_row("t", X)


def test_columns_of_one_row_share_a_command(db: Database, t: Transaction) -> None:
    put(db, X, "a", b"1")
    put(db, Y, "b", b"2")
    asked = [("t", X, "a"), ("t", Y, "b"), ("t", X, "b"), ("t", X, "a")]
    assert t.get_many(asked) == db.snapshot().get_many(asked) == [b"1", b"2", None, b"1"]
    assert (t.cost.operations, t.cost.sent, t.cost.requests) == (4, 2, 1)


def test_many_cells_are_read_in_steps(db: Database, t: Transaction) -> None:
    with db.transaction() as writing:
        for number in range(0, 2600, 2):
            writing.set("t", b"%d" % number, "v", b"%d" % number)
    expected = [None if number % 2 else b"%d" % number for number in range(2600)]
    assert t.get_many(("t", b"%d" % number, "v") for number in range(2600)) == expected
    assert (t.cost.sent, t.cost.requests) == (2600, 4)
    # Of one row, too.
    names = [f"c{number}" for number in range(1200)]
    assert t.get_row("t", X, names) == {}
    assert t.cost.requests == 6


def test_steps_follow_the_size_of_values(
    db: Database, t: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.transaction.cell_reads._FIRST_STEP", 4)
    monkeypatch.setattr("percolator_core.transaction.cell_reads.BYTES_AT_ONCE", 2000)
    with db.transaction() as writing:
        for number in range(10):
            writing.set("t", b"%d" % number, "v", b"x" * 900)
    assert t.get_many(("t", b"%d" % number, "v") for number in range(10)) == [b"x" * 900] * 10
    assert t.cost.requests == 1 + 3


def test_the_first_step_of_a_scan_is_no_larger_than_its_limit_asks(db: Database) -> None:
    assert first_page(None, 16) == 512
    assert first_page(1, 16) == 1
    assert first_page(10, 1) == 10
    assert first_page(10, 16) == 3
    assert first_page(10**6, 16) == 512
    with db.transaction() as t:
        for number in range(300):
            t.set("t", b"%03d" % number, "v", b"x")
    with db.transaction() as t:
        for limit in (1, 10, 100, 299, 300, 301):
            found = [row for row, _ in t.scan("t", limit=limit)]
            assert found == [b"%03d" % number for number in range(min(limit, 300))]
            backward = [row for row, _ in t.scan("t", limit=limit, reverse=True)]
            assert backward == [b"%03d" % number for number in range(299, 299 - min(limit, 300), -1)]
    with db.transaction() as t:
        assert len(list(t.scan("t", limit=10))) == 10
        assert t.cost.scanned < 16 * 10 / 2
        # Own rows, written and deleted, are neither missed nor a reason to fetch everything.
        for number in range(5):
            t.delete_row("t", b"%03d" % number)
        t.set("t", b"000a", "v", b"own")
        scanned = t.cost.scanned
        expected = [b"000a", *(b"%03d" % number for number in range(5, 14))]
        assert [row for row, _ in t.scan("t", limit=10)] == expected
        assert t.cost.scanned - scanned < 16 * 10 / 2


# A transaction that keeps, and brings along, against one that asks the store each time.

rows = st.sampled_from([X, Y, Z])
columns = st.sampled_from(["a", "b", "c"])
cells = st.tuples(rows, columns)
values = st.none() | st.sampled_from([b"", b"1", b"2" * 300])
actions = st.one_of(
    st.tuples(st.just("get"), cells),
    st.tuples(st.just("many"), st.lists(cells, max_size=6)),
    st.tuples(st.just("row"), rows, st.none() | st.lists(columns, max_size=3)),
    st.tuples(st.just("scan"), st.none() | st.lists(columns, min_size=1, max_size=2)),
    st.tuples(st.just("write"), cells, values),
    st.tuples(st.just("other"), cells, values),
    st.tuples(st.just("delete row"), rows),
)


class Reference:
    """The same view, by reads that nothing is kept of."""

    def __init__(self, db: Database, t: Transaction) -> None:
        self.snapshot = db.snapshot(t.start_timestamp)
        self.own: dict[tuple[bytes, str], bytes | None] = {}

    def get(self, row: bytes, column: str) -> bytes | None:
        key = row, column
        return self.own[key] if key in self.own else self.snapshot.get("t", row, column)

    def row(self, row: bytes, wanted: list[str] | None) -> dict[str, bytes]:
        found = {column: self.get(row, column) for column in wanted or ["a", "b", "c"]}
        return {column: value for column, value in found.items() if value is not None}


def check(db: Database, t: Transaction, plan: list[tuple[object, ...]]) -> None:
    reference = Reference(db, t)
    for action in plan:
        match action:
            case "get", (bytes(row), str(column)):
                assert t.get("t", row, column) == reference.get(row, column)
            case "many", list(wanted):
                expected = [reference.get(*cell) for cell in wanted]
                assert t.get_many([("t", *cell) for cell in wanted]) == expected
            case "row", bytes(row), wanted:
                assert wanted is None or isinstance(wanted, list)
                found = t.get_row("t", row, wanted)
                assert found == ({} if wanted == [] else reference.row(row, wanted))
            case "scan", wanted:
                assert wanted is None or isinstance(wanted, list)
                everything = [(row, reference.row(row, wanted)) for row in sorted([X, Y, Z])]
                assert list(t.scan("t", columns=wanted)) == [one for one in everything if one[1]]
            case "write", (bytes(row), str(column)), value:
                assert value is None or isinstance(value, bytes)
                reference.own[row, column] = value
                if value is None:
                    t.delete("t", row, column)
                else:
                    t.set("t", row, column, value)
            case "other", (bytes(row), str(column)), value:
                assert value is None or isinstance(value, bytes)
                put(db, row, column, value)
            case "delete row", bytes(row):
                t.delete_row("t", row)
                reference.own.update({(row, column): None for column in reference.row(row, None)})
            case _:
                raise AssertionError(action)


@settings(
    max_examples=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plans=st.lists(st.lists(actions, max_size=12), min_size=1, max_size=4), tiny=st.booleans())
def test_any_order_of_reads_and_writes(
    db: Database, plans: list[list[tuple[object, ...]]], tiny: bool
) -> None:
    """Runs of one observer, each with what those before have learned; also with hardly any cache."""
    habits = Habits()
    for plan in plans:
        for t in (db.begin(), Transaction(db.client, habits=habits)):
            if tiny:
                cache_of(t).room = 600
            check(db, t, plan)
            t.learn()
            t.rollback()


def test_columns_without_end_are_forgotten(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percolator_core.catalog.table_handle.COLUMNS_BYTES", 10 * COLUMN_BYTES)
    db.create_table("many")
    with db.transaction() as t:
        for number in range(35):
            t.set("many", "row", f"c{number}", b"%d" % number)
            assert t.get("many", "row", f"c{number}") == b"%d" % number
    assert len(db.catalog.table("many").columns) <= 10
    with db.transaction() as t:
        for _ in range(2):
            found = [t.get("many", "row", f"c{number}") for number in range(35)]
            assert found == [b"%d" % number for number in range(35)]


def test_rows_are_told_as_of_the_snapshot(db: Database, t: Transaction) -> None:
    """Whole or not, one by one or in a scan, though they have changed since."""
    with db.transaction() as before:
        before.set("t", "row", "a", b"1")
        before.set("t", "row", "b", b"1")
    assert t.start_timestamp
    past = db.snapshot()
    with db.transaction() as later:
        later.set("t", "row", "a", b"2")
        later.delete("t", "row", "b")
        later.set("t", "row", "c", b"2")
    for reader in (past, t):
        assert reader.get_row("t", "row") == {"a": b"1", "b": b"1"}
        for columns in (None, ["a", "b", "c"]):
            assert list(reader.scan("t", columns=columns)) == [(b"row", {"a": b"1", "b": b"1"})]
        assert reader.get_many([("t", "row", column) for column in "abc"]) == [b"1", b"1", None]
