"""The base of a tablet has the rows that were written last, through removals, compactions and new columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.base import row_set
from percolator_core.base.cache import ByteCache
from percolator_core.base.location import Location
from percolator_core.base.manifest import Entry, Manifest, Removed
from percolator_core.base.row_set import BaseRow
from percolator_core.base.tablet import TabletBase
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import Version
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from tests.schema.values import QUICK
from tests.tables.test_arrow import filled

FOLDER = "t/0"
RAW = TableDefinition("raw", 1)
Rows = dict[bytes, tuple[int, dict[bytes, bytes]]]


def row_of(definition: TableDefinition, key: bytes, time: int, cells: dict[bytes, bytes]) -> BaseRow:
    return BaseRow(key, time, cells, {} if definition.is_typed else dict.fromkeys(cells, time))


def entry_of(location: Location, definition: TableDefinition, rows: Rows) -> Entry:
    """A row set of rows: by key, the time and the cells by the column's name in the store."""
    whole = [row_of(definition, key, *rows[key]) for key in sorted(rows)]
    found = row_set.write(location, FOLDER, row_set.batches(definition, whole))
    assert found is not None
    return Entry(found)


def base_of(location: Location, definition: TableDefinition, entries: list[Entry]) -> TabletBase:
    return TabletBase(definition, location, Manifest(1, 99, tuple(entries)), ByteCache(1 << 20))


def replaced(
    location: Location, entries: list[Entry], definition: TableDefinition, keys: set[bytes]
) -> list[Entry]:
    """The entries, in which the rows of these keys are removed."""
    changed = []
    for entry in entries:
        base = base_of(location, definition, [Entry(entry.row_set)])
        [reader] = base.readers
        lines = [key for batch in reader.batches(b"", None, []) for key in batch.column("key").to_pylist()]
        gone = [place for place, key in enumerate(lines) if key in keys]
        if entry.removed is not None:
            gone = sorted({*gone, *entry.removed.load(location).tolist()})
        found = Removed.write(location, FOLDER, gone) if gone else None
        changed.append(Entry(entry.row_set, found))
    return changed


def check(base: TabletBase, expected: Rows) -> None:
    rows = [row_of(base.definition, key, *expected[key]) for key in sorted(expected)]
    assert list(base.rows(b"", None)) == rows
    assert list(base.rows(b"", None, reverse=True)) == rows[::-1]
    columns = [b"no such column", *sorted({column for row in rows for column in row.cells})]
    marker = [MARKER] if base.definition.is_typed else []
    for row in rows:
        assert base.row(row.key) == row
        cells = [*(b"" for _ in marker), *map(row.cells.get, columns)]
        assert base.values(row.key, [*marker, *columns]) == cells
        assert base.held_only.values(row.key, [*marker, *columns]) == cells
        times = [row.times.get(column, row.time) for column in [*marker, *columns]]
        assert base.versions(row.key, [*marker, *columns]) == [
            None if value is None else Version(time, time, value)
            for value, time in zip(cells, times, strict=True)
        ]
        assert row.key + b"\0" in expected or base.row(row.key + b"\0") is None
    if rows:
        middle = rows[len(rows) // 2].key
        assert list(base.rows(middle, None)) == [row for row in rows if row.key >= middle]
        assert list(base.rows(b"", middle)) == [row for row in rows if row.key < middle]


def compact(location: Location, base: TabletBase) -> TabletBase:
    found = row_set.write(location, FOLDER, base.compacted())
    return base_of(location, base.definition, [] if found is None else [Entry(found)])


@given(filled(), st.data())
@QUICK
def test_typed_rows_through_removals_and_compaction(
    tmp_path_factory: pytest.TempPathFactory, table: Any, data: st.DataObject
) -> None:
    definition, drawn = table
    codec = KeyCodec(definition)
    location = Location(str(tmp_path_factory.mktemp("base")))
    entries: list[Entry] = []
    expected: Rows = {}
    for number in range(data.draw(st.integers(1, 3))):
        rows: Rows = {}
        for row in data.draw(st.lists(st.sampled_from(drawn), max_size=4)) if drawn else ():
            known = {one.stored.encode(): value for one, value in zip(definition.columns, row, strict=True)}
            key = codec.join([known.pop(name.encode()) or b"" for name in definition.key])
            rows[key] = number, {name: value for name, value in known.items() if value is not None}
        deleted = (
            set(data.draw(st.lists(st.sampled_from(sorted(expected)), max_size=2))) if expected else set()
        )
        entries = replaced(location, entries, definition, {*rows, *deleted})
        if rows:
            entries.append(entry_of(location, definition, rows))
        expected = {key: row for key, row in expected.items() if key not in deleted} | rows
    base = base_of(location, definition, entries)
    check(base, expected)
    check(compact(location, base), expected)


raw_cells = st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.binary(max_size=3), min_size=1)


@given(st.lists(st.dictionaries(st.binary(max_size=2), raw_cells, max_size=4), min_size=1, max_size=3))
@QUICK
def test_raw_rows_through_removals_and_compaction(
    tmp_path_factory: pytest.TempPathFactory, flushes: list[dict[bytes, dict[bytes, bytes]]]
) -> None:
    location = Location(str(tmp_path_factory.mktemp("base")))
    entries: list[Entry] = []
    expected: Rows = {}
    for number, flush in enumerate(flushes):
        rows = {key: (number, cells) for key, cells in flush.items()}
        entries = replaced(location, entries, RAW, set(rows))
        if rows:
            entries.append(entry_of(location, RAW, rows))
        expected |= rows
    base = base_of(location, RAW, entries)
    check(base, {key: (time, dict(sorted(cells.items()))) for key, (time, cells) in expected.items()})
    check(compact(location, base), expected)
    for key, (_, cells) in expected.items():
        found = base.row(key, [b"a"])
        assert found is not None
        assert found.cells == {column: value for column, value in cells.items() if column == b"a"}


def test_columns_that_come_and_go(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    key, int_of = Column("id", "int"), column_type("int").encode
    before = TableDefinition("t", 1, columns=(key, Column("old", "str"), Column("name", "str")), key=("id",))
    row = int_of(1), (5, {b"old": b"o", b"name": b"n"})
    entries = [entry_of(location, before, dict([row]))]
    renamed = Column("title", "str", stored="name")
    after = TableDefinition(
        "t", 1, columns=(key, renamed, Column("new", "int", True)), key=("id",), retired=("old",)
    )
    entries.append(entry_of(location, after, {int_of(2): (6, {b"name": b"m", b"new": int_of(7)})}))
    base = base_of(location, after, entries)
    expected: Rows = {int_of(1): (5, {b"name": b"n"}), int_of(2): (6, {b"name": b"m", b"new": int_of(7)})}
    check(base, expected)
    whole = compact(location, base)
    check(whole, expected)
    [reader] = whole.readers
    assert reader.columns(0, ["c.old"]) == {}
    found = base.row(int_of(2), [b"new"])
    assert found is not None
    assert found.cells == {b"new": int_of(7)}


def test_a_compaction_keeps_the_order_of_many_row_groups(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    count = 3 * row_set.GROUP_ROWS
    rows = {b"%08d" % number: (1, {b"c": b"%d" % number}) for number in range(count)}
    parts: list[Rows] = [{key: row for key, row in rows.items() if int(key) % 3 == part} for part in range(3)]
    base = base_of(location, RAW, [entry_of(location, RAW, part) for part in parts])
    assert base.manifest.height == 3
    whole = compact(location, base)
    assert whole.manifest.height == 1
    assert list(whole.rows(b"", None)) == [row_of(RAW, key, *row) for key, row in rows.items()]
    assert whole.row(b"%08d" % 777) == row_of(RAW, b"%08d" % 777, *rows[b"%08d" % 777])
