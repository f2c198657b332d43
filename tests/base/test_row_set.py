"""Rows come out of a row set as they went in; damage is reported and never read past."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from percolator_core.base import manifest as manifests
from percolator_core.base import row_set
from percolator_core.base.cache import ByteCache
from percolator_core.base.location import Location
from percolator_core.base.manifest import Entry, Manifest, Removed
from percolator_core.base.reader import RowSetReader, Span
from percolator_core.base.row_set import KEY, BaseRow, RowSet
from percolator_core.errors import BaseDamaged
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow_columns import encoded
from tests.schema.values import QUICK
from tests.tables.test_arrow import filled

FOLDER = "t/0"
INT = column_type("int").encode
TYPED = TableDefinition("t", 1, columns=(Column("id", "int"), Column("name", "str", True)), key=("id",))
RAW = TableDefinition("raw", 1)


def reader_of(location: Location, found: RowSet | None, gone: Removed | None = None) -> RowSetReader:
    assert found is not None
    return RowSetReader(location, Entry(found, gone), ByteCache(64 << 20))


def numbered(location: Location, keys: Sequence[int]) -> RowSet:
    """A row set of typed rows, each named after its key."""
    rows = [BaseRow(INT(key), 9, {b"name": b"name of %d" % key}, {}) for key in keys]
    found = row_set.write(location, FOLDER, row_set.batches(TYPED, rows))
    assert found is not None
    return found


def name_of(reader: RowSetReader, key: int) -> str | None:
    spans = reader.find(INT(key))
    if not spans:
        return None
    [span] = spans
    assert span.stop == span.start + 1
    found: str = reader.columns(span.group, ["c.name"])["c.name"][span.start].as_py()
    return found


@given(filled())
@QUICK
def test_typed_rows_of_every_type_come_back(tmp_path_factory: pytest.TempPathFactory, table: Any) -> None:
    definition, drawn = table
    codec = KeyCodec(definition)
    names = [column.name for column in definition.columns]
    rows = {}
    for row in drawn:
        known = dict(zip(names, row, strict=True))
        rows[codec.join([known[name] or b"" for name in definition.key])] = known
    keys = sorted(rows)
    location = Location(str(tmp_path_factory.mktemp("base")))
    whole = [
        BaseRow(
            key,
            position,
            {name.encode(): value for name, value in rows[key].items() if value is not None},
            {},
        )
        for position, key in enumerate(keys)
    ]
    found = row_set.write(location, FOLDER, row_set.batches(definition, whole))
    if not keys:
        assert found is None
        assert location.names() == []
        return
    assert found is not None
    assert (found.rows, found.low, found.high, found.newest) == (len(keys), keys[0], keys[-1], len(keys) - 1)
    reader = reader_of(location, found)
    for position, key in enumerate(keys):
        assert reader.find(key) == [Span(0, position, position + 1)]
        assert reader.find(key + b"\0") == []
    for column in definition.columns:
        [array] = reader.columns(0, [row_set.column_name(column)]).values()
        kind = column_type(column.type)
        assert encoded(kind, column.nullable, array) == [rows[key][column.name] for key in keys]


def test_rows_are_found_across_row_groups(location: Location) -> None:
    keys = range(0, 3 * row_set.GROUP_ROWS, 2)
    reader = reader_of(location, numbered(location, keys))
    for key in [*random.Random(1).sample(range(len(keys) * 2), 300), 0, keys[-1]]:
        assert name_of(reader, key) == (None if key % 2 else f"name of {key}")
    assert name_of(reader, -1) is None
    assert name_of(reader, keys[-1] + 2) is None


def spy_on_reads(location: Location, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the reads from now on."""
    sizes = []

    def spied(name: str, start: int, size: int) -> bytes:
        sizes.append(size)
        return Location.read_at(location, name, start, size)

    monkeypatch.setattr(location, "read_at", spied)
    return sizes


def test_an_absent_key_seldom_costs_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location, cache = Location(str(tmp_path)), ByteCache[Any](64 << 20)
    reader = RowSetReader(location, Entry(numbered(location, range(0, 20_000, 2))), cache)
    asked = range(1, 19_999, 2)
    assert len(reader.first_keys) == 1  # the tail has been read
    read = spy_on_reads(location, monkeypatch)
    for key in asked:
        assert not reader.find(INT(key))
        cache.forget(lambda kept: "tail" in str(kept))  # keys that are in memory need no filter
    assert 0 < len(read) <= 0.01 * len(asked)


@pytest.mark.parametrize(("width", "columns", "requests"), [(9, 3, 1), (200, 2, 2), (200, 3, 1)])
def test_neighbours_in_the_file_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, columns: int, requests: int
) -> None:
    names = ["c.first", "c.last", "c.middle"]
    values = [Column(name.removeprefix("c."), "bytes") for name in ("first", "middle", "last")]
    definition = TableDefinition("t", 1, columns=(Column("id", "int"), *values), key=("id",))
    random_bytes = random.Random(1).randbytes
    rows = [
        BaseRow(INT(key), 9, {b"first": b"f", b"middle": random_bytes(width), b"last": b"l"}, {})
        for key in range(1000)
    ]
    location = Location(str(tmp_path))
    reader = reader_of(location, row_set.write(location, FOLDER, row_set.batches(definition, rows)))
    assert len(reader.first_keys) == 1
    read = spy_on_reads(location, monkeypatch)
    batch = reader.read(0, names[:columns])
    assert batch.num_rows == 1000
    assert len(read) == requests


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0, None), (1001, 1003), (5, 39_999), (40_000, None), (9, 9)])
def test_a_range_has_its_rows_in_order(tmp_path: Path, low: int, high: int | None, reverse: bool) -> None:
    location = Location(str(tmp_path))
    keys = range(40_000)
    gone = sorted(random.Random(2).sample(keys, 7000))
    reader = reader_of(location, numbered(location, keys), Removed.write(location, FOLDER, gone))
    batches = reader.batches(INT(low), None if high is None else INT(high), ["c.id"], reverse=reverse)
    found = [key for batch in batches for key in batch.column("c.id").to_pylist()]
    expected = sorted(set(keys[low:high]) - set(gone), reverse=reverse)
    assert found == expected
    assert all(bool(reader.find(INT(key))) == (key not in gone) for key in range(0, 40_000, 777))


def test_wide_rows_are_in_small_row_groups(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    some = random.Random(3)
    names = [some.randbytes(200_000).hex().encode() for _ in range(100)]
    rows = [BaseRow(INT(key), 9, {b"name": name}, {}) for key, name in enumerate(names)]
    reader = reader_of(location, row_set.write(location, FOLDER, row_set.batches(TYPED, rows)))
    groups = {reader.find(INT(key))[0].group for key in range(100)}
    assert 4 <= len(groups) <= 10
    assert name_of(reader, 99) == names[99].decode()


def test_cells_of_a_raw_row_are_found_across_row_groups(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    first, whole = range(7, row_set.GROUP_ROWS), range(row_set.GROUP_ROWS)
    rows = []
    for row, columns in enumerate((first, whole, whole)):
        cells = {b"column %06d" % column: b"%d" % column for column in columns}
        rows.append(BaseRow(b"row %d" % row, 5, cells, dict.fromkeys(cells, 5)))
    reader = reader_of(location, row_set.write(location, FOLDER, row_set.batches(RAW, rows)))
    for row, count in ((0, row_set.GROUP_ROWS - 7), (1, row_set.GROUP_ROWS), (2, row_set.GROUP_ROWS)):
        spans = reader.find(b"row %d" % row)
        assert sum(span.stop - span.start for span in spans) == count
        values = []
        for group, start, stop in spans:
            values += reader.columns(group, ["value"])["value"][start:stop].to_pylist()
        assert values == [b"%d" % column for column in range(row_set.GROUP_ROWS - count, row_set.GROUP_ROWS)]


@pytest.mark.parametrize("keys", [[2, 1], [1, 1], [*range(1500), 1499]])
def test_rows_out_of_order_are_refused(tmp_path: Path, keys: list[int]) -> None:
    location = Location(str(tmp_path))
    with pytest.raises(ValueError, match="ascending order"):
        numbered(location, keys)
    assert location.names() == []


def test_a_row_group_that_repeats_the_last_key_of_the_one_before_is_refused(tmp_path: Path) -> None:
    keys = [*range(row_set.GROUP_ROWS), row_set.GROUP_ROWS - 1]
    with pytest.raises(ValueError, match="ascending order"):
        numbered(Location(str(tmp_path)), keys)


def test_a_column_that_the_file_does_not_have(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    reader = reader_of(location, numbered(location, range(3)))
    assert reader.columns(0, ["c.later"]) == {}
    [batch] = reader.batches(b"", None, ["c.later", "c.name"])
    assert batch.schema.names == [KEY, "c.name"]


def test_a_manifest_comes_back_and_knows_its_files_and_height(location: Location) -> None:
    sets = [numbered(location, range(start, start + 10)) for start in (0, 20, 5)]
    gone = Removed.write(location, FOLDER, [3])
    manifest = Manifest(7, 99, (Entry(sets[0], gone), Entry(sets[1]), Entry(sets[2])))
    name = manifests.write(location, FOLDER, manifest)
    assert manifests.load(location, name) == manifest
    assert sorted({*manifest.files, name}) == location.names()
    assert manifest.height == 2
    assert Manifest(8, 99).height == 0
    assert Manifest(8, 99, (Entry(sets[0]), Entry(sets[1]))).height == 1


def test_a_changed_bit_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    """Every bit of the pages and their headers, and some of the tail, whose checksum is one number."""
    location = Location(str(tmp_path))
    found = numbered(location, range(3))
    path = tmp_path / found.file
    whole = path.read_bytes()
    said, names = [], ["name of 0", "name of 1", "name of 2", None]
    for position in [*range(found.tail), *range(found.tail, found.size, 50)]:
        for bit in range(8):
            content = bytearray(whole)
            content[position] ^= 1 << bit
            path.write_bytes(content)
            reader = reader_of(location, found)
            try:
                assert [name_of(reader, key) for key in range(4)] == names
            except BaseDamaged as error:
                said.append(str(error))
    # The columns that are read, key and name, are at least a half of the file.
    assert len(said) > 8 * found.tail / 2
    assert all(found.file in message and "restore" in message for message in said)


def read(location: Location, name: str) -> list[Span]:
    """Find a removed row, by way of the manifest."""
    [entry] = manifests.load(location, name).entries
    return RowSetReader(location, entry, ByteCache(1 << 20)).find(INT(3))


@pytest.mark.parametrize("size", [0, 5, -1])
def test_a_torn_or_missing_file_is_damage(location: Location, size: int) -> None:
    found = numbered(location, range(100))
    gone = Removed.write(location, FOLDER, [3])
    name = manifests.write(location, FOLDER, Manifest(1, 9, (Entry(found, gone),)))
    for file in (found.file, gone.file, name):
        content = location.read(file)
        location.remove(file)
        if size:
            with location.create(file) as stream:
                stream.write(content[:size])
        with pytest.raises(BaseDamaged, match=file) as damaged:
            read(location, name)
        assert "?" not in str(damaged.value)  # options may contain keys
        with location.create(file) as stream:
            stream.write(content)
    assert read(location, name) == []
