"""The files of a backup, and its manifest, which names them.

::

    backup-NUMBER-CHECKSUM-….json    a manifest: tables, their tablets, and the files of each
    NUMBER/rows-….parquet            a row set as a base has it for raw tables (key, column, time, value);
                                     the value is the packed version
    NUMBER/marks-…                   the dirty and quarantined cells of a tablet, as compressed JSON

NUMBER is the number of the backup that wrote the file. Later backups name the file again while it is valid.
The manifest is written last, and its name has the checksum of its content, so readers ignore a torn manifest.

A tablet has *full* row sets with all its cells, and then *deltas*. A delta is a row set with the cells that
changed between one backup and the next. If several row sets have the same cell, the version in the last of
these row sets counts. That version may be a deletion.
"""

from __future__ import annotations

import heapq
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from percolator_core.base import row_set
from percolator_core.base.location import Location
from percolator_core.base.manifest import row_set_of
from percolator_core.base.row_set import KEY, RAW_COLUMN, RAW_VALUE, RowSet
from percolator_core.errors import BaseDamaged, PercolatorError
from percolator_core.layout.records import unpack_version
from percolator_core.runtime.batches import batched_by_size
from percolator_core.schema.definitions import TableDefinition
from percolator_core.tables.arrow_values import batch_of, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT: Final = 1
_NAME: Final = re.compile(r"backup-(\d+)-([0-9a-f]{8})-[0-9a-f]{32}\.json")
_RAW: Final = TableDefinition("backup", 1)

_MAGIC: Final = b"PAR1"
"""The first bytes of a Parquet file, which no checksum of a column covers."""

FILE_BYTES: Final = 32 << 20
_BATCH_BYTES: Final = 1 << 20
"""The approximate size of a row set, which is built in memory, and of one of its batches."""

Line: TypeAlias = tuple[bytes, bytes, bytes]
"""A cell in a row set: row key, encoded column, packed version."""


class Mark(NamedTuple):
    """A cell that an observer has still to process: its row key and encoded column.

    ``record`` is the cell's record in the quarantine; None if the cell is not in quarantine.
    """

    observer: str
    row: bytes
    column: bytes
    record: str | None


@dataclass(frozen=True, slots=True)
class MarksFile:
    """A file with ``marks`` marks of a tablet; ``size`` is its size without compression."""

    file: str
    marks: int
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class TabletFiles:
    """The files of a tablet: its row sets, of which the first ``full`` are full, and its marks.

    ``digests`` has a hash of the cells of each row set, so that equal cells are not written again.
    """

    row_sets: tuple[RowSet, ...] = ()
    digests: tuple[str, ...] = ()
    full: int = 0
    marks: MarksFile | None = None

    @property
    def names(self) -> list[str]:
        """The names of the files."""
        return [one.file for one in self.row_sets] + ([self.marks.file] if self.marks else [])

    def with_deltas(self, found: Mapping[str, RowSet]) -> TabletFiles:
        """Return these files and the further row sets ``found``, whose keys are digests."""
        return TabletFiles((*self.row_sets, *found.values()), (*self.digests, *found), self.full, self.marks)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table in a backup: its definition in JSON types, its version in the catalog, and its tablets."""

    definition: Mapping[str, Any]
    version: int
    tablets: tuple[TabletFiles, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup: the namespace ``namespace`` as of ``timestamp`` (microseconds).

    ``history`` is the random name of the namespace's history (`Oracle.history`): a backup of another history
    shares no files with this one. ``chain`` has fields of the active chain's record.
    """

    number: int
    timestamp: int
    namespace: str
    history: str
    chain: Mapping[str, str]
    tables: tuple[TableFiles, ...]

    @property
    def files(self) -> set[str]:
        """The names of all files."""
        return {name for table in self.tables for tablet in table.tablets for name in tablet.names}


def damaged(location: Location, file: str, reason: str) -> PercolatorError:
    """Return the error for a file of a backup that is missing or damaged."""
    return PercolatorError(
        f"the backup at {location.shown} is damaged: {file}: {reason}; restore an earlier one"
    )


def save(location: Location, manifest: Manifest) -> None:
    """Write a manifest, after all its files. Raises StoreUnavailable."""
    content = json.dumps({"format": _FORMAT, **asdict(manifest)}, default=bytes.hex).encode()
    with location.create(f"backup-{manifest.number}-{crc32(content):08x}-{uuid.uuid4().hex}.json") as file:
        file.write(content)


def manifests(location: Location) -> dict[str, int]:
    """Return the names of all manifests with their numbers. Raises StoreUnavailable."""
    return {name: int(match[1]) for name in location.names() if (match := _NAME.fullmatch(name))}


def newest(location: Location, number: int | None = None) -> Manifest | None:
    """Return the newest backup, or the newest one with that number; None if there is no such backup.

    Torn manifests, whose writers died, are ignored. Backups that ran at the same time may have the same
    number: then the one with the latest timestamp is returned. Raises StoreUnavailable.
    """
    names = manifests(location)
    for wanted in sorted({own for own in names.values() if number in {None, own}}, reverse=True):
        some = [load(location, name) for name, own in names.items() if own == wanted]
        found = max(filter(None, some), key=lambda one: one.timestamp, default=None)
        if found is not None:
            return found
    return None


def load(location: Location, name: str) -> Manifest | None:
    """Return the manifest of that name; None if it is torn.

    Raises:
        PercolatorError: a later version of this library wrote it.
        StoreUnavailable: the file cannot be read now.
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    content = location.read(name)
    if f"{crc32(content):08x}" != match[2]:
        return None
    found = json.loads(content)
    if found.pop("format") != _FORMAT:
        raise PercolatorError(f"{name} was written by a later version of this library: use that version")
    tables = tuple(
        TableFiles(one["definition"], one["version"], tuple(map(_tablet, one["tablets"])))
        for one in found.pop("tables")
    )
    return Manifest(**found, tables=tables)


def _tablet(found: dict[str, Any]) -> TabletFiles:
    marks = found["marks"] and MarksFile(**found["marks"])
    row_sets = tuple(map(row_set_of, found["row_sets"]))
    return TabletFiles(row_sets, tuple(found["digests"]), found["full"], marks)


# Cells.


def write_cells(
    location: Location, folder: str, lines: Iterable[Line], known: Mapping[str, RowSet]
) -> dict[str, RowSet]:
    """Write cells, in ascending order of row key and column, into row sets of a bounded size.

    Return the row sets by digest. Those in ``known`` are not written again. Raises StoreUnavailable.
    """
    found: dict[str, RowSet] = {}
    schema = row_set.schema_of(_RAW)
    pieces = batched_by_size(lines, lambda line: sum(map(len, line)), _BATCH_BYTES)
    batches = (_batch(schema, some) for some in pieces)
    more = next(batches, None)
    while more is not None:
        size, some, digest = 0, [], blake2b(digest_size=16)
        while more is not None and size < FILE_BYTES:
            batch, packed = more
            some.append(batch)
            digest.update(packed)
            size += batch.nbytes
            more = next(batches, None)
        name = digest.hexdigest()
        written = known.get(name) or row_set.write(location, folder, some)
        assert written is not None, "no batch is empty"
        found[name] = written
    return found


def _batch(schema: pa.Schema, lines: Sequence[Line]) -> tuple[pa.RecordBatch, bytes]:
    """Return cells as a batch, and as unambiguous bytes for the digest."""
    rows = [(key, column, unpack_version(version).commit_ts, version) for key, column, version in lines]
    parts = [len(part).to_bytes(4, "big") + part for line in lines for part in line]
    return batch_of(schema, rows), b"".join(parts)


def read_cells(location: Location, tablet: TabletFiles) -> Iterator[Line]:
    """Yield the cells of a tablet in the order of row key and column, each with its last version.

    Raises:
        PercolatorError: a file is missing or damaged; restore an earlier backup.
        StoreUnavailable: a file cannot be read now.
    """
    full, deltas = tablet.row_sets[: tablet.full], tablet.row_sets[tablet.full :]
    # The key ranges of full row sets follow each other, so only one of them is in memory at a time.
    streams: list[Iterator[Line]] = [chain.from_iterable(_lines(location, one) for one in full)]
    streams += [_lines(location, one) for one in deltas]
    # If several streams have a cell, the merge yields the version of the last stream last.
    for _, versions in groupby(heapq.merge(*streams, key=itemgetter(0, 1)), itemgetter(0, 1)):
        *_, last = versions
        yield last


def _lines(location: Location, found: RowSet) -> Iterator[Line]:
    """Verify all bytes of a row set, then yield its cells."""
    pa = pyarrow()
    from pyarrow import parquet

    content = memoryview(_verified(location, found.file, lambda one: _is_intact(found, memoryview(one))))
    file = parquet.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
    for group in range(file.num_row_groups):
        columns = file.read_row_group(group, [KEY, RAW_COLUMN, RAW_VALUE])
        for batch in columns.to_batches():
            yield from zip(*(batch.column(place).to_pylist() for place in range(3)), strict=True)


def _is_intact(found: RowSet, content: memoryview) -> bool:
    is_whole = len(content) == found.size and bytes(content[: len(_MAGIC)]) == _MAGIC
    if not is_whole or crc32(content[found.tail :]) != found.checksum:
        return False
    from pyarrow import parquet

    ranges = row_set.chunk_ranges(parquet.read_metadata(pyarrow().BufferReader(content)))
    return all(
        crc32(content[start : start + size]) == found.checksum_of(chunk)
        for chunk, (start, size) in enumerate(ranges)
    )


def _verified(location: Location, file: str, is_right: Callable[[bytes], bool]) -> bytes:
    try:
        return location.read_verified(file, is_right)
    except BaseDamaged as error:
        raise damaged(location, file, error.reason) from None


# Marks.


def write_marks(
    location: Location, folder: str, marks: Iterable[Mark], last: MarksFile | None
) -> MarksFile | None:
    """Write the marks of a tablet to a file, unless the last backup's file ``last`` has the same marks.

    Return the file with the marks, or None if there are no marks. Raises StoreUnavailable.
    """
    lines = [[one.observer, one.row.hex(), one.column.hex(), one.record] for one in sorted(marks)]
    if not lines:
        return None
    content = json.dumps(lines).encode()
    packed = pyarrow().compress(content, codec="zstd", asbytes=True)
    checksum = crc32(packed)
    if last is not None and (last.marks, last.size, last.checksum) == (len(lines), len(content), checksum):
        return last
    name = f"{folder}/marks-{uuid.uuid4().hex}"
    with location.create(name) as file:
        file.write(packed)
    return MarksFile(name, len(lines), len(content), checksum)


def read_marks(location: Location, found: MarksFile | None) -> list[Mark]:
    """Return the marks of a tablet. Raises as `read_cells`."""
    if found is None:
        return []
    packed = _verified(location, found.file, lambda content: crc32(content) == found.checksum)
    lines = json.loads(pyarrow().decompress(packed, found.size, codec="zstd", asbytes=True))
    return [
        Mark(observer, bytes.fromhex(row), bytes.fromhex(column), record)
        for observer, row, column, record in lines
    ]
