"""Row sets: the rows of one tablet in an immutable Parquet file, sorted by row key.

::

    typed table     key  time  c.<column> …     one row for each row; ``time`` is its newest commit
    raw table       key  column  time  value    one row for each cell, in order of key and column

``key`` is the row key as in the store. ``c.<column>`` is named after the column's name in the store, so that
a rename changes no file. Its Arrow type is that of the column, so that other programs can read the file. The
columns of the table's key are in the file, too, in this form.

The file is made for reads of single rows and for scans. It has row groups of a bounded size, a Bloom filter
of the keys of each row group, statistics, and a checksum of each page for other readers. The *tail* is
everything after the last row group: Bloom filters, indexes and the footer. A reader fetches the tail in one
request.

The manifest has checksums of the tail and of each column of each row group, because Parquet's own checksums
leave out the headers of pages. A changed bit in such a header can change values.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from percolator_core.base.location import Location
from percolator_core.runtime.batches import batched
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow_values import arrow_type, batch_of, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

KEY: Final = "key"
TIME: Final = "time"
RAW_COLUMN: Final = "column"
RAW_VALUE: Final = "value"

GROUP_ROWS: Final = 16384
GROUP_BYTES: Final = 8 << 20
"""The limits of a row group: its rows, and its approximate bytes.

A read of one row decodes whole columns of a group. Groups of 16,384 rows are scanned about as fast as groups
of a million (docs/decisions/0020).
"""

FIRST_KEYS: Final = "percolator.first_keys"
"""The footer's entry with the first key of each row group. Parquet's statistics lack keys over 4 KiB."""

_FALSE_POSITIVES: Final = 0.01
_TIMES: Final = "int64"
_CRC: Final = 4


@dataclass(frozen=True, slots=True)
class RowSet:
    """A row set, as a manifest names it.

    ``rows`` counts the rows of the file, ``size`` its bytes. ``low`` and ``high`` are the first and last row
    key, and ``newest`` is the newest commit timestamp. ``tail`` is the position of the tail, ``checksum`` its
    CRC-32. ``checksums`` has the CRC-32 of each column of each row group, four bytes each.
    """

    file: str
    rows: int
    size: int
    low: bytes
    high: bytes
    newest: int
    tail: int
    checksum: int
    checksums: bytes

    def checksum_of(self, chunk: int) -> int:
        """Return the CRC-32 of one column of one row group; ``chunk`` is its number in the file."""
        return int.from_bytes(self.checksums[_CRC * chunk : _CRC * (chunk + 1)], "big")


class BaseRow(NamedTuple):
    """A row as the base has it.

    ``time`` is its newest commit timestamp in microseconds. ``cells`` has the encoded values by the names of
    the columns in the store; a column that is missing there is null. ``times`` has the commit timestamps of
    the cells of a raw table; it is empty for a typed table, which keeps one time for each row.
    """

    key: bytes
    time: int
    cells: Mapping[bytes, bytes]
    times: Mapping[bytes, int]


Delta: TypeAlias = Mapping[bytes, bytes | None]
"""The cells that the store has of a row. They replace the same cells of the base.

They are values by stored column name; None is a deletion.
"""


def column_name(column: Column) -> str:
    """Return the name of a typed table's column in the file."""
    return f"c.{column.stored}"


def schema_of(definition: TableDefinition) -> pa.Schema:
    """Return the schema of the table's row sets. Raises ConfigurationError if pyarrow is not installed."""
    pa = pyarrow()
    key, time = pa.field(KEY, pa.binary(), False), pa.field(TIME, _TIMES, False)
    if definition.is_typed:
        columns = [pa.field(column_name(one), arrow_type(one.type)) for one in definition.columns]
        return pa.schema([key, time, *columns])
    column, value = (pa.field(name, pa.binary(), False) for name in (RAW_COLUMN, RAW_VALUE))
    return pa.schema([key, column, time, value])


def order_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the columns by which a row set is sorted, in the form of `pyarrow.Table.sort_by`."""
    return [(name, "ascending") for name in (KEY, RAW_COLUMN) if name in schema.names]


def batches(definition: TableDefinition, rows: Sequence[BaseRow]) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches for `write`; the rows are in ascending order of their keys.

    Raises:
        ConfigurationError: pyarrow is not installed.
        ValueError: a key is no key of the table.
    """
    as_batch = _typed_batch if definition.is_typed else _raw_batch
    for some in batched(rows, GROUP_ROWS):
        yield as_batch(definition, some)


def _typed_batch(definition: TableDefinition, rows: Sequence[BaseRow]) -> pa.RecordBatch:
    pa = pyarrow()
    from percolator_core.tables.arrow_columns import KeyParts, of_values  # it needs pyarrow

    keys = pa.array([row.key for row in rows], pa.binary())
    parts = KeyParts(definition, keys)
    arrays = [keys, pa.array([row.time for row in rows], _TIMES)]
    for column in definition.columns:
        if column.name in definition.key:
            arrays.append(parts.column(column.name))
        else:
            stored = column.stored.encode()
            values = [row.cells.get(stored) for row in rows]
            arrays.append(of_values(column_type(column.type), values))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(definition))


def _raw_batch(definition: TableDefinition, rows: Sequence[BaseRow]) -> pa.RecordBatch:
    lines = [
        (row.key, column, row.times[column], value)
        for row in rows
        for column, value in sorted(row.cells.items())
    ]
    return batch_of(schema_of(definition), lines)


def write(location: Location, folder: str, batches: Iterable[pa.RecordBatch]) -> RowSet | None:
    """Write a row set into ``folder`` of the location. If there are no rows, write no file and return None.

    The rows of all batches together are in ascending order of key, or of key and column in a raw table.

    Raises:
        ConfigurationError: pyarrow is not installed.
        ValueError: the rows are not in order.
        StoreUnavailable: as `Location.create`. If this call has left a file, nobody will read it.
    """
    pa = pyarrow()
    from pyarrow import parquet

    groups = _row_groups(batches)
    first = next(groups, None)
    if first is None:
        return None
    last, low, newest, first_keys = first, first[KEY][0].as_py(), 0, []
    # The file is made in memory, so that the checksums are those of the written bytes, and an upload is one
    # request.
    memory = pa.BufferOutputStream()
    with parquet.ParquetWriter(memory, first.schema, **_options(first.schema)) as writer:
        for group in chain([first], groups):
            _check_order(None if group is first else last, group)
            writer.write_table(group, row_group_size=len(group))
            newest = max(newest, pa.compute.max(group[TIME]).as_py())
            first_keys.append(group[KEY][0].as_py().hex())
            last = group
        writer.add_key_value_metadata({FIRST_KEYS: json.dumps(first_keys)})
    content = memoryview(memory.getvalue())
    metadata = parquet.read_metadata(pa.BufferReader(content))
    chunks = chunk_ranges(metadata)
    tail = max(start + size for start, size in chunks)
    name = f"{folder}/rows-{uuid.uuid4().hex}.parquet"
    with location.create(name) as file:
        file.write(content)
    return RowSet(
        name,
        metadata.num_rows,
        len(content),
        low,
        last[KEY][-1].as_py(),
        newest,
        tail,
        crc32(content[tail:]),
        b"".join(crc32(content[start : start + size]).to_bytes(_CRC, "big") for start, size in chunks),
    )


def chunk_range(metadata: Any, chunk: int) -> tuple[int, int]:
    """Return the position and size of one column of one row group; ``chunk`` is its number in the file."""
    group, column = divmod(chunk, metadata.num_columns)
    found = metadata.row_group(group).column(column)
    start = found.data_page_offset
    if found.dictionary_page_offset:
        start = min(start, found.dictionary_page_offset)
    return start, found.total_compressed_size


def chunk_ranges(metadata: Any) -> list[tuple[int, int]]:
    """Return `chunk_range` of each column of each row group."""
    return [chunk_range(metadata, chunk) for chunk in range(metadata.num_row_groups * metadata.num_columns)]


def _options(schema: pa.Schema) -> dict[str, Any]:
    from pyarrow import parquet

    # Only texts have a dictionary: a key occurs once, numbers gain nothing, and raw values may be too long.
    plain = [KEY, RAW_VALUE]
    texts = [one.name for one in schema if one.name not in plain and one.type in {"string", "binary"}]
    return {
        "compression": "zstd",
        "use_dictionary": texts,
        "column_encoding": {KEY: "DELTA_BYTE_ARRAY"},
        "bloom_filter_options": {KEY: {"ndv": GROUP_ROWS, "fpp": _FALSE_POSITIVES}},
        "sorting_columns": parquet.SortingColumn.from_ordering(schema, order_of(schema)),
        "write_page_index": True,
        "write_page_checksum": True,
    }


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut and join batches to the size of row groups."""
    pa = pyarrow()
    waiting: list[Any] = []
    rows = size = 0
    for whole in batches:
        batch = whole
        while len(batch):
            a_row = max(1, batch.nbytes // len(batch))
            room = max(1, min(GROUP_ROWS - rows, (GROUP_BYTES - size) // a_row))
            part, batch = batch.slice(0, room), batch.slice(room)
            waiting.append(part)
            rows, size = rows + len(part), size + a_row * len(part)
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _check_order(before: pa.Table | None, group: pa.Table) -> None:
    """Raise ValueError unless the rows of ``group`` ascend and come after the last row of ``before``."""
    pa = pyarrow()
    order = [name for name, _ in order_of(group.schema)]
    rows = group.select(order)
    if before is not None:
        rows = pa.concat_tables([before.select(order).slice(len(before) - 1), rows])
    ascends, same = pa.scalar(False), pa.scalar(True)
    for name in order:
        left, right = rows[name].slice(0, len(rows) - 1), rows[name].slice(1)
        ascends = pa.compute.or_(ascends, pa.compute.and_(same, pa.compute.less(left, right)))
        same = pa.compute.and_(same, pa.compute.equal(left, right))
    if not pa.compute.all(ascends, min_count=0).as_py():
        raise ValueError("the rows of a row set must be in ascending order of key, each once")
