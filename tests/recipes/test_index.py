"""The secondary index: it agrees with the data in every snapshot, sorts by value, and can be made anew."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import percolator_core
from percolator_core import Cell, Database, TableDefinition, Transaction, Worker
from percolator_core.errors import TransactionConflict
from percolator_core.recipes import Difference, SecondaryIndex
from percolator_core.recipes.index import _entry, _split
from tests.chains import chain_of, watch
from tests.flushing import flush
from tests.servers.plain import PATIENCE

TABLES = (TableDefinition("users", 4), TableDefinition("by_city", 4), TableDefinition("docs", 2))
CITIES = [b"London", b"Paris", b"Par", b"Par\0is", b""]

by_city = SecondaryIndex("users", "city", "by_city")

# Few and near letters, so that values are the beginnings of each other, and keys look like what is added.
values = st.lists(st.sampled_from([b"\0", b"\1", b"\2", b"a", b"\xff"]), max_size=5).map(b"".join)


@pytest.fixture
def db(url: str, namespace: str) -> Iterator[Database]:
    with percolator_core.connect(url, namespace) as database:
        for table in TABLES:
            database.create_table(table.name, table.tablets)
        yield database


def put(db: Database, **cities: bytes) -> None:
    with db.transaction() as t:
        for row, city in cities.items():
            by_city.set(t, row, city)


def put_past_the_index(db: Database, row: str, city: bytes | None) -> None:
    with db.transaction() as t:
        if city is None:
            t.delete("users", row, "city")
        else:
            t.set("users", row, "city", city)


@given(st.lists(st.tuples(values, values), min_size=2, max_size=2))
def test_entries_are_injective_and_sort_by_value_then_row(pairs: list[tuple[bytes, bytes]]) -> None:
    one, other = pairs
    assert _split(_entry(*one)) == one
    assert (_entry(*one) < _entry(*other)) == (one < other)


def test_a_value_is_found_where_it_is_now(db: Database) -> None:
    put(db, ada=b"London", bob=b"Paris", eve=b"London")
    before = db.snapshot()
    put(db, ada=b"Paris")
    with db.transaction() as t:
        by_city.delete(t, "eve")
    assert list(by_city.find(db.snapshot(), b"London")) == []
    assert list(by_city.find(db.snapshot(), b"Paris")) == [b"ada", b"bob"]
    assert list(by_city.find(db.snapshot(), b"Paris", limit=1)) == [b"ada"]
    assert list(by_city.find(before, b"London")) == [b"ada", b"eve"]
    assert by_city.check(db) == []
    assert len(list(db.snapshot().scan("by_city"))) == 2


def test_a_transaction_finds_what_it_has_set(db: Database) -> None:
    put(db, ada=b"London")
    with db.transaction() as t:
        by_city.set(t, "ada", b"Paris")
        by_city.set(t, "bob", b"Paris")
        by_city.set(t, "bob", b"London")
        by_city.set(t, "ada", b"Paris")
        assert list(by_city.find(t, b"Paris")) == [b"ada"]
        assert list(by_city.find(t, b"London")) == [b"bob"]
    assert by_city.check(db) == []


def test_values_that_begin_alike_are_apart_and_in_order(db: Database) -> None:
    found = [b"", b"\0", b"\0\0", b"\0\1", b"\0\2", b"\0\xff", b"\1", b"a", b"a\0", b"a\0b", b"ab", b"\xff"]
    rows = [b"\0", b"\1x", b"\xffr", b"r"]
    with db.transaction() as t:
        for number, value in enumerate(found):
            for row in rows:
                by_city.set(t, row + b"%02d" % number, value)
    snapshot = db.snapshot()
    for number, value in enumerate(found):
        assert list(by_city.find(snapshot, value)) == [row + b"%02d" % number for row in sorted(rows)]
    every = list(by_city.range(snapshot))
    assert every == sorted(every)
    assert [value for value, _ in every[:: len(rows)]] == found
    between = [pair for pair in every if b"\0\1" <= pair[0] < b"a\0b"]
    assert list(by_city.range(snapshot, b"\0\1", b"a\0b")) == between
    assert list(by_city.range(snapshot, b"\0\1", b"a\0b", reverse=True, limit=3)) == between[:-4:-1]
    assert list(by_city.range(snapshot, stop=b"\0")) == every[:4]
    assert list(by_city.range(snapshot, start=b"\xff")) == every[-4:]
    assert by_city.check(db) == []


def test_two_moves_of_one_row_collide(db: Database) -> None:
    put(db, ada=b"London")
    one, other = db.begin(), db.begin()
    by_city.set(one, "ada", b"Paris")
    by_city.set(other, "ada", b"Rome")
    other.commit()
    with pytest.raises(TransactionConflict):
        one.commit()
    assert list(by_city.range(db.snapshot())) == [(b"Rome", b"ada")]


def test_a_transaction_that_sets_the_cell_by_itself(db: Database) -> None:
    put(db, ada=b"London")
    with db.transaction() as t:
        old = t.get("users", "ada", "city")
        t.set("users", "ada", "city", b"Paris")
        by_city.update(t, "ada", old, b"Paris")
        by_city.update(t, "bob", None, None)
    assert list(by_city.range(db.snapshot())) == [(b"Paris", b"ada")]
    assert by_city.check(db) == []


def test_an_index_of_a_part_of_the_value(db: Database) -> None:
    def age(value: bytes) -> bytes | None:
        found = json.loads(value).get("age")
        return None if found is None else b"%03d" % found

    index = SecondaryIndex("users", "data", "by_city", key=age)
    with db.transaction() as t:
        index.set(t, "ada", b'{"age": 36}')
        index.set(t, "bob", b'{"age": 7}')
        index.set(t, "eve", b"{}")
    assert list(index.range(db.snapshot(), b"010")) == [(b"036", b"ada")]
    with db.transaction() as t:
        index.set(t, "ada", b'{"age": 36, "x": 1}')
        index.set(t, "bob", b"{}")
    assert list(index.range(db.snapshot())) == [(b"036", b"ada")]
    assert index.check(db) == []


def test_an_observer_sets_through_the_index(db: Database) -> None:
    def read_city(t: Transaction, cell: Cell) -> None:
        by_city.set(t, cell.row, t.get("docs", cell.row, "text") or b"")

    chain = chain_of(watch("read_city", read_city, "docs.text"), tables=TABLES)
    chain.create_tables(db)
    for turn in range(3):
        with db.transaction() as t:
            for number in range(20):
                t.set("docs", f"d{number}", "text", CITIES[(number * turn) % 4])
        Worker(db, chain).run_until_idle(PATIENCE)
        assert by_city.check(db) == []
    expected = sorted(b"d%d" % number for number in range(20) if number * 2 % 4 == 2)
    assert list(by_city.find(db.snapshot(), CITIES[2])) == expected


def move(db: Database, seed: int) -> None:
    """Change and delete cells of few rows, by the index."""
    chance = random.Random(seed)

    def change(t: Transaction) -> None:
        for row in chance.sample(range(6), 2):
            if chance.random() < 0.2:
                by_city.delete(t, f"r{row}")
            else:
                by_city.set(t, f"r{row}", chance.choice(CITIES))

    for _ in range(40):
        db.run(change, 1000)


def test_every_snapshot_agrees_while_many_move_values(db: Database, url: str, namespace: str) -> None:
    moved = threading.Event()

    def mine(seed: int) -> None:
        with percolator_core.connect(url, namespace) as connected:
            move(connected, seed)

    def look() -> int:
        looks = 0
        while not moved.is_set() or not looks:
            assert by_city.check(db) == []
            looks += 1
        return looks

    with ThreadPoolExecutor(5) as pool:
        looking = pool.submit(look)
        list(pool.map(mine, range(4)))
        moved.set()
        assert looking.result() > 0
    assert by_city.check(db) == []


def test_check_says_what_is_missing_and_what_is_stray(db: Database) -> None:
    put(db, ada=b"London", bob=b"Paris", eve=b"Rome")
    put_past_the_index(db, "ada", b"Paris")
    put_past_the_index(db, "bob", None)
    put_past_the_index(db, "new", b"Rome")
    assert sorted(by_city.check(db), key=lambda found: (found.row, found.missing)) == [
        Difference(b"ada", b"London", missing=False),
        Difference(b"ada", b"Paris", missing=True),
        Difference(b"bob", b"Paris", missing=False),
        Difference(b"new", b"Rome", missing=True),
    ]
    assert by_city.rebuild(db) == 4
    assert by_city.check(db) == []
    assert by_city.rebuild(db) == 0


def test_rebuild_makes_an_index_of_what_was_there_before(db: Database) -> None:
    with db.transaction() as t:
        for number in range(1200):
            t.set("users", f"r{number}", "city", CITIES[number % 5])
            t.set("users", f"x{number}", "name", b"no city")
    assert by_city.rebuild(db) == 1200
    assert by_city.check(db) == []
    assert len(list(by_city.find(db.snapshot(), b"Par"))) == 240


def test_rebuild_beside_those_who_move_values(db: Database, url: str, namespace: str) -> None:
    chance = random.Random(3)
    for _ in range(3):
        with db.transaction() as t:
            for row in range(6):
                t.set("users", f"r{row}", "city", chance.choice(CITIES))
                t.set("by_city", _entry(chance.choice(CITIES), b"r%d" % row), "entry", b"")
        with ThreadPoolExecutor(2) as pool:
            moving = pool.submit(move, db, chance.randrange(100))
            while not moving.done():
                by_city.rebuild(db)
            moving.result()
        by_city.rebuild(db)
        assert by_city.check(db) == []


@pytest.mark.parametrize("theirs", [b"Rome", b"Paris", None])
def test_what_rebuild_saw_has_changed_when_it_mends(db: Database, theirs: bytes | None) -> None:
    put(db, ada=b"London", bob=b"Paris")
    put_past_the_index(db, "ada", b"Paris")
    seen = by_city.check(db)
    assert len(seen) == 2
    t = db.begin()
    by_city._repair(t, seen)
    with db.transaction() as other:
        if theirs is None:
            by_city.delete(other, "ada")
        else:
            by_city.update(other, "ada", b"Paris", theirs)
            other.set("users", "ada", "city", theirs)
    if theirs == b"Paris":
        t.commit()  # it moved nothing
    else:
        with pytest.raises(TransactionConflict):
            t.commit()
    db.run(lambda t: by_city._repair(t, seen))
    assert by_city.check(db) == []


def test_a_value_that_is_too_long(db: Database) -> None:
    put(db, ada=b"London")
    with db.transaction() as t:
        with pytest.raises(ValueError, match="has 65541 bytes, and may have 65536: index a part or a digest"):
            by_city.set(t, "ada", bytes(32_768))
        by_city.set(t, "ada", bytes(32_765))
    assert by_city.check(db) == []


def test_an_index_and_its_table_may_have_a_base(db: Database, tmp_path: Path) -> None:
    put(db, ada=b"London", bob=b"Paris", eve=b"London", dan=b"London")
    for table in ("users", "by_city"):
        assert flush(db, table, tmp_path) == 4
    put(db, bob=b"London", new=b"London")
    with db.transaction() as t:
        by_city.delete(t, "eve")
        by_city.set(t, "ada", b"Paris")
    assert list(by_city.find(db.snapshot(), b"London")) == [b"bob", b"dan", b"new"]
    assert list(by_city.find(db.snapshot(), b"Paris")) == [b"ada"]
    assert list(by_city.range(db.snapshot(), reverse=True, limit=2)) == [
        (b"Paris", b"ada"),
        (b"London", b"new"),
    ]
    assert by_city.check(db) == []
    put_past_the_index(db, "dan", b"Rome")
    assert len(by_city.check(db)) == 2
    assert by_city.rebuild(db) == 2
    for table in ("users", "by_city"):
        flush(db, table, tmp_path)
    assert by_city.check(db) == []
    assert list(by_city.range(db.snapshot())) == [
        (b"London", b"bob"),
        (b"London", b"new"),
        (b"Paris", b"ada"),
        (b"Rome", b"dan"),
    ]
