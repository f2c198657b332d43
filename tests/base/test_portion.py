"""Rows of a flush, converted column by column, are those that are converted one by one."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.base import row_set
from percolator_core.base.portion import Portion, repeated
from percolator_core.base.row_set import BaseRow
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import pack_version
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.scripts.replies import ColdRows
from percolator_core.tables.arrow_columns import offsets_of
from tests.schema.values import QUICK
from tests.tables.test_arrow import filled

RAW = TableDefinition("raw", 1)

Versions = Mapping[bytes, tuple[int, bytes | None]]
"""By column, the commit timestamp and the value; None is a deletion."""


def step(rows: Sequence[tuple[bytes, Versions]]) -> ColdRows:
    """The reply of cold.lua with these rows."""
    columns: dict[bytes, int] = {}
    cells, versions = b"", b""
    for _, found in rows:
        for column, (time, value) in found.items():
            packed = pack_version(time, time - 1, value)
            cells += struct.pack(">II", columns.setdefault(column, len(columns)), len(packed))
            versions += packed
    sizes = b"".join(struct.pack(">III", len(key), len(found), len(found)) for key, found in rows)
    return ColdRows(b"", b"1 1", 0, list(columns), b"".join(key for key, _ in rows), versions, sizes, cells)


def portion(rows: Sequence[tuple[bytes, Versions]], cuts: Sequence[int]) -> Portion:
    """The rows in steps that end at ``cuts``."""
    bounds = sorted({0, len(rows), *(cut % len(rows) for cut in cuts)})
    return Portion([step(rows[low:high]) for low, high in pairwise(bounds)])


def whole(key: bytes, versions: Versions, *, typed: bool) -> BaseRow:
    time = max(time for time, _ in versions.values())
    cells = {column: value for column, (_, value) in versions.items() if value is not None}
    cells.pop(MARKER, None)
    times = {} if typed else {column: versions[column][0] for column in cells}
    return BaseRow(key, time, cells, times)


def compare(
    definition: TableDefinition, rows: Sequence[tuple[bytes, Versions]], cuts: list[int], chance: Any
) -> None:
    found = portion(rows, cuts)
    every = [whole(key, versions, typed=definition.is_typed) for key, versions in rows]
    special = [number for number in range(len(rows)) if chance.random() < 0.3]
    merged = [every[number] for number in special]
    made = pa.Table.from_batches(found.batches(definition, special, merged), row_set.schema_of(definition))
    expected = row_set.batches(definition, every)
    same = pa.Table.from_batches(expected, row_set.schema_of(definition))
    # NaN equals nothing, so floats are compared by their bits.
    assert [_bits(column) for column in made.columns] == [_bits(column) for column in same.columns]
    assert [found.versions(number) for number in range(len(rows))] == [
        {column: pack_version(time, time - 1, value) for column, (time, value) in versions.items()}
        for _, versions in rows
    ]


def _bits(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_floating(column.type):
        column = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    found: list[Any] = column.to_pylist()
    return found


@given(filled(), st.lists(st.integers(0, 50), max_size=3), st.randoms())
@QUICK
def test_typed_rows_of_every_type(table: Any, cuts: list[int], chance: Any) -> None:
    definition, drawn = table
    codec = KeyCodec(definition)
    rows: dict[bytes, Versions] = {}
    for position, row in enumerate(drawn, 2):
        known = dict(zip([column.name for column in definition.columns], row, strict=True))
        key = codec.join([known.pop(name) or b"" for name in definition.key])
        cells = [(name.encode(), value) for name, value in known.items() if value is not None]
        cells += [(b"dropped", b"x"), (MARKER, b"")][chance.randrange(2) :]
        chance.shuffle(cells)
        rows[key] = {column: (position + chance.randrange(5), value) for column, value in cells}
    if rows:
        compare(definition, sorted(rows.items()), cuts, chance)


@given(
    st.dictionaries(
        st.binary(min_size=1, max_size=3),
        st.dictionaries(
            st.sampled_from([b"a", b"b", b"a\0", b"\xc3\xbf", b"long"]),
            st.tuples(st.integers(2, 2**53 - 1), st.binary(max_size=5)),
            min_size=1,
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.integers(0, 50), max_size=3),
    st.randoms(),
)
@QUICK
def test_raw_rows(rows: dict[bytes, Versions], cuts: list[int], chance: Any) -> None:
    compare(RAW, sorted(rows.items()), cuts, chance)


def test_deletions_and_missing_markers_are_found() -> None:
    rows: list[tuple[bytes, Versions]] = [
        (b"a", {MARKER: (5, b""), b"v": (5, b"1")}),
        (b"b", {b"v": (5, None), MARKER: (5, b"")}),
        (b"c", {b"v": (5, b"")}),
        (b"d", {b"v": (5, None), b"w": (5, None)}),
    ]
    found = portion(rows, [2])
    assert np.array_equal(found.deleting(), [1, 3])
    assert np.array_equal(found.without_marker(), [2, 3])
    assert np.array_equal(portion(rows[2:], []).without_marker(), [0, 1])
    found.staying.add(1)
    assert list(found.steps(200)) == [[b"a", 2, b"c", 1, b"d", 2]]


def test_what_a_raw_table_repeats_is_counted() -> None:
    rows: list[tuple[bytes, Versions]] = [
        (b"abc", {b"v": (5, b"1"), b"long": (5, b"1")}),
        (b"d", {b"long": (5, b"")}),
    ]
    assert repeated(step(rows)) == 2 * 3 + 1 + 1 + 4 + 4


def test_too_many_bytes_for_an_arrow_column_are_refused() -> None:
    assert offsets_of(np.array([2**31 - 2, 1])).tolist() == [0, 2**31 - 2, 2**31 - 1]
    with pytest.raises(ValueError, match="2 GiB"):
        offsets_of(np.array([2**31 - 1, 1]))
