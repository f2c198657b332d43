"""Insert, upsert, update and remove, alone and beside each other; find, select and scan of what they made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import Field

from percolator_core import (
    ConfigurationError,
    Database,
    Hash,
    PrimaryKey,
    RowExists,
    RowNotFound,
    Table,
    Transaction,
    TransactionConflict,
    UnknownColumn,
    col,
)
from percolator_core.layout.records import MAX_ROW, PUT
from percolator_core.schema.predicates import Predicate
from percolator_core.tables import binding
from percolator_core.tables.select import Batch, RowBatch, TabletSelect
from percolator_core.transaction.snapshot import Snapshot
from tests.tables.models import Seat, User, create
from tests.tables.test_arrow import as_arrow

Connect = Callable[[], Database]


class Note(Table, name="notes"):
    """No index, so that what is known of all columns is written without a read."""

    title: PrimaryKey[str]
    text: str | None = None
    stars: int | None = None


STARS: Any = Note.stars


@pytest.fixture
def notes(db: Database) -> Database:
    create(db, Note)
    return db


def note(db: Database, title: str) -> tuple[Any, ...] | None:
    found = db.snapshot().find(Note, title=title)
    return None if found is None else (found.text, found.stars)


def put(db: Database, *rows: Table) -> None:
    with db.transaction() as t:
        for row in rows:
            t.insert(row)


# One after the other.


def test_insert_is_for_new_rows_only(notes: Database) -> None:
    put(notes, Note(title="a", text="one", stars=1))
    with pytest.raises(RowExists, match=r"notes has a row title='a': use update or upsert"):
        put(notes, Note(title="a", text="two"))
    assert note(notes, "a") == ("one", 1)


def test_update_is_for_rows_that_are_there_and_changes_what_was_set(notes: Database) -> None:
    message = r"notes has no row title='a': use insert or upsert"
    with pytest.raises(RowNotFound, match=message), notes.transaction() as t:
        t.update(Note(title="a", text="two"))
    assert note(notes, "a") is None
    put(notes, Note(title="a", text="one", stars=1))
    with notes.transaction() as t:
        t.update(Note(title="a", text=None))
    assert note(notes, "a") == (None, 1)


def test_upsert_adds_with_defaults_or_changes_what_was_set(notes: Database) -> None:
    for row, expected in (
        (Note(title="a", stars=1), (None, 1)),
        (Note(title="a", text="one"), ("one", 1)),
        (Note(title="a", text="two", stars=None), ("two", None)),
        (Note(title="a", stars=3), ("two", 3)),
    ):
        with notes.transaction() as t:
            t.upsert(row)
        assert note(notes, "a") == expected


def test_upsert_of_a_whole_row_reads_nothing_unless_there_is_an_index(db: Database) -> None:
    create(db, Note, User)
    for row, operations in ((Note(title="a", text="", stars=1), 0), (User(name="a"), 3)):
        with db.transaction() as t:
            t.upsert(row if isinstance(row, Note) else User(name="a", city="x", email="y", age=1))
            assert (t.cost.operations > 0) == (operations > 0)


def test_defaults_are_written_where_there_was_no_row(db: Database) -> None:
    create(db, Seat)
    with db.transaction() as t:
        t.upsert(Seat(hall="a", number=1, guest=b"x"))
        t.upsert(Seat(hall="a", number=1, level=3))
    found = db.snapshot().find(Seat, hall="a", number=1)
    assert found == Seat(hall="a", number=1, level=3, guest=b"x", note="")


def test_what_somebody_wrote_past_the_rows_is_gone_when_a_row_is_made(notes: Database) -> None:
    handle = notes.catalog.table("notes")
    with notes.transaction() as t:
        t.put(handle, b"a", handle.columns["text"].encoded, (PUT, b"stray"))
    put(notes, Note(title="a", stars=1))
    assert note(notes, "a") == (None, 1)


def test_remove_tells_whether_there_was_a_row(notes: Database) -> None:
    put(notes, Note(title="a", text="one", stars=1))
    with notes.transaction() as t:
        assert t.remove(Note, title="a")
        assert not t.remove(Note, title="a")
        assert not t.remove(Note, title="b")
    assert note(notes, "a") is None
    with notes.transaction() as t:
        t.upsert(Note(title="a", stars=2))
    assert note(notes, "a") == (None, 2), "nothing of the old row comes back"


def test_a_row_of_nothing_but_nulls_is_there(notes: Database) -> None:
    put(notes, Note(title="a"))
    assert note(notes, "a") == (None, None)
    assert [found.title for found in notes.snapshot().select(Note)] == ["a"]
    with pytest.raises(RowExists):
        put(notes, Note(title="a"))
    assert list(notes.snapshot().scan("notes")) == [], "for raw reads a row is what cells it has"
    with notes.transaction() as t:
        assert t.remove(Note, title="a")
    assert note(notes, "a") is None


def test_a_row_that_was_read_and_changed_writes_what_was_assigned(notes: Database) -> None:
    put(notes, Note(title="a", text="one", stars=1))
    t = notes.begin()
    read = t.find(Note, title="a")
    assert read is not None
    read.stars = 2
    with notes.transaction() as other:
        other.update(Note(title="a", text="theirs"))
    t.update(read)
    t.commit()
    assert note(notes, "a") == ("theirs", 2)


class Basket(Table, name="baskets"):
    number: PrimaryKey[int]
    things: list[str] = Field(default_factory=list)


def test_json_is_written_when_it_is_assigned_not_when_it_is_changed_in_place(db: Database) -> None:
    create(db, Basket)
    put(db, Basket(number=1, things=["cup"]))
    with db.transaction() as t:
        basket = t.find(Basket, number=1)
        assert basket is not None
        basket.things.append("pot")
        t.update(basket)
        assert not t.own_rows("baskets")
    with db.transaction() as t:
        basket.things = [*basket.things, "pan"]
        t.update(basket)
    found = db.snapshot().find(Basket, number=1)
    assert found is not None
    assert found.things == ["cup", "pot", "pan"]


def test_columns_are_compared_as_type_checkers_have_it(notes: Database) -> None:
    """That this needs no ``type: ignore`` is a part of the test."""
    put(notes, Note(title="a", stars=1), Note(title="b", stars=3), Note(title="c"))

    def titles(where: Predicate | bool) -> list[str]:
        return [found.title for found in notes.snapshot().select(Note, where=where)]

    assert titles(col(Note.stars) > 2) == ["b"]
    assert titles(~(col(Note.stars) <= 1) & col(Note.title).startswith("b")) == ["b"]
    assert titles(col(Note.stars).in_([1, None])) == ["a", "c"]
    assert titles(Note.title >= "b") == ["b", "c"]
    assert repr(col(Note.stars)) == repr(Note.stars) == "<column stars>"
    with pytest.raises(TypeError, match="'x' is no column of a model: give one"):
        col(Note(title="x").title)


def test_own_writes_are_seen_by_all_reads(notes: Database) -> None:
    put(notes, *(Note(title=title, text=title, stars=1) for title in "abcd"))
    with notes.transaction() as t:
        t.insert(Note(title="e", stars=7))
        t.remove(Note, title="a")
        t.update(Note(title="b", stars=5))
        t.upsert(Note(title="c"))
        t.insert(Note(title="bb"))
        expected = [("b", "b", 5), ("bb", None, None), ("c", "c", 1), ("d", "d", 1), ("e", None, 7)]
        assert [(one.title, one.text, one.stars) for one in t.select(Note)] == expected
        assert [one["title"] for one in t.select("notes", reverse=True, limit=2)] == ["e", "d"]
        assert [one.title for one in t.select(Note, where=STARS > 1)] == ["b", "e"]
        assert [(one.title, one.text, one.stars) for one in map(t_find(t), "bce")] == [
            expected[0],
            expected[2],
            expected[4],
        ]
        assert t.find(Note, title="a") is None
        assert [row for row, _ in t.scan("notes")] == [b"b", b"c", b"d", b"e"]
        assert t.get("notes", "b", "stars") == t.get_row("notes", "b")["stars"]
        t.remove(Note, title="e")
        t.insert(Note(title="a", text="anew"))
        assert t.find(Note, title="e") is None
        found = t.find(Note, title="a")
        assert found is not None
        assert (found.text, found.stars) == ("anew", None)
    assert [one.title for one in notes.snapshot().select(Note)] == ["a", "b", "bb", "c", "d"]


def t_find(t: Transaction) -> Callable[[str], Any]:
    return lambda title: t.find(Note, title=title)


class Day(Table, name="days", partition=[Hash("number", buckets=1)]):
    number: PrimaryKey[int]
    text: str = ""


def test_rows_written_while_a_select_is_consumed_still_come(db: Database) -> None:
    create(db, Day)
    put(db, *(Day(number=number) for number in range(2500)))
    with db.transaction() as t:
        t.update(Day(number=0, text="own"))
        seen = []
        for one in t.select(Day):
            seen.append(one.number)
            t.update(Day(number=2499 - one.number, text="written"))
    assert seen == list(range(2500)), "they came in several steps"


def test_selects_read_batches_of_columns_as_those_of_cells(
    notes: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(
        notes,
        *(Note(title=f"{number:02}", text="t" * (number % 3), stars=number % 5) for number in range(40)),
    )

    def read(t: Snapshot | Transaction) -> tuple[Any, ...]:
        rows = [list(t.select(Note, where=STARS > 1, reverse=reverse, limit=20)) for reverse in (False, True)]
        table = t.to_arrow(Note, where=STARS > 1, columns=["stars", "title"])
        return rows, table.sort_by("title").to_pylist(), t.to_arrow(Note, columns=["title"]).num_rows

    def as_columns(t: Snapshot, selects: Sequence[TabletSelect]) -> list[RowBatch]:
        found = take_batches(t, selects)
        return [as_arrow(one.layout.columns, one) for one in found if isinstance(one, Batch)]

    def both() -> list[tuple[Any, ...]]:
        found = [read(notes.snapshot())]
        with notes.transaction() as t:
            t.upsert(Note(title="05", stars=0))
            t.upsert(Note(title="new", stars=4))
            found.append(read(t))
            t.rollback()
        return found

    expected = both()
    take_batches = Snapshot.take_batches
    monkeypatch.setattr(Snapshot, "take_batches", as_columns)
    assert both() == expected
    assert len(expected[0][1]) == 24
    assert expected[0] != expected[1]


def test_composite_keys_come_in_the_order_of_their_values(db: Database) -> None:
    create(db, Seat)
    halls = ["", "\0", "\0\1", "\0\xff", "a", "a\0", "a\0\0", "a\0b", "a\1", "ab", "ä", "\U0001f600"]
    numbers = [-(2**63), -300, -1, 0, 1, 255, 256, 2**63 - 1]
    pairs = list(itertools.product(halls, numbers))
    put(db, *(Seat(hall=hall, number=number, note=f"{number}") for hall, number in reversed(pairs)))
    seats = db.snapshot().select(Seat)
    assert [(seat.hall, seat.number, seat.note) for seat in seats] == [
        (*pair, f"{pair[1]}") for pair in pairs
    ]
    some = db.snapshot().select(Seat, where=(Seat.hall == "a\0") & (Seat.number < 0), reverse=True)
    assert [(seat.hall, seat.number) for seat in some] == [("a\0", -1), ("a\0", -300), ("a\0", -(2**63))]
    with db.transaction() as t:
        assert t.remove(Seat, hall="a\0", number=-1)
    assert db.snapshot().find(Seat, hall="a\0", number=-1) is None
    assert db.snapshot().find(Seat, hall="a", number=-1) is not None


# Side by side.


def beside(
    db: Database, first: Callable[[Transaction], object], then: Callable[[Transaction], object]
) -> bool:
    """Return True if two transactions with the same snapshot conflict."""
    one, other = db.begin(), db.begin()
    one.start_timestamp, other.start_timestamp  # noqa: B018 - both begin here
    first(one)
    then(other)
    one.commit()
    try:
        other.commit()
    except TransactionConflict:
        return True
    return False


INSERT = Note(title="a", stars=1)
DEEDS: dict[str, Callable[[Transaction], object]] = {
    "insert": lambda t: t.insert(INSERT),
    "upsert a part": lambda t: t.upsert(Note(title="a", stars=2)),
    "upsert all": lambda t: t.upsert(Note(title="a", text="x", stars=3)),
    "update stars": lambda t: t.update(Note(title="a", stars=4)),
    "update text": lambda t: t.update(Note(title="a", text="y")),
    "remove": lambda t: t.remove(Note, title="a"),
}


@pytest.mark.parametrize(
    ("is_there", "one", "other", "conflict"),
    [
        (False, "insert", "insert", True),
        (False, "insert", "upsert a part", True),
        (False, "upsert a part", "upsert a part", True),
        (False, "upsert all", "insert", True),
        (True, "update stars", "update stars", True),
        (True, "update stars", "update text", False),
        (True, "upsert a part", "update text", False),
        (True, "remove", "update stars", True),
        (True, "update text", "remove", True),
        (True, "remove", "remove", True),
        (True, "remove", "upsert a part", True),
        (True, "remove", "upsert all", True),
    ],
)
def test_who_conflicts_with_whom(
    notes: Database, is_there: bool, one: str, other: str, conflict: bool
) -> None:
    if is_there:
        put(notes, INSERT)
    assert beside(notes, DEEDS[one], DEEDS[other]) is conflict


def test_a_removed_row_that_is_inserted_by_others_conflicts(notes: Database) -> None:
    put(notes, INSERT)

    def anew(t: Transaction) -> None:
        t.remove(Note, title="a")
        t.insert(Note(title="a", text="mine"))

    assert beside(notes, DEEDS["remove"], anew)
    assert note(notes, "a") is None


def test_an_insert_and_a_remove_of_no_row_do_not_conflict(notes: Database) -> None:
    assert not beside(notes, DEEDS["insert"], DEEDS["remove"])
    assert note(notes, "a") == (None, 1)


# Raw reads and writes.


def test_raw_writes_are_refused_and_raw_reads_give_encoded_cells(notes: Database) -> None:
    put(notes, Note(title="a", text="one"))
    with notes.transaction() as t:
        refused: list[Callable[[], object]] = [
            lambda: t.set("notes", "a", "text", b"x"),
            lambda: t.delete("notes", "a", "text"),
            lambda: t.delete_row("notes", "a"),
        ]
        for write in refused:
            with pytest.raises(ConfigurationError, match="typed table: use insert, upsert, update"):
                write()
        assert t.get("notes", "a", "text") == b"one"
        assert t.get("notes", "a", "stars") is None
        assert t.get_row("notes", "a") == {"text": b"one"}
        assert t.get_many([("notes", "a", "text"), ("notes", "b", "text")]) == [b"one", None]
        assert list(t.scan("notes")) == [(b"a", {"text": b"one"})]
        with pytest.raises(UnknownColumn, match=r"notes.title is part of the key"):
            t.get("notes", "a", "title")
        with pytest.raises(UnknownColumn, match="has no column 'txt': it has text, stars"):
            t.get("notes", "a", "txt")
    assert [version.value for version in notes.history("notes", "a", "text")] == [b"one"]


def test_typed_calls_of_a_raw_table_are_refused(db: Database) -> None:
    db.create_table("raw")
    with pytest.raises(ConfigurationError, match="raw is a raw table: use get, scan, set and delete"):
        db.snapshot().find("raw", row="a")
    with pytest.raises(ConfigurationError, match="raw is a raw table"):
        db.snapshot().select("raw")


# What is refused, and what it says.


def test_a_key_is_given_whole_and_by_its_names(db: Database) -> None:
    create(db, Seat)
    t = db.snapshot()
    with pytest.raises(ConfigurationError, match="seats: number is missing: the key is hall, number"):
        t.find(Seat, hall="a")
    with pytest.raises(UnknownColumn, match="seats: 'note' is no column of the key: the key is hall, number"):
        t.find(Seat, hall="a", number=1, note="x")
    with pytest.raises(UnknownColumn, match="seats: 'x' is no column of the table: the key is hall, number"):
        t.find(Seat, hall="a", number=1, x="x")
    with pytest.raises(TypeError, match="number: '1' is no int"):
        t.find(Seat, hall="a", number="1")


def test_a_value_that_does_not_fit_is_named_with_its_row_and_nothing_is_written(db: Database) -> None:
    create(db, Seat)
    with db.transaction() as t:
        cases: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"level": 2**63}, ValueError, r"seats, row hall='a', number=1: level: .* does not fit into 64"),
            ({"level": None}, ValueError, r"seats, row hall='a', number=1: level: the value cannot be null"),
            ({"note": 7}, TypeError, r"seats, row hall='a', number=1: note: 7 is no str"),
            ({"note": "\ud800"}, ValueError, r"seats, row hall='a', number=1: note: .* UTF-8"),
        ]
        for values, error, message in cases:
            for write in (t.insert, t.upsert, t.update):
                every: dict[str, Any] = {"hall": "a", "number": 1, "level": 0, "note": ""}
                row = Seat.model_construct(None, **every | values)
                with pytest.raises(error, match=message):
                    write(row)
        assert t.find(Seat, hall="a", number=1) is None
        assert not t.own_rows("seats")
    assert list(db.snapshot().select("seats")) == []


def test_keys_that_are_too_long(db: Database) -> None:
    create(db, Note)
    with pytest.raises(
        ValueError, match=f"a row key has at most {MAX_ROW} bytes, this one has {MAX_ROW + 1}"
    ):
        put(db, Note(title="x" * (MAX_ROW + 1)))
    put(db, Note(title="x" * MAX_ROW))
    assert db.snapshot().find(Note, title="x" * MAX_ROW) is not None
    with pytest.raises(ValueError, match=f"notes, row title='xx.*…: a row key has at most {MAX_ROW} bytes"):
        db.begin().upsert(Note(title="x" * (MAX_ROW + 1)))


def test_values_that_are_too_large(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    create(db, Note)
    monkeypatch.setattr(binding, "MAX_VALUE", 10)
    with pytest.raises(
        ValueError, match="notes, row title='a': text: the value has 11 bytes, at most 10 are allowed"
    ):
        put(db, Note(title="a", text="x" * 11))
    put(db, Note(title="a", text="x" * 10))


def test_what_is_no_row_or_table(notes: Database) -> None:
    with notes.transaction() as t:
        with pytest.raises(TypeError):
            t.insert({"title": "a"})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="is no table"):
            t.find(dict, title="a")  # type: ignore[type-var]
        with pytest.raises(TypeError, match="limit is int, not str"):
            t.select(Note, limit="1")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="limit is 0 or more, not -1"):
            t.select(Note, limit=-1)
