# ruff: noqa: PT011, PT012
"""Reading and writing: own writes, names and keys of every kind, scans, limits, retries."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import percolator_core as percolator
from percolator_core import Database, Transaction, errors

Connect = Callable[..., Database]


@pytest.fixture
def connect(connect_to_every_kind: Connect) -> Connect:
    return connect_to_every_kind


NASTY = ["{", "}", "{x}", ":", "\0", "*?[]", "\n\r\t", "ünïcödé ☃ 𝄞", "a{b}c:7", " ", "c", "x" * 200, "%7B"]


def test_own_writes(db: Database) -> None:
    with db.transaction() as t:
        t.set("t", "a", "x", b"1")
        t.set("t", "a", "y", b"2")
        t.set("t", "b", "x", b"3")
    t = db.begin()
    t.delete("t", "a", "x")
    t.set("t", "b", "x", b"")
    t.set("t", "c", "x", b"new")
    assert t.get_many([("t", "a", "x"), ("t", "b", "x"), ("t", "c", "x"), ("t", "a", "y")]) == [
        None,
        b"",
        b"new",
        b"2",
    ]
    assert t.get_row("t", "a") == {"y": b"2"}
    assert t.get_row("t", "a", columns=["x"]) == {}
    assert t.get_row("t", "c", columns=["x", "y"]) == {"x": b"new"}
    assert list(t.scan("t")) == [(b"a", {"y": b"2"}), (b"b", {"x": b""}), (b"c", {"x": b"new"})]
    assert list(t.scan("t", limit=2, reverse=True)) == [(b"c", {"x": b"new"}), (b"b", {"x": b""})]
    assert list(t.scan("t", columns=[])) == []
    t.delete_row("t", "a")
    t.delete_row("t", "nobody")
    t.delete("t", "nobody", "x")
    assert t.get_row("t", "a") == {}
    t.commit()
    assert dict(db.snapshot().scan("t")) == {b"b": {"x": b""}, b"c": {"x": b"new"}}


@pytest.mark.parametrize("name", NASTY)
def test_names_of_every_kind(url_of_every_kind: str, db: Database, name: str) -> None:
    with percolator.connect(url_of_every_kind, db.namespace + name[:100]) as other:
        other.create_table(name, tablets=3, notify_only=["ping" + name[:100]])
        assert [table.name for table in other.tables()] == [name]
        with other.transaction() as t:
            t.set(name, name, name, b"v")
            t.notify(name, name, "ping" + name[:100])
        with other.transaction() as t:
            assert t.get(name, name, name) == b"v"
            assert list(t.scan(name)) == [(name.encode(), {name: b"v"})]
        assert len(other.history(name, name, name)) == 1
        other.drop_table(name)
        assert other.tables() == []
        left = other.store.keyspace.prefix.replace(b"}", b":") + b"*"
        for endpoint in other.store.endpoints():
            # What is left says that the table is gone.
            for key in other.store.ask(endpoint, (b"KEYS", left)):
                assert other.store.ask(endpoint, (b"HKEYS", key)) == [b"gone"]
    assert db.tables()[0].name == "t"


def test_names_that_cannot_be(db: Database) -> None:
    t = db.begin()
    for column in ("", "x" * 65_537, "\ud800"):
        with pytest.raises(ValueError):
            t.set("t", "r", column, b"")
    for row in (1, None, bytearray(b"x")):
        with pytest.raises(TypeError):
            t.set("t", row, "c", b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        t.set("t", "r", "c", "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        t.set("t", b"x" * 70_000, "c", b"")
    for table in ("absent", "\0", "\ud800"):
        with pytest.raises(percolator.UnknownTable):
            t.get(table, "r", "c")
    with pytest.raises(percolator.UnknownColumn):
        t.set("t", "r", "ping", b"")
    with pytest.raises(percolator.UnknownColumn):
        t.notify("t", "r", "data")
    for name, tablets in (("", 1), ("x" * 201, 1), ("t2", 0), ("t2", 5000), ("t", 4)):
        with pytest.raises(percolator.ConfigurationError):
            db.create_table(name, tablets)


rows = st.one_of(
    st.binary(max_size=4), st.sampled_from([b"", b"\xff", b"\xff\xff", b"a", b"a\0", b"a\xff", b"b"])
)
bound = st.one_of(st.none(), rows)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(st.data())
def test_scans_against_a_model(  # noqa: C901
    db: Database, data: st.DataObject
) -> None:
    stored = data.draw(
        st.dictionaries(rows, st.dictionaries(st.sampled_from("xyz"), st.binary(max_size=3), min_size=1))
    )
    own = data.draw(
        st.dictionaries(rows, st.dictionaries(st.sampled_from("xyz"), st.none() | st.binary(max_size=3)))
    )
    with db.transaction() as t:
        for row, _ in list(t.scan("t")):
            t.delete_row("t", row)
        for row, cells in stored.items():
            for column, value in cells.items():
                t.set("t", row, column, value)
    t = db.begin()
    view = {row: dict(cells) for row, cells in stored.items()}
    for row, changes in own.items():
        for column, change in changes.items():
            if change is None:
                t.delete("t", row, column)
                view.get(row, {}).pop(column, None)
            else:
                t.set("t", row, column, change)
                view.setdefault(row, {})[column] = change
    for _ in range(3):
        start, stop, prefix = data.draw(bound), data.draw(bound), data.draw(bound)
        columns = data.draw(st.none() | st.lists(st.sampled_from("xyzw"), unique=True))
        limit, reverse = data.draw(st.none() | st.integers(0, 4)), data.draw(st.booleans())
        expected = []
        for row in sorted(view, reverse=reverse):
            cells = {c: v for c, v in view[row].items() if columns is None or c in columns}
            inside = (start is None or row >= start) and (stop is None or row < stop)
            if cells and inside and (prefix is None or row.startswith(prefix)):
                expected.append((row, cells))
        found = list(t.scan("t", start, stop, prefix, columns, limit, reverse))
        assert found == expected[:limit]
    for row in {*view, *stored}:
        assert t.get_row("t", row) == view.get(row, {})


def test_scans_longer_than_a_page(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percolator_core.transaction.scan.PAGE_ROWS", 7)
    monkeypatch.setattr("percolator_core.transaction.scan.PAGE_BYTES", 100)
    with db.transaction() as t:
        for number in range(500):
            t.set("t", b"%03d" % number, "v", b"x" * (number % 90))
    names = [b"%03d" % number for number in range(500)]
    t = db.begin()
    assert [row for row, _ in t.scan("t")] == names
    assert [row for row, _ in t.scan("t", reverse=True)] == names[::-1]
    assert [row for row, _ in t.scan("t", start="1", stop="45", limit=300)] == names[100:400]
    assert [row for row, _ in t.scan("t", prefix="4", reverse=True, limit=50)] == names[:449:-1]
    with db.transaction() as other:
        for name in names:
            other.delete_row("t", name)
    assert [row for row, _ in t.scan("t")] == names
    assert list(db.begin().scan("t")) == []


def test_large_values_rows_and_transactions(db: Database, two_phase: bool) -> None:
    db.client.one_call_a_tablet = two_phase
    big = bytes(range(256)) * 40_960
    with db.transaction() as t:
        t.set("t", "big", "v", big)
        t.set("t", "big", "w", big)
        for number in range(10_000):
            t.set("t", "wide", str(number), b"%d" % number)
    t = db.begin()
    assert t.get_row("t", "big") == {"v": big, "w": big}
    assert t.get_row("t", "wide") == {str(number): b"%d" % number for number in range(10_000)}
    assert len(t.get_row("t", "wide", [str(number) for number in range(9000)])) == 9000
    [(_, cells)] = t.scan("t", prefix="wide", columns=[str(number) for number in range(9000)])
    assert len(cells) == 9000
    with db.transaction() as t:
        for number in range(20_000):
            t.set("t", b"many %d" % number, "v", b"")
    assert sum(1 for _ in db.snapshot().scan("t", prefix="many")) == 20_000
    assert list(db.locks()) == [] or not list(db.snapshot().scan("t", prefix="none"))
    db.drop_table("t")


def test_life_of_a_transaction(db: Database) -> None:
    t = db.begin()
    before = t.commit_timestamp
    assert before is None
    assert t.commit() == t.commit_timestamp
    for use in (
        t.commit,
        lambda: t.get("t", "r", "c"),
        lambda: t.set("t", "r", "c", b""),
        lambda: list(t.scan("t")),
    ):
        with pytest.raises(percolator.PercolatorError, match="committed"):
            use()
    with pytest.raises(percolator.PercolatorError, match="cannot be rolled back"):
        t.rollback()
    t = db.begin()
    t.set("t", "r", "c", b"")
    t.rollback()
    t.rollback()
    with pytest.raises(percolator.PercolatorError, match="discarded"):
        t.commit()
    with pytest.raises(ZeroDivisionError), db.transaction() as t:
        t.set("t", "r", "c", b"")
        raise ZeroDivisionError
    with db.transaction() as t:
        t.set("t", "r", "c", b"")
        t.rollback()
    assert list(db.snapshot().scan("t")) == []
    with pytest.raises(percolator.TransactionConflict), db.transaction() as t:
        t.get("t", "r", "c")
        t.set("t", "r", "c", b"1")
        with db.transaction() as other:
            other.set("t", "r", "c", b"2")
    with pytest.raises(percolator.PercolatorError, match="discarded"):
        t.commit()


def test_after_a_token(connect: Connect, db: Database) -> None:
    with db.transaction() as t:
        t.set("t", "r", "c", b"1")
    token = t.commit_timestamp
    assert token
    later = connect().begin(after=token)
    assert later.get("t", "r", "c") == b"1"
    assert later.start_timestamp > token
    with pytest.raises(percolator.ConfigurationError):
        db.begin(after=token + 10**12).get("t", "r", "c")


def test_snapshots_of_the_past(db: Database) -> None:
    stamps = []
    for value in (b"1", None, b"3"):
        with db.transaction() as t:
            if value is None:
                t.delete("t", "r", "c")
            else:
                t.set("t", "r", "c", value)
        stamps.append(t.commit_timestamp or 0)
    history = db.history("t", "r", "c")
    assert [(version.commit_ts, version.value) for version in history] == list(
        zip(stamps, [b"1", None, b"3"], strict=True)
    )[::-1]
    assert db.history("t", "r", "c", limit=2) == history[:2]
    for at, value in zip(stamps, [b"1", None, b"3"], strict=True):
        snapshot = db.snapshot(at)
        assert snapshot.start_timestamp == at
        assert snapshot.get("t", "r", "c") == value
        assert dict(snapshot.scan("t")) == ({b"r": {"c": value}} if value else {})
    assert db.snapshot(stamps[0] - 1).get("t", "r", "c") is None
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=stamps[0])
    assert db.snapshot(moment).start_timestamp == stamps[0]
    for wrong in (0, -1, 2**53, datetime.now(), datetime.now(UTC) + timedelta(days=1)):  # noqa: DTZ005
        with pytest.raises(ValueError):
            db.snapshot(wrong)
    db.collect_garbage(timedelta(0))
    with pytest.raises(percolator.SnapshotTooOld):
        db.snapshot(stamps[0]).get("t", "r", "c")
    with pytest.raises(percolator.SnapshotTooOld):
        list(db.snapshot(stamps[0]).scan("t"))
    with pytest.raises(percolator.SnapshotTooOld):
        db.snapshot(stamps[0]).get("t", "absent", "c")


def test_run_repeats_the_function(db: Database) -> None:
    seen: list[tuple[int, bytes | None]] = []

    def work(t: Transaction) -> str:
        seen.append((t.start_timestamp, t.get("t", "r", "c")))
        if len(seen) < 3:
            with db.transaction() as other:
                other.set("t", "r", "c", b"%d" % len(seen))
        t.set("t", "r", "c", b"mine")
        return "done"

    assert db.run(work) == "done"
    assert [value for _, value in seen] == [None, b"1", b"2"]
    assert len({start for start, _ in seen}) == 3
    seen.clear()
    with pytest.raises(percolator.TransactionConflict):
        db.run(work, attempts=2)
    with pytest.raises(ValueError):
        db.run(work, attempts=0)
    with pytest.raises(ZeroDivisionError):
        db.run(lambda t: 1 // 0)


def test_errors_can_be_pickled() -> None:
    samples = [
        errors.TransactionConflict("t", b"\xff", "c", "locked"),
        errors.TransactionAborted("t", b"r", "c", "rolled back"),
        errors.CommitUndetermined(7),
        errors.CyclicChain("a cycle", ["a", "b", "a"]),
        errors.StoreUnavailable("gone"),
    ]
    for error in samples:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_closed(connect: Connect, db: Database) -> None:
    other = connect()
    other.close()
    other.close()
    with pytest.raises(percolator.PercolatorError, match="closed"):
        other.timestamp()
