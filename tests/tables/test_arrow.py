"""Arrow and encoded values are made of each other without a difference, for each type and awkward value."""

from __future__ import annotations

import builtins
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core import ConfigurationError, Database, UnknownColumn
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow import arrow_schema, encoded_rows, from_rows, record_batch
from percolator_core.tables.arrow_columns import stored
from percolator_core.tables.arrow_values import arrow_type
from percolator_core.tables.select import ArrowBatch, Batch, Layout
from tests.schema.values import QUICK, VALUES
from tests.tables.laid import Laid, State, definition_of, version

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
EVERY = {**VALUES, "json": JSON}
Row = tuple[bytes | None, ...]


def values(kind: str) -> st.SearchStrategy[bytes]:
    return EVERY[kind].map(column_type(kind).encode)


@st.composite
def filled(draw: st.DrawFn, most: int = 6) -> tuple[TableDefinition, list[Row]]:
    """A table and some rows: the values of its columns in the order of the definition."""
    types = st.sampled_from(sorted(EVERY))
    key_types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    key = [Column(f"k{place}", kind) for place, kind in enumerate(key_types)]
    others = [
        Column(f"v{place}", kind, draw(st.booleans()))
        for place, kind in enumerate(draw(st.lists(types, max_size=6)))
    ]
    definition = definition_of(key, others)
    row = st.tuples(
        *(values(one.type) | st.none() if one.nullable else values(one.type) for one in definition.columns)
    )
    return definition, draw(st.lists(row, max_size=most))


def as_select(definition: TableDefinition, columns: Sequence[Column], rows: Sequence[Row]) -> Batch:
    """The rows as the store passes them on."""
    layout = Layout(definition, tuple(columns))
    codec = KeyCodec(definition)
    keys, cells, lengths = b"", b"", b""
    for row in rows:
        known = dict(zip((column.name for column in definition.columns), row, strict=True))
        key = codec.join([known[name] or b"" for name in definition.key])
        keys += key
        lengths += struct.pack(">I", len(key))
        for number, column in enumerate(layout.cells):
            value = known[column.name]
            cell = b"" if value is None else version(7, value)
            cells += cell
            if number >= len(layout.solid):
                lengths += struct.pack(">I", len(cell))
    return Batch(layout, keys, cells, lengths, [])


def in_python(kind: str, value: bytes | None) -> Any:
    """Return the Python value that Arrow makes of a value."""
    if value is None:
        return None
    found = column_type(kind).decode(value)
    if kind == "json":
        return value.decode()
    return str(found) if isinstance(found, UUID) else found


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    return bool(left == right)


@given(filled(), st.data())
@QUICK
def test_rows_are_in_arrow_what_they_are_in_python(table: Any, data: st.DataObject) -> None:
    definition, rows = table
    columns = data.draw(st.permutations(definition.columns))
    chosen = columns[: data.draw(st.integers(1, len(columns)))]
    places = [definition.columns.index(column) for column in chosen]
    for batch in (
        record_batch(chosen, as_select(definition, columns, rows)),
        from_rows(chosen, [[row[place] for place in places] for row in rows]),
    ):
        batch.validate(full=True)
        assert batch.schema == arrow_schema(chosen)
        assert batch.num_rows == len(rows)
        for column, place in zip(chosen, places, strict=True):
            found = batch.column(column.name).to_pylist()
            expected = [in_python(column.type, row[place]) for row in rows]
            assert all(map(same, found, expected)), (column, found, expected)


def as_arrow(columns: Sequence[Column], batch: Batch) -> ArrowBatch:
    """The rows of a batch as columns, in two parts."""
    found = record_batch(columns, batch)
    arrays = [pa.array(batch.keys, pa.binary()), *found.columns]
    names = ["key", *(column.name for column in columns)]
    whole = pa.Table.from_arrays(arrays, names=names)
    half = len(batch) // 2
    parts = pa.concat_tables([whole.slice(0, half), whole.slice(half)])
    return ArrowBatch(Layout(batch.layout.definition, tuple(columns)), parts)


@given(filled(), st.data())
@QUICK
def test_a_batch_of_columns_is_like_one_of_cells(table: Any, data: st.DataObject) -> None:
    definition, rows = table
    # A column may have the name that the keys have in the table.
    first, *others = definition.columns
    renamed = (replace(first, name="key"), *others)
    definition = replace(definition, columns=renamed, key=("key", *definition.key[1:]))
    columns = data.draw(st.permutations(definition.columns))
    cells = as_select(definition, columns, rows)
    batch = as_arrow(columns, cells)
    assert (len(batch), batch.keys, batch.unsettled) == (len(cells), cells.keys, [])
    assert list(batch.rows()) == list(cells.rows())
    for column in columns:
        assert batch.values(column) == list(cells.values(column))
    chosen = columns[: data.draw(st.integers(0, len(columns)))]
    found = record_batch(chosen, batch)
    assert found.schema == record_batch(chosen, cells).schema
    assert found.num_rows == len(cells)
    for column in chosen:
        kind = column_type(column.type)
        assert stored(kind, found.column(column.name)) == batch.values(column)
    assert record_batch(chosen, as_arrow(columns, as_select(definition, columns, []))).num_rows == 0


@given(filled(), st.data())
@QUICK
def test_what_was_read_is_written_as_it_was(table: Any, data: st.DataObject) -> None:
    definition, rows = table
    start = data.draw(st.integers(0, len(rows)))
    batch = record_batch(definition.columns, as_select(definition, definition.columns, rows)).slice(start)
    codec = KeyCodec(definition)
    names = [column.name for column in definition.columns]
    expected = []
    for row in rows[start:]:
        known = dict(zip(names, row, strict=True))
        key = codec.join([known.pop(name) or b"" for name in definition.key])
        expected.append((key, known))
    assert encoded_rows(definition, batch) == expected


def test_a_select_through_arrow(db: Database) -> None:
    key = [Column("site", "str"), Column("number", "int")]
    kinds = ["int", "str", "float", "bool", "datetime", "decimal(5,2)"]
    columns = [
        *(Column(f"solid{place}", kind) for place, kind in enumerate(kinds)),
        *(Column(f"null{place}", kind, nullable=True) for place, kind in enumerate(kinds)),
        Column("added", "int", missing=column_type("int").encode(7)),
        Column("word", "str", missing=b"none"),
    ]
    laid = Laid(db, definition_of(key, columns))
    codec = KeyCodec(laid.definition)
    samples: list[Any] = [-5, "x", -0.5, True, datetime(2020, 1, 1, tzinfo=UTC), Decimal("-1.25")]
    for number in range(50):
        state: dict[str, bytes | None] = {"added": None, "word": b"w" if number % 3 else None}
        for place, (kind, value) in enumerate(zip(kinds, samples, strict=True)):
            state[f"solid{place}"] = column_type(kind).encode(value)
            state[f"null{place}"] = column_type(kind).encode(value) if number % 2 else None
        states: list[State | None] = [state]
        laid.rows[codec.encode((f"s\0{number % 3}", number))] = states
    laid.put()
    (batch,) = laid.steps(laid.select(laid.definition.columns), 100)
    found = record_batch(laid.definition.columns, batch)
    found.validate(full=True)
    assert found.equals(from_rows(laid.definition.columns, [row for _, row in batch.rows()]))
    first = found.to_pylist()[1]
    assert first == {
        "site": "s\x000",
        "number": 3,
        **{f"solid{place}": value for place, value in enumerate(samples)},
        **{f"null{place}": value for place, value in enumerate(samples)},
        "added": 7,
        "word": "none",
    }
    assert record_batch([], batch).num_rows == 50
    assert from_rows([], [(), ()]).num_rows == 2


def table_of(kind: str, nullable: bool = True) -> TableDefinition:
    return TableDefinition("t", columns=(Column("id", "str"), Column("v", kind, nullable)), key=("id",))


def written(kind: str, array: pa.Array) -> list[bytes | None]:
    ids = pa.array([f"r{place}" for place in range(len(array))])
    batch = pa.RecordBatch.from_arrays([ids, array], names=["id", "v"])
    return [cells["v"] for _, cells in encoded_rows(table_of(kind), batch)]


def _floats() -> pa.Array:
    """A negative zero, a NaN that signals, another one, negative infinity."""
    words = ["8000000000000000", "7ff0000000000001", "fff8000000000001", "fff0000000000000"]
    joined = b"".join(bytes.fromhex(word)[::-1] for word in words)
    return pa.Array.from_buffers(pa.float64(), 4, [None, pa.py_buffer(joined)])


TIME = datetime(2020, 1, 1, 12, tzinfo=UTC)
_UUID = "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize(
    ("kind", "array", "expected"),
    [
        ("int", pa.array([1, None, -3], pa.int16()), [1, None, -3]),
        ("int", pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
        ("float", _floats(), [0.0, math.nan, math.nan, -math.inf]),
        ("float", pa.array([1.5, None], pa.float32()), [1.5, None]),
        ("float", pa.array([2**53 + 1]), [2.0**53]),
        ("str", pa.array(["a", None, ""], pa.large_string()), ["a", None, ""]),
        ("str", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        ("bytes", pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        ("datetime", pa.array([TIME, None], pa.timestamp("s", "Europe/Berlin")), [TIME, None]),
        ("datetime", pa.array([TIME], pa.timestamp("ns", "UTC")), [TIME]),
        ("date", pa.array([date(2020, 1, 1)], pa.date64()), [date(2020, 1, 1)]),
        ("decimal(5,2)", pa.array([Decimal("1.500")]), [Decimal("1.5")]),
        ("decimal(20,2)", pa.array([-3, None]), [Decimal(-3), None]),
        ("uuid", pa.array([f"{{{_UUID}}}"]), [UUID(_UUID)]),
        ("json", pa.array(['{"a" : [1, 2]}', None, "null"]), [{"a": [1, 2]}, None, ...]),
        ("bool", pa.nulls(2), [None, None]),
        ("int", pa.Array.from_buffers(pa.int64(), 0, [None, None]), []),
    ],
)
def test_arrow_types_that_are_near_are_taken(kind: str, array: pa.Array, expected: list[Any]) -> None:
    encode = column_type(kind).encode
    wanted = [None if one is None else encode(None if one is ... else one) for one in expected]
    assert written(kind, array) == wanted


@pytest.mark.parametrize(
    ("kind", "array", "why"),
    [
        ("int", pa.array([1, 2**63], pa.uint64()), "does not fit into 64 bits"),
        (
            "decimal(3,1)",
            pa.array([Decimal("1.00"), Decimal("1.23")]),
            "Decimal('1.23') does not fit into 3 digits",
        ),
        ("decimal(3,1)", pa.array([1, 1000]), "1000 does not fit into 3 digits"),
        ("datetime", pa.array([0, 1], pa.timestamp("ns", "UTC")), "nanoseconds"),
        ("datetime", pa.array([0, -(2**62)], pa.timestamp("us", "UTC")), "within the years 1 to 9999"),
        ("date", pa.array([0, 2**30], pa.int32()).cast(pa.date32()), "within the years 1 to 9999"),
        ("uuid", pa.array([None, "x"]), "badly formed"),
        ("uuid", pa.array([None, b"x"]), "16-char"),
        ("json", pa.array(["1", "{"]), "'{' is no JSON"),
        ("json", pa.array(["1", "NaN"]), "the value cannot be written as JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_named(kind: str, array: pa.Array, why: str) -> None:
    with pytest.raises(ValueError, match="t, row id='r1': v: ") as caught:
        written(kind, array)
    assert why in str(caught.value)


def test_nulls_that_cannot_be() -> None:
    batch = pa.RecordBatch.from_pylist([{"id": "a", "v": 1}, {"id": "b", "v": None}])
    with pytest.raises(ValueError, match=r"^t, row id='b': v: the value cannot be null$"):
        encoded_rows(table_of("int", nullable=False), batch)
    batch = pa.RecordBatch.from_pylist([{"id": "a"}, {"id": None}])
    with pytest.raises(ValueError, match=r"^t, row number 1 of the batch: id: the value cannot be null$"):
        encoded_rows(table_of("int"), batch)


def test_columns_that_cannot_be() -> None:
    ids = pa.array(["a"])
    with pytest.raises(UnknownColumn, match="t has no column 'x': it has id, v"):
        encoded_rows(table_of("int"), pa.RecordBatch.from_arrays([ids, ids], names=["id", "x"]))
    with pytest.raises(ConfigurationError, match="t: the column 'id', which is part of the key, is missing"):
        encoded_rows(table_of("str"), pa.RecordBatch.from_arrays([ids], names=["v"]))
    with pytest.raises(ConfigurationError, match="t: the column 'id' occurs twice"):
        encoded_rows(table_of("str"), pa.RecordBatch.from_arrays([ids, ids], names=["id", "id"]))
    for kind, array in (
        ("int", ids),
        ("str", pa.array([1])),
        ("bool", pa.array([1])),
        ("int", pa.array([1.5])),
        ("datetime", pa.array([0], pa.timestamp("us"))),
        ("json", pa.array([[1]])),
    ):
        with pytest.raises(ConfigurationError, match=r"t, column 'v': .*: cast the column to "):
            written(kind, array)
    assert encoded_rows(table_of("int"), pa.RecordBatch.from_arrays([ids], names=["id"])) == [(b"a", {})]


def test_types_as_documented() -> None:
    assert str(arrow_type("datetime")) == "timestamp[us, tz=UTC]"
    assert arrow_type("decimal(5,2)") == pa.decimal128(5, 2)
    assert [str(arrow_type(one)) for one in ("bool", "date", "uuid", "json")] == [
        "bool",
        "date32[day]",
        "string",
        "string",
    ]
    schema = arrow_schema(table_of("int").columns)
    assert [field.nullable for field in schema] == [False, True]


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def refusing(name: str, *others: Any, **more: Any) -> Any:
        if name == "pyarrow":
            raise ImportError("No module named 'pyarrow'")
        return usual(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(ConfigurationError, match="pip install pyarrow numpy"):
        arrow_type("int")
