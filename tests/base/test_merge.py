"""The merge of base and store in Arrow columns equals a merge row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.base import row_set
from percolator_core.base.cache import ByteCache
from percolator_core.base.location import Location
from percolator_core.base.merge import nothing, selected
from percolator_core.base.reader import RowSetReader
from percolator_core.base.row_set import Delta
from percolator_core.base.tablet import TabletBase
from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import MARKER
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.predicates import Bound, Group, bind
from percolator_core.schema.predicates import Test as Comparison
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow import arrow_schema
from percolator_core.tables.arrow_columns import stored
from tests.base.test_tablet import Rows, base_of, entry_of, replaced
from tests.schema.predicates import predicates
from tests.schema.values import QUICK, VALUES
from tests.tables.test_arrow import filled, values

Cells = dict[str, bytes | None]
Found = list[tuple[bytes | None, ...]]


def expected_rows(
    definition: TableDefinition, there: Rows, deltas: Mapping[bytes, Delta], bound: Bound | None
) -> dict[bytes, Cells]:
    """The rows by key with all columns, merged row by row from the rows of the base and the deltas."""
    codec = KeyCodec(definition)
    rows: dict[bytes, Mapping[bytes, bytes | None] | None] = {key: cells for key, (_, cells) in there.items()}
    for key, delta in deltas.items():
        exists = delta[MARKER] is not None if MARKER in delta else key in rows
        rows[key] = {**(rows.get(key) or {}), **delta} if exists else None
    found = {}
    for key in sorted(rows):
        cells = rows[key]
        if cells is None:
            continue
        known: Cells = dict(zip(definition.key, codec.split(key), strict=True))
        for column in definition.value_columns:
            value = cells.get(column.stored.encode())
            known[column.name] = column.missing if value is None else value
        if bound is None or bound.holds(known.__getitem__) is True:
            found[key] = known
    return found


def in_bytes(table: pa.Table, columns: Sequence[Column]) -> Found:
    """The rows of a result, by position: a column may have the name of the keys."""
    arrays = [table.column(0).to_pylist()]
    for place, column in enumerate(columns, 1):
        arrays.append(stored(column_type(column.type), table.column(place).combine_chunks()))
    return list(zip(*arrays, strict=True))


def check(base: TabletBase, there: Rows, deltas: Mapping[bytes, Delta], bound: Bound | None) -> None:
    columns = [*base.definition.columns, base.definition.columns[0]]
    rows = expected_rows(base.definition, there, deltas, bound)
    keys = sorted({*there, *deltas})
    for low, high, reverse in product((b"", *keys[1::2]), (None, *keys[::2]), (False, True)):
        expected: Found = [
            (key, *(cells[column.name] for column in columns))
            for key, cells in rows.items()
            if low <= key and (high is None or key < high)
        ]
        table = selected(base, low, high, deltas, columns, bound, reverse=reverse)
        table.validate(full=True)
        assert table.schema == nothing(columns).schema
        assert table.schema == pa.schema([pa.field("key", pa.binary(), False), *arrow_schema(columns)])
        assert in_bytes(table, columns) == (expected[::-1] if reverse else expected)


@st.composite
def changed(draw: st.DrawFn, definition: TableDefinition) -> TableDefinition:
    """The table after some columns were dropped, and others added."""
    kept = [column for column in definition.value_columns if draw(st.integers(0, 3))]
    added = [
        Column(name, kind, True, missing=draw(values(kind) if draw(st.booleans()) else st.none()))
        for name, kind in zip(
            ("key", "new"), draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=2)), strict=False
        )
    ]
    return replace(definition, columns=(*definition.key_columns, *kept, *added))


@st.composite
def some_deltas(draw: st.DrawFn, definition: TableDefinition, keys: Sequence[bytes]) -> dict[bytes, Delta]:
    found: dict[bytes, Delta] = {}
    for key in draw(st.lists(st.sampled_from(keys), unique=True)) if keys else ():
        delta: dict[bytes, bytes | None] = {}
        for column in definition.value_columns:
            if draw(st.booleans()):
                delta[column.stored.encode()] = draw(values(column.type) | st.none())
        marker = draw(st.sampled_from([b"", None, "as it is"]))
        if not isinstance(marker, str):
            delta[MARKER] = marker
        found[key] = delta
    return found


def in_python(definition: TableDefinition, cells: Cells) -> dict[str, Any]:
    found = {}
    for column in definition.columns:
        value = cells[column.name]
        found[column.name] = None if value is None else column_type(column.type).decode(value)
    return found


@given(filled(most=16), st.data())
@QUICK
def test_base_and_store_are_one(
    tmp_path_factory: pytest.TempPathFactory, table: Any, data: st.DataObject
) -> None:
    before, drawn = table
    codec = KeyCodec(before)
    location = Location(str(tmp_path_factory.mktemp("base")))
    rows: Rows = {}
    for row in drawn:
        known = {one.stored.encode(): value for one, value in zip(before.columns, row, strict=True)}
        key = codec.join([known.pop(name.encode()) or b"" for name in before.key])
        rows[key] = 1, {name: value for name, value in known.items() if value is not None}
    keys = sorted(rows)
    entries = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_set, "GROUP_ROWS", 3)
        # The row sets overlap, and some keys are in none.
        places = [data.draw(st.integers(0, 3)) for _ in keys]
        for number in range(1, 4):
            some = {key: rows[key] for key, place in zip(keys, places, strict=True) if place == number}
            if some:
                entries.append(entry_of(location, before, some))
    gone = set(data.draw(st.lists(st.sampled_from(keys), max_size=3))) if keys else set()
    definition = data.draw(changed(before))
    base = base_of(location, definition, replaced(location, entries, before, gone))
    deltas = data.draw(some_deltas(definition, keys))
    there = {key: rows[key] for key, place in zip(keys, places, strict=True) if place and key not in gone}
    whole = list(expected_rows(definition, there, deltas, None).values())
    row = in_python(definition, data.draw(st.sampled_from(whole))) if whole else None
    predicate = data.draw(st.none() | predicates(definition, row, leaves=3))
    bound = None if predicate is None else bind(predicate, definition)
    check(base, there, deltas, bound)


INT, X = column_type("int").encode, column_type("float").encode
TABLE = TableDefinition(
    "t",
    1,
    columns=(
        Column("id", "int"),
        Column("tens", "int"),
        Column("name", "str", True),
        Column("x", "float", True),
    ),
    key=("id",),
)


def numbered(folder: Path, count: int, *, sets: int = 1) -> TabletBase:
    """Rows of ascending keys in row groups of ten; ``tens`` is the number of the group."""
    location = Location(str(folder))
    rows: Rows = {INT(n): (1, {b"tens": INT(n // 10), b"name": b"name %03d" % n}) for n in range(count)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_set, "GROUP_ROWS", 10)
        entries = [
            entry_of(
                location,
                TABLE,
                {key: row for place, (key, row) in enumerate(rows.items()) if place % sets == one},
            )
            for one in range(sets)
        ]
    return base_of(location, TABLE, entries)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...]]]:
    """The row groups and columns that are decoded."""
    found: list[tuple[int, tuple[str, ...]]] = []
    read = RowSetReader.read

    def spied(self: RowSetReader, group: int, columns: Sequence[str]) -> Any:
        found.append((group, tuple(columns)))
        return read(self, group, columns)

    monkeypatch.setattr(RowSetReader, "read", spied)
    return found


def test_a_group_without_a_match_is_decoded_no_further(tmp_path: Path, reads: list[Any]) -> None:
    base = numbered(tmp_path, 40)
    bound = Comparison("name", "=", (b"name 025",))
    # Statistics leave out the groups of names that are all below or all above.
    found = selected(base, b"", None, {}, TABLE.columns, bound)
    assert found.column("id").to_pylist() == [25]
    assert reads == [(2, ("c.name",)), (2, ("key", "c.id", "c.tens", "c.x"))]
    reads.clear()
    either = Group("or", (bound, Comparison("name", "=", (b"name",))))
    assert selected(base, b"", None, {}, TABLE.columns, either).equals(found)
    assert reads == [
        (0, ("c.name",)),
        (1, ("c.name",)),
        (2, ("c.name",)),
        (2, ("key", "c.id", "c.tens", "c.x")),
        (3, ("c.name",)),
    ]


def test_statistics_count_what_the_store_has(tmp_path: Path, reads: list[Any]) -> None:
    base = numbered(tmp_path, 40)
    bound = Comparison("tens", "=", (INT(3),))
    deltas: dict[bytes, Delta] = {
        INT(5): {b"tens": INT(3)},
        INT(15): {b"tens": None},
        INT(35): {MARKER: None},
    }
    found = selected(base, b"", None, deltas, TABLE.columns, bound)
    assert found.column("id").to_pylist() == [5, *(n for n in range(30, 40) if n != 35)]
    assert {group for group, columns in reads if "c.name" in columns} == {0, 3}
    nothing = Comparison("tens", "null")
    assert selected(base, b"", None, deltas, TABLE.columns, nothing).column("id").to_pylist() == [15]


def test_statistics_count_the_default_of_an_added_column(tmp_path: Path, reads: list[Any]) -> None:
    base = numbered(tmp_path, 40)
    columns = (
        *TABLE.columns[:3],
        replace(TABLE.columns[3], missing=X(7)),
        Column("new", "int", missing=INT(5)),
    )
    base = TabletBase(replace(TABLE, columns=columns), Location(str(tmp_path)), base.manifest, ByteCache(0))
    deltas: dict[bytes, Delta] = {INT(5): {b"x": X(9), b"new": INT(9)}, INT(15): {b"x": None, b"new": None}}
    for name, value in (("x", X(7)), ("new", INT(5))):
        found = selected(base, b"", None, deltas, columns, Comparison(name, "=", (value,)))
        assert found.column("id").to_pylist() == [n for n in range(40) if n != 5]
    reads.clear()
    found = selected(base, b"", None, deltas, columns, Comparison("new", "=", (INT(9),)))
    assert found.column("id").to_pylist() == [5]
    assert {group for group, columns in reads if "c.name" in columns} == {0}
    only = selected(
        base,
        b"",
        None,
        {INT(15): {b"x": X(1)}, INT(16): {b"x": None}},
        columns,
        Comparison("x", "!=", (X(7),)),
    )
    assert only.column("id").to_pylist() == [15]
    columns = (columns[0], replace(columns[1], missing=INT(99)), *columns[2:])
    base = TabletBase(replace(TABLE, columns=columns), Location(str(tmp_path)), base.manifest, ByteCache(0))
    deltas = {INT(15): {b"tens": None}}
    found = selected(base, b"", None, deltas, columns, Comparison("tens", "=", (INT(99),)))
    assert found.column("id").to_pylist() == [15]


def test_a_nan_is_found_though_statistics_leave_it_out(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    encode = column_type("float").encode
    numbers = [1.0, float("nan"), 2.0]
    rows: Rows = {INT(n): (1, {b"tens": INT(0), b"x": encode(x)}) for n, x in enumerate(numbers)}
    base = base_of(location, TABLE, [entry_of(location, TABLE, rows)])
    for op, value, expected in (
        (">", 2.0, [1]),
        ("=", float("nan"), [1]),
        (">=", 2.0, [1, 2]),
        ("<", 1.0, []),
    ):
        found = selected(base, b"", None, {}, TABLE.columns, Comparison("x", op, (encode(value),)))  # type: ignore[arg-type]
        assert found.column("id").to_pylist() == expected


@pytest.mark.parametrize("sets", [1, 3])
def test_new_rows_are_put_between_those_of_the_base(tmp_path: Path, sets: int) -> None:
    base = numbered(tmp_path, 100, sets=sets)
    half = [key + b"\0" for key in map(INT, range(0, 100, 7))]
    definition = replace(TABLE, columns=(Column("id", "bytes"), *TABLE.columns[1:]))
    base = TabletBase(definition, Location(str(tmp_path)), base.manifest, ByteCache(0))
    deltas: dict[bytes, Delta] = {key: {MARKER: b"", b"tens": INT(1)} for key in (b"", *half, b"\xff")}
    found = selected(base, b"", None, deltas, definition.value_columns, None)
    assert found.column(0).to_pylist() == sorted([*deltas, *map(INT, range(100))])


def test_a_cell_of_another_type_is_reported(tmp_path: Path) -> None:
    base = numbered(tmp_path, 3)
    for cells in ({b"tens": b"short"}, {b"name": b"\xff"}):
        for key in (INT(1), INT(9)):
            with pytest.raises(ConfigurationError, match="restore a backup"):
                selected(base, b"", None, {key: {MARKER: b"", b"tens": INT(1), **cells}}, TABLE.columns, None)
