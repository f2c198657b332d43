"""Secondary indexes: they agree with the data in every snapshot, keep values unique, and serve selects."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from percolator_core import (
    ConfigurationError,
    Database,
    PercolatorError,
    PrimaryKey,
    RowExists,
    RowNotFound,
    Snapshot,
    Table,
    Transaction,
    TransactionConflict,
    Unique,
)
from percolator_core.admin.diff import changes
from percolator_core.layout.records import DELETE, MAX_ROW, PUT
from percolator_core.schema.definitions import Column, HashRule, IndexRule, TableDefinition, index_definition
from percolator_core.schema.predicates import ColumnExpression, Predicate
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables import arrow, lookup, operations, rows, verify
from percolator_core.tables.indexes import Index, indexes_of
from percolator_core.tables.model import definition_of
from percolator_core.tables.verify import IndexDifference, check_indexes, rebuild_indexes
from tests.flushing import flush
from tests.servers.plain import some_namespace
from tests.tables.models import Seat, User, create

Connect = Callable[[], Database]

USER: Any = User


@pytest.fixture
def users(db: Database) -> Database:
    create(db, User)
    return db


def put(db: Database, *rows: Table) -> None:
    with db.transaction() as t:
        for row in rows:
            t.insert(row)


def entries(t: Snapshot, index: str) -> list[tuple[Any, ...]]:
    return [tuple(entry.values()) for entry in t.select(index)]


def cities(db: Database) -> list[tuple[Any, ...]]:
    return entries(db.snapshot(), "users(city)")


def emails(db: Database) -> list[tuple[Any, ...]]:
    return entries(db.snapshot(), "users(email)")


def agree(db: Database, *models: type[Table] | str) -> bool:
    return all(check_indexes(db.snapshot(), model) == [] for model in models)


# What an index is.


def test_a_plain_index_is_hashed_by_the_value_and_sorted_by_value_and_row() -> None:
    definition = definition_of(Seat)
    assert index_definition(definition, definition.indexes[0]) == TableDefinition(
        "seats(level)",
        3,
        columns=(Column("level", "int"), Column("hall", "str"), Column("number", "int")),
        key=("level", "hall", "number"),
        hashes=(HashRule(("level",), 3),),
        index_of="seats",
    )


def test_a_unique_index_has_the_row_beside_the_value() -> None:
    definition = definition_of(User)
    assert index_definition(definition, definition.indexes[1]) == TableDefinition(
        "users(email)",
        4,
        columns=(Column("email", "str"), Column("row", "bytes")),
        key=("email",),
        hashes=(HashRule(("email",), 4),),
        index_of="users",
    )


def test_columns_of_an_index_are_called_as_in_the_store() -> None:
    definition = TableDefinition(
        "t",
        columns=(Column("id", "str", stored="row"), Column("town", "str", True, stored="city")),
        key=("id",),
        indexes=(IndexRule("town", True, "t(city)"),),
    )
    assert index_definition(definition, definition.indexes[0]).columns[0].name == "city"
    swapped = definition.with_(columns=(Column("id", "str"), Column("a", "str", stored="row")))
    assert index_definition(swapped, IndexRule("a", True, "x")).columns == (
        Column("row", "str"),
        Column("row_", "bytes"),
    )


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("id", "the key already has this column"),
        ("tags", "the column is json, which has no order"),
        ("x", "there is no such column"),
    ],
)
def test_what_cannot_be_indexed(column: str, message: str) -> None:
    definition = TableDefinition("t", columns=(Column("id", "str"), Column("tags", "json")), key=("id",))
    with pytest.raises(ConfigurationError, match=rf"table 't', index of '{column}': {message}"):
        index_definition(definition, IndexRule(column, False, "x"))


values = st.lists(st.sampled_from([b"\0", b"\1", b"\2", b"a", b"\xff"]), max_size=4).map(b"".join)
SEATS = definition_of(Seat)
BY_GUEST = Index(SEATS, SEATS.indexes[1])
CODEC = KeyCodec(SEATS)


@given(st.lists(st.tuples(values, st.text("\0\1ab", max_size=3), st.integers(-2, 2)), min_size=2, max_size=2))
def test_entries_are_injective_and_sort_by_value_then_row(some: list[tuple[bytes, str, int]]) -> None:
    one, other = ((value, CODEC.encode(key)) for value, *key in some)
    assert BY_GUEST.split(BY_GUEST.entry(*one)) == one
    assert (BY_GUEST.entry(*one) < BY_GUEST.entry(*other)) == (one < other)


def test_an_entry_is_the_key_of_the_index_s_own_table() -> None:
    codec = KeyCodec(index_definition(SEATS, SEATS.indexes[1]))
    row = CODEC.encode(("a\0b", -3))
    assert codec.decode(BY_GUEST.entry(b"x\0", row)) == (b"x\0", "a\0b", -3)


# Kept in the transaction.


def test_entries_follow_what_is_written(users: Database) -> None:
    put(
        users, User(name="ada", city="London", email="a@x"), User(name="bob"), User(name="eve", city="London")
    )
    assert cities(users) == [("London", "ada"), ("London", "eve")]
    assert emails(users) == [("a@x", b"ada")]
    before = users.snapshot()
    with users.transaction() as t:
        t.update(User(name="ada", city="Paris"))
        t.upsert(User(name="bob", email="b@x"))
        t.remove(User, name="eve")
        t.upsert(User(name="kim", city="Rome", email="k@x", age=None))
    assert cities(users) == [("Paris", "ada"), ("Rome", "kim")]
    assert emails(users) == [("a@x", b"ada"), ("b@x", b"bob"), ("k@x", b"kim")]
    with users.transaction() as t:
        t.upsert(User(name="ada", city=None, email="z@x", age=1))
        t.update(User(name="kim", age=3))
        t.remove(User, name="bob")
    assert cities(users) == [("Rome", "kim")]
    assert emails(users) == [("k@x", b"kim"), ("z@x", b"ada")]
    assert agree(users, User)
    assert entries(before, "users(city)") == [("London", "ada"), ("London", "eve")]
    assert check_indexes(before, User) == []


def test_a_transaction_that_changes_its_mind(users: Database) -> None:
    with users.transaction() as t:
        t.insert(User(name="ada", city="London", email="a@x"))
        t.update(User(name="ada", city="Paris"))
        t.remove(User, name="ada")
        t.upsert(User(name="ada", city="Rome", email="b@x", age=1))
        t.upsert(User(name="ada", city="London", email="a@x"))
        t.insert(User(name="bob", email="b@x"))
    assert (cities(users), emails(users)) == ([("London", "ada")], [("a@x", b"ada"), ("b@x", b"bob")])
    assert agree(users, User)


def test_a_value_that_stays_is_not_written_to_the_index(users: Database) -> None:
    put(users, User(name="ada", city="London", email="a@x"))
    with users.transaction() as t:
        t.upsert(User(name="ada", city="London", email="a@x", age=1))
        assert not t.own_rows("users(city)")
        assert not t.own_rows("users(email)")
    assert agree(users, User)


def test_what_is_refused_leaves_nothing_behind(users: Database) -> None:
    put(users, User(name="ada", email="a@x"), User(name="bob", city="Rome"))
    with users.transaction() as t:
        for write in (t.insert, t.upsert):
            with pytest.raises(RowExists):
                write(User(name="eve", city="Paris", email="a@x"))
        with pytest.raises(RowExists):
            t.update(User(name="bob", city="Paris", email="a@x"))
        with pytest.raises(
            ValueError, match=r"users, row name='bob': city: the value and the row's key toget"
        ):
            t.update(User(name="bob", city="x" * MAX_ROW, age=7))
        assert not t.own_rows("users")
        assert not t.own_rows("users(city)")
    assert cities(users) == [("Rome", "bob")]


def test_an_index_is_written_through_its_table_only(users: Database) -> None:
    put(users, User(name="ada", city="London"))
    with users.transaction() as t:
        with pytest.raises(ConfigurationError, match=r"users\(city\) is an index of users: write to users"):
            t.remove("users(city)", city="London", name="ada")
        with pytest.raises(ConfigurationError, match=r"users\(email\) is an index of users: write to users"):
            t.upsert("users(email)", email="x", row=b"ada")
    assert agree(users, User)


def test_what_many_writes_need_is_read_at_once(users: Database) -> None:
    handle = users.catalog.table("users")
    email = handle.definition.by_name["email"].name
    put(users, User(name="005", city="Oslo", email="other"))
    with users.transaction() as t:
        names = [f"{number:03}" for number in range(100)]
        rows.prefetch(t, handle, [(name.encode(), {email: name.encode()}) for name in names], whole=True)
        for name in names:
            t.upsert(User(name=name, city="Rome", email=name))
        assert t.cost.round_trips == 1
    assert cities(users) == [("Rome", name) for name in names]
    assert agree(users, User)


# Unique.


def test_a_value_of_another_row_is_refused_by_name(users: Database) -> None:
    put(users, User(name="ada", email="a@x"), User(name="bob", email="b@x"))
    message = "users already has a row with email='a@x', name='ada': email is unique"
    with users.transaction() as t:
        for write, row in (
            (t.insert, User(name="eve", email="a@x")),
            (t.upsert, User(name="eve", email="a@x")),
            (t.upsert, User(name="bob", city=None, email="a@x", age=None)),
            (t.update, User(name="bob", email="a@x")),
        ):
            with pytest.raises(RowExists) as error:
                write(row)
            assert str(error.value) == message
        t.update(User(name="ada", email="a@x"))
        t.insert(User(name="eve", email=None))
        t.insert(User(name="kim", email=None))
    assert agree(users, User)


def test_two_who_take_one_value_conflict(users: Database) -> None:
    for one, other in (("insert", "insert"), ("upsert", "insert"), ("insert", "upsert")):
        first, second = users.begin(), users.begin()
        getattr(first, one)(User(name=f"{one} {other} 1", email=f"{one} {other}"))
        getattr(second, other)(User(name=f"{one} {other} 2", email=f"{one} {other}"))
        first.commit()
        with pytest.raises(TransactionConflict) as conflict:
            second.commit()
        assert conflict.value.table == "users(email)"
    assert agree(users, User)


def test_a_value_that_is_given_up_may_be_taken(users: Database) -> None:
    put(users, User(name="ada", email="a@x"))
    giver, taker = users.begin(), users.begin()
    giver.update(User(name="ada", email="b@x"))
    with pytest.raises(RowExists):
        taker.insert(User(name="bob", email="a@x"))
    taker.rollback()
    giver.commit()
    put(users, User(name="bob", email="a@x"))
    assert emails(users) == [("a@x", b"bob"), ("b@x", b"ada")]
    assert agree(users, User)


def test_two_rows_swap_their_values_by_way_of_null(users: Database) -> None:
    put(users, User(name="ada", email="a@x"), User(name="bob", email="b@x"))
    with users.transaction() as t:
        with pytest.raises(RowExists):
            t.update(User(name="ada", email="b@x"))
        t.update(User(name="ada", email=None))
        t.update(User(name="bob", email="a@x"))
        t.update(User(name="ada", email="b@x"))
    assert emails(users) == [("a@x", b"bob"), ("b@x", b"ada")]
    assert agree(users, User)


def test_a_value_is_unique_however_many_want_it(connect: Connect) -> None:
    """Eight threads give each of a few values to rows of their own; each value ends with one row."""
    db = connect()
    create(db, User)
    taken = list("abcdef")

    def claim(thread: int) -> list[str]:
        won: list[str] = []
        for value in random.Random(thread).sample(taken, len(taken)):
            try:
                row = User(name=f"{thread}{value}", email=value)
                db.run(methodcaller("insert", row), attempts=50)
            except RowExists:
                continue
            won.append(value)
        return won

    with ThreadPoolExecutor(8) as pool:
        winners = list(pool.map(claim, range(8)))
    assert sorted(value for won in winners for value in won) == taken
    assert len(list(db.snapshot().select(User))) == len(taken)
    assert agree(db, User)


# Index and data agree.


def some_deed(some: random.Random) -> Callable[[Transaction], None]:
    """Removes, upserts with and without a unique value, of a few of a few rows."""
    names = some.sample([f"{number:02}" for number in range(12)], 3)
    city, email = some.choice(["Rome", "Paris", "Par", "", None]), f"{some.randrange(15)}"
    kind = some.choice(["remove", "city", "all"])

    def deed(t: Transaction) -> None:
        for name in names:
            if kind == "remove":
                t.remove(User, name=name)
            elif kind == "city":
                t.upsert(User(name=name, city=city))
            elif not list(t.select(User, where=USER.email == email)):
                t.upsert(User(name=name, city=city, email=email, age=1))

    return deed


def test_index_and_data_agree_in_every_snapshot_among_writers_that_conflict(connect: Connect) -> None:
    db = connect()
    db.client.one_call_a_tablet = True  # so that there are locks to run into
    create(db, User)
    stop = threading.Event()
    runs: list[int] = []

    def write(seed: int) -> None:
        some = random.Random(seed)
        for _ in range(40):
            deed = some_deed(some)

            def counted(t: Transaction, deed: Callable[[Transaction], None] = deed) -> None:
                runs.append(seed)
                deed(t)

            db.run(counted, attempts=100)

    def look() -> int:
        looked = 0
        while not stop.is_set():
            assert check_indexes(db.snapshot(), User) == []
            looked += 1
        return looked

    with ThreadPoolExecutor(5) as pool:
        looking = pool.submit(look)
        try:
            list(pool.map(write, range(4)))
        finally:
            stop.set()
        assert looking.result() > 0
    assert len(runs) > 160, "nobody met anybody"
    assert agree(db, User)


def test_the_check_finds_what_is_missing_and_what_is_stray(users: Database) -> None:
    put(users, *(User(name=name, city="Rome", email=f"{name}@x") for name in "ab"))
    cities_, emails_ = (users.catalog.table(f"users({column})") for column in ("city", "email"))
    with users.transaction() as t:
        for write, entry in (((DELETE, b""), b"Rome\0\1a"), ((PUT, b""), b"Oslo\0\1b")):
            t.put(cities_, entry, cities_.marker.encoded, write)
        t.put(emails_, b"a@x", emails_.columns["row"].encoded, (PUT, b"b"))
    found = check_indexes(users.snapshot(), User)
    assert sorted(found, key=str) == sorted(
        [
            IndexDifference("users(city)", b"a", b"Rome", missing=True),
            IndexDifference("users(city)", b"b", b"Oslo", missing=False),
            IndexDifference("users(email)", b"a", b"a@x", missing=True),
            IndexDifference("users(email)", b"b", b"a@x", missing=False),
        ],
        key=str,
    )


def tamper(db: Database, index: str, *writes: tuple[bytes, bytes | None]) -> None:
    """Write past the table: entries with their holders, None to delete them; b"" for a plain index."""
    table = db.catalog.table(index)
    with db.transaction() as t:
        for entry, holder in writes:
            kind = DELETE if holder is None else PUT
            t.put(table, entry, table.marker.encoded, (kind, b""))
            for column in table.columns.values():
                t.put(table, entry, column.encoded, (kind, holder or b""))


def test_an_index_is_rebuilt(users: Database) -> None:
    put(users, *(User(name=name, city="Rome", email=f"{name}@x") for name in "abcd"))
    tamper(users, "users(city)", (b"Rome\0\1a", None), (b"Oslo\0\1b", b""), (b"Oslo\0\1z", b""))
    # Of a's value the entry stands for b, c has none, and a value is left that nobody has.
    tamper(users, "users(email)", (b"a@x", b"b"), (b"c@x", None), (b"old@x", b"d"))
    assert len(check_indexes(users.snapshot(), User)) == 7
    before = users.timestamp()
    assert rebuild_indexes(users, User) == 6  # that a@x does not stand for b goes with a's
    assert agree(users, User)
    assert cities(users) == [("Rome", name) for name in "abcd"]
    assert emails(users) == [(f"{name}@x", name.encode()) for name in "abcd"]
    assert rebuild_indexes(users, "users") == 0
    assert [list(changes(users, User, before))] == [[]]


def test_a_value_that_two_rows_have_is_left_and_told(users: Database) -> None:
    put(users, User(name="a", city="Rome", email="a@x"), User(name="b"))
    handle = users.catalog.table("users")
    with users.transaction() as t:
        t.put(handle, b"b", handle.columns["email"].encoded, (PUT, b"a@x"))
        t.put(handle, b"b", handle.columns["city"].encoded, (PUT, b"Oslo"))
    with pytest.raises(
        RowExists, match="the same value of the unique column email in two rows, name='a' and name='b'"
    ):
        rebuild_indexes(users, User)
    assert cities(users) == [("Oslo", "b"), ("Rome", "a")]
    assert emails(users) == [("a@x", b"a")]
    with users.transaction() as t:
        t.update(User(name="b", email="b@x"))
    assert rebuild_indexes(users, User) == 1  # the entry went with the value that b gave up
    assert agree(users, User)


def test_a_rebuild_beside_writers(connect: Connect) -> None:
    """Each entry is wrong to begin with, and moved by writers while it is mended."""
    db = connect()
    create(db, User)
    names = [f"{number:02}" for number in range(40)]
    put(db, *(User(name=name, city="Rome", email=name) for name in names))
    tamper(db, "users(city)", *((b"Rome\0\1%s" % name.encode(), None) for name in names))
    tamper(db, "users(email)", *((name.encode(), None) for name in names))
    conflicts: list[int] = []
    repair = verify.repair

    def met(t: Transaction, *arguments: Any) -> Any:
        """Other clients change the rows under repair, before and after these are compared again."""
        if len(conflicts) < 3:
            conflicts.append(len(conflicts))
            assert t.start_timestamp
            for name in names[len(conflicts) :: 5]:
                db.run(lambda other, name=name: other.update(User, name=name, city="Oslo", email=None))  # type: ignore[misc]
        return repair(t, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "repair", met)
        rebuild_indexes(db, User)
    assert len(conflicts) == 3
    assert agree(db, User)
    assert len(cities(db)) == 40


# Used by selects.


@pytest.fixture(scope="module")
def hall(url: str) -> Iterable[Database]:
    """Many seats; few of them have a guest."""
    import percolator_core

    with percolator_core.connect(url, some_namespace()) as db:
        create(db, Seat, Person)
        for first in range(0, 2000, 500):
            with db.transaction() as t:
                for number in range(first, first + 500):
                    guest = f"guest {number // 40 % 30:02}".encode() if number % 40 < 2 else None
                    t.insert(Seat(hall=f"{number % 7}", number=number, level=number // 100, guest=guest))
                    t.insert(Person(number=number, badge=number * 2, nick=f"nick {number % 3}"))
        yield db


class Person(Table, name="people"):
    number: PrimaryKey[int]
    badge: Unique[int]
    nick: str = ""


SEAT: Any = Seat
PERSON: Any = Person
GUEST = SEAT.guest
WITH_NOBODY = GUEST == b"nobody"

WHERE: list[tuple[Predicate, str]] = [
    (GUEST == b"guest 07", "index seats(guest), 1 value, about 4 rows"),
    (GUEST == b"nobody", "index seats(guest), 1 value, about 0 rows"),
    (GUEST.in_([b"guest 07", b"guest 11", b"guest"]), "index seats(guest), 3 values, about 8 rows"),
    ((GUEST >= b"guest 05") & (GUEST < b"guest 07"), "index seats(guest), a range, about 12 rows"),
    (GUEST.startswith(b"guest 1"), "index seats(guest), a range, about"),
    ((GUEST == b"guest 07") & (SEAT.level == 2), "index seats(guest), 1 value"),
    ((GUEST == b"guest 07") & (GUEST == b"guest 08"), "index seats(guest), 0 values"),
    ((GUEST == b"guest 07") & (SEAT.hall == "3"), "index seats(guest), 1 value"),
    ((GUEST == b"guest 07") & (SEAT.hall == "3") & (SEAT.number < 20), "seats: 1 ranges of keys in 1 of 3"),
    ((GUEST == b"guest 07") & (SEAT.hall == "0") & (SEAT.number == 280), "seats: 1 ranges of keys in 1 of 3"),
    (SEAT.level == 3, "index seats(level), 1 value, about 100 rows"),
    (SEAT.level > 3, "seats: 3 of 3 tablets"),
    (SEAT.level > 18, "index seats(level), a range, about"),
    ((GUEST == b"guest 07") | (SEAT.level == 3), "seats: 3 of 3 tablets"),
    (~(GUEST == b"guest 07"), "seats: 3 of 3 tablets"),
    (GUEST == None, "seats: 3 of 3 tablets"),  # noqa: E711
    (SEAT.note == "", "seats: 3 of 3 tablets"),
]


@pytest.mark.parametrize(("where", "expected"), WHERE, ids=[f"{number}" for number in range(len(WHERE))])
def test_an_index_is_used_where_it_helps_and_changes_no_result(
    hall: Database, where: Predicate, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = hall.snapshot()
    assert expected in snapshot.explain(Seat, where)
    found = list(snapshot.select(Seat, where=where))
    backwards = list(snapshot.select(Seat, where=where, reverse=True))
    some = list(snapshot.select("seats", where=where, columns=["note", "number"], limit=3))
    monkeypatch.setattr(lookup, "FEW", 10**9)
    assert "index" not in snapshot.explain(Seat, where)
    assert found == list(snapshot.select(Seat, where=where))
    assert backwards == found[::-1]
    assert some == [{"note": seat.note, "number": seat.number} for seat in found[:3]]


def test_a_unique_value_is_looked_up(hall: Database) -> None:
    where = PERSON.badge == 300
    assert hall.snapshot().explain(Person, where) == "people: index people(badge), 1 value"
    for badge, expected in ((300, [150]), (301, [])):
        snapshot = hall.snapshot()
        assert [one.number for one in snapshot.select(Person, where=PERSON.badge == badge)] == expected
    several = PERSON.badge.in_([8, 4, 3])
    assert [one.number for one in hall.snapshot().select(Person, where=several)] == [2, 4]
    assert [one.number for one in hall.snapshot().select(Person, several, reverse=True)] == [4, 2]
    between = (PERSON.badge > 100) & (PERSON.badge < 110)
    assert "index people(badge), a range" in hall.snapshot().explain(Person, between)
    assert [one.number for one in hall.snapshot().select(Person, where=between)] == [51, 52, 53, 54]
    other = (PERSON.badge == 300) & (PERSON.nick == "nick 9")
    assert list(hall.snapshot().select(Person, where=other)) == []


def test_more_values_than_are_sorted_are_merged(hall: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    where = SEAT.level.in_([3, 11])
    expected = list(hall.snapshot().select(Seat, where=where))
    assert len(expected) == 200
    monkeypatch.setattr(lookup, "A_FETCH", 1)
    monkeypatch.setattr(lookup, "MOST_SORTED", 10)
    assert "index" in hall.snapshot().explain(Seat, where)
    assert list(hall.snapshot().select(Seat, where=where)) == expected
    assert list(hall.snapshot().select(Seat, where=where, reverse=True)) == expected[::-1]
    assert "tablets" in hall.snapshot().explain(Seat, (SEAT.level > 1) & (SEAT.level < 4))


def test_a_key_that_is_given_is_better_than_any_index(hall: Database) -> None:
    where = (PERSON.badge == 300) & (PERSON.number == 150)
    assert hall.snapshot().explain(Person, where) == "people: 1 ranges of keys in 1 of 16 tablets"


def test_a_select_by_an_index_reads_little(hall: Database) -> None:
    with hall.transaction() as t:
        assert len(list(t.select(Seat, where=GUEST == b"guest 07"))) == 4
        assert t.cost.round_trips <= 4
        assert t.cost.scanned <= 8


@pytest.mark.parametrize("where", [GUEST == b"guest 07", WITH_NOBODY, SEAT.level == 3])
def test_arrow_goes_by_an_index_as_a_select_does(
    hall: Database, where: Predicate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(t: Snapshot) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = t.to_arrow(Seat, where=where, columns=["number", "note"]).to_pylist()
        return sorted(rows, key=itemgetter("number"))

    with monkeypatch.context() as patch, hall.transaction() as t:
        patch.setattr(arrow, "read_batches", None)
        found = read(t)
        t.upsert(Seat(hall="0", number=-1, guest=b"guest 07", level=3))
        own = [] if where is WITH_NOBODY else [{"number": -1, "note": ""}]
        assert read(t) == own + found
        t.rollback()
    monkeypatch.setattr(lookup, "FEW", 10**9)
    monkeypatch.setattr(operations, "by_index", None)
    assert read(hall.snapshot()) == found


def test_a_limit_is_reached_sooner_without_sorting_all_entries(hall: Database) -> None:
    where = SEAT.level.in_([3, 4])
    assert "index seats(level), 2 values" in hall.snapshot().explain(Seat, where)
    assert "tablets" in hall.snapshot().explain(Seat, where, limit=1)
    assert "index seats(level), 1 value" in hall.snapshot().explain(Seat, SEAT.level == 3, limit=1)


def test_own_writes_are_found_by_an_index(hall: Database) -> None:
    t = hall.begin()
    where = GUEST == b"guest 07"
    before = [(seat.hall, seat.number) for seat in t.select(Seat, where=where)]
    assert len(before) == 4
    t.update(Seat(hall=before[0][0], number=before[0][1], guest=b"other"))
    t.remove(Seat, hall=before[1][0], number=before[1][1])
    t.insert(Seat(hall="0", number=-1, guest=b"guest 07"))
    t.update(Seat(hall=before[2][0], number=before[2][1], note="noted"))
    assert "index" in t.explain(Seat, where)
    after = [(seat.hall, seat.number, seat.note) for seat in t.select(Seat, where=where)]
    assert after == sorted([("0", -1, ""), (*before[2], "noted"), (*before[3], "")])
    assert [seat.note for seat in t.select(Seat, where=where & (SEAT.note == "noted"))] == ["noted"]
    t.update(Person(number=1, badge=5))
    assert [one.number for one in t.select(Person, where=PERSON.badge.in_([2, 5]))] == [1]
    t.rollback()


def test_a_select_of_a_transaction_that_is_over_is_refused(hall: Database) -> None:
    t = hall.begin()
    t.commit()
    for model, where in ((Person, PERSON.badge == 300), (Seat, GUEST == b"guest 07")):
        with pytest.raises(PercolatorError, match="the transaction is committed"):
            list(t.select(model, where=where))


def test_rows_older_than_an_indexed_column_are_found_by_its_default(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = definition_of(User)
    level = Column("level", "int", missing=column_type("int").encode(7))
    index = IndexRule("level", False, "users(level)")
    more = plain.with_(columns=(*plain.columns, level), indexes=(*plain.indexes, index))
    db.schema_changes.create(more)
    put(db, User(name="ada"))
    with db.transaction() as t:
        t.insert("users", name="bob", city=None, email=None, age=None, level=7)
    monkeypatch.setattr(lookup, "FEW", 0)
    monkeypatch.setattr(lookup, "A_FETCH", 0)
    found = db.snapshot().select("users", where=SEAT.level == 7)
    assert [row["name"] for row in found] == ["ada", "bob"]


def test_an_index_outlives_new_names_of_its_columns(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    create(db, User)
    put(db, User(name="ada", city="Rome", email="a@x"), User(name="bob", city="Oslo"))
    for old, new in (("city", "row"), ("name", "city"), ("email", "name"), ("row", "town")):
        db.rename_column("users", old, new)
    monkeypatch.setattr(lookup, "FEW", 0)
    monkeypatch.setattr(lookup, "A_FETCH", 1)
    with db.transaction() as t:
        t.update("users", city="bob", town="Rome", name="b@x")
        with pytest.raises(
            RowExists, match="users already has a row with name='a@x', city='ada': name is uni"
        ):
            t.insert("users", city="eve", name="a@x")
        where = ColumnExpression("town") == "Rome"
        assert [row["city"] for row in t.select("users", where=where)] == ["ada", "bob"]
    snapshot = db.snapshot()
    assert "index" in snapshot.explain("users", where, limit=1)
    assert [row["city"] for row in snapshot.select("users", where=where, limit=1)] == ["ada"]
    assert [row["city"] for row in snapshot.select("users", where=ColumnExpression("name") == "b@x")] == [
        "bob"
    ]
    assert agree(db, "users")


def test_a_model_that_does_not_know_of_an_index_keeps_it(db: Database) -> None:
    plain = definition_of(User)
    db.schema_changes.create(plain.with_(indexes=(*plain.indexes, IndexRule("age", True, "users(age)"))))
    put(db, User(name="ada", age=3), User(name="bob", age=4))
    with db.transaction() as t:
        t.update(User(name="ada", age=5))
        with pytest.raises(RowExists, match="age=4, name='bob'"):
            t.update(User(name="ada", age=4))
    assert entries(db.snapshot(), "users(age)") == [(4, b"bob"), (5, b"ada")]
    assert agree(db, User)


def test_an_old_snapshot_is_read_by_the_index_of_then(hall: Database) -> None:
    with hall.snapshot() as before:
        where = GUEST == b"guest 08"
        expected = list(before.select(Seat, where=where))
        with hall.transaction() as t:
            for seat in expected[:2]:
                seat.guest = b"guest 09"
                t.update(seat)
            t.remove(Seat, hall=expected[2].hall, number=expected[2].number)
        assert "index" in before.explain(Seat, where)
        assert [seat.number for seat in before.select(Seat, where=where)] == [one.number for one in expected]
        now = hall.snapshot().select(Seat, where=where)
        assert [seat.number for seat in now] == [one.number for one in expected[3:]]
    assert agree(hall, Seat, Person)


names = st.sampled_from(["a", "b", "c"])
towns = st.sampled_from([None, "", "Rome", "Rome\0", "Rom"])
mails = st.sampled_from([None, "1", "2", "3"])
deeds = st.lists(
    st.tuples(st.sampled_from(["insert", "upsert", "update", "remove", "commit"]), names, towns, mails),
    max_size=25,
)


@given(deeds)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_deeds_leave_index_and_data_as_a_model_has_them(
    url: str, some: list[tuple[str, str, str | None, str | None]]
) -> None:
    import percolator_core

    with percolator_core.connect(url, some_namespace()) as db:
        create(db, User)
        held: dict[str, tuple[str | None, str | None]] = {}
        t = db.begin()
        for deed, name, city, email in some:
            if deed == "commit":
                t.commit()
                t = db.begin()
                continue
            is_there = name in held
            owner = next((one for one, (_, mail) in held.items() if mail == email is not None), name)
            if deed == "remove":
                assert t.remove(User, name=name) is is_there
                held.pop(name, None)
                continue
            refused = owner != name or (deed == "insert" and is_there) or (deed == "update" and not is_there)
            try:
                getattr(t, deed)(User(name=name, city=city, email=email))
            except (RowExists, RowNotFound):
                assert refused
            else:
                assert not refused
                held[name] = (city, email)
            assert {one.name: (one.city, one.email) for one in t.select(User)} == held
        t.commit()
        assert {one.name: (one.city, one.email) for one in db.snapshot().select(User)} == held
        assert check_indexes(db.snapshot(), User) == []
        expected = sorted((city, name) for name, (city, _) in held.items() if city is not None)
        assert sorted(cities(db)) == expected


# Above a base.


def test_indexes_and_their_table_may_have_bases(users: Database, tmp_path: Path) -> None:
    put(
        users,
        *(User(name=f"u{number:02}", city=f"c{number % 3}", email=f"{number}@x") for number in range(30)),
    )
    tables = ("users", "users(city)", "users(email)")
    for table in tables:
        assert flush(users, table, tmp_path) == 30
    assert agree(users, User)
    with users.transaction() as t:
        t.update(User, name="u00", city="c1")
        t.update(User, name="u01", email=None)
        t.remove(User, name="u02")
        t.insert(User(name="new", city="c0", email="2@x"))
    with pytest.raises(RowExists, match="email"):
        put(users, User(name="other", email="5@x"))  # which a cold row has
    put(users, User(name="free", email="1@x"))
    for _ in range(2):
        assert agree(users, User)
        assert [row.name for row in users.snapshot().select(User, USER.email == "5@x")] == ["u05"]
        assert [row.name for row in users.snapshot().select(User, USER.email == "2@x")] == ["new"]
        found = [row.name for row in users.snapshot().select(User, USER.city == "c0")]
        assert found == sorted(["new", *(f"u{number:02}" for number in range(3, 30, 3))])
        for table in tables:
            flush(users, table, tmp_path)
    assert len(cities(users)) == 30
    assert len(emails(users)) == 30


def test_cold_entries_and_rows_are_repaired(users: Database, tmp_path: Path) -> None:
    """Another program has written to the store before the flush, and after it."""
    put(users, User(name="a", city="x"), User(name="b", city="x"), User(name="c", city="y"))
    handle, index = users.catalog.table("users"), users.catalog.table("users(city)")
    [entry, *_] = indexes_of(handle)

    def break_off(value: bytes, row: bytes, kind: int) -> None:
        with users.transaction() as t:
            t.put(index, entry.entry(value, row), index.marker.encoded, (kind, b""))

    break_off(b"x", b"a", DELETE)
    break_off(b"nowhere", b"b", PUT)
    for table in ("users", "users(city)"):
        flush(users, table, tmp_path)
    break_off(b"y", b"c", DELETE)
    found = [(one.row, one.value, one.missing) for one in check_indexes(users.snapshot(), User)]
    assert sorted(found) == [(b"a", b"x", True), (b"b", b"nowhere", False), (b"c", b"y", True)]
    assert rebuild_indexes(users, User) == 3
    assert agree(users, User)
    assert cities(users) == [("x", "a"), ("x", "b"), ("y", "c")]
