"""Reads of row sets: single rows by key, and ranges of rows.

To read a row, a reader finds the row group by the groups' first keys, asks the group's Bloom filter, and
decodes the needed columns of this group. The first keys and the filters are in the tail of the file. Tails
and decoded columns are kept in a cache that all row sets of a client share.
"""

from __future__ import annotations

import json
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from percolator_core.base.bloom import BloomFilter
from percolator_core.base.cache import ByteCache
from percolator_core.base.columns import Keys, Values
from percolator_core.base.location import Location, reason_of
from percolator_core.base.manifest import Entry
from percolator_core.base.row_set import FIRST_KEYS, KEY, chunk_range
from percolator_core.errors import BaseDamaged
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

    from percolator_core.base.manifest import Positions

_TAIL_OBJECTS: Final = 4
"""Estimated memory of an opened tail, as a multiple of its bytes. The parsed footer has many objects."""

_GAP: Final = 1 << 16
"""Column chunks are read in one request if at most this many bytes are between them."""


class Span(NamedTuple):
    """The rows of one key in the row group ``group``: the positions from ``start`` to below ``stop``.

    The file of a typed table has one row for each key; the file of a raw table has one row for each cell.
    """

    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Tail:
    """The parsed tail of a row set: the columns' positions by name, and the rows before each row group."""

    metadata: Any
    numbers: Mapping[str, int]
    first_keys: Sequence[bytes]
    rows_before: Sequence[int]
    filters: Sequence[BloomFilter]


class RowSetReader:
    """Reads one row set of a manifest. Threads may share it."""

    def __init__(self, location: Location, entry: Entry, cache: ByteCache[Any]) -> None:
        self.entry = entry
        self._location = location
        self._file = entry.row_set.file
        self._low, self._high = entry.row_set.low, entry.row_set.high
        self._cache = cache

    @property
    def first_keys(self) -> Sequence[bytes]:
        """The first key of each row group. Raises as `find`."""
        return self._tail().first_keys

    def about(self, low: bytes, high: bytes | None) -> int:
        """Return the approximate number of rows from key ``low`` to below ``high``. Raises as `find`."""
        rows = self.entry.row_set.rows
        if self._high < low or (high is not None and self._low >= high):
            return 0
        if low <= self._low and (high is None or self._high < high):
            return rows
        first_keys = self.first_keys
        groups = bisect_left(first_keys, high or self._high) - max(0, bisect_right(first_keys, low) - 1)
        return max(1, rows * groups // len(first_keys))

    def find(self, key: bytes) -> list[Span]:
        """Return the spans of a row key, one for each row group that has it; none if the row was removed.

        Raises:
            BaseDamaged: the file is missing or damaged.
            StoreUnavailable: as `Location.open`.
        """
        if not self._low <= key <= self._high:
            return []
        tail = self._tail()
        first_keys, spans = tail.first_keys, []
        last = bisect_right(first_keys, key)
        # If the key is the first one of a row group, the row may begin at the end of the previous group.
        first = bisect_left(first_keys, key, 0, last) - 1
        for group in range(max(first, 0), last):
            keys: Keys | None = self._cache.held((self._file, group))
            if keys is None:
                if not tail.filters[group].may_have(key):
                    continue
                keys = self.keys(group)
            start = keys.find(key)
            if start < 0 or (self.entry.removed and self._is_removed(tail.rows_before[group] + start)):
                continue
            stop = start + 1
            if stop < len(keys) and keys[stop] == key:
                stop = bisect_right(keys, key, stop)
            spans.append(Span(group, start, stop))
        return spans

    def keys(self, group: int) -> Keys:
        """Return the keys of a row group. Raises as `find`."""

        def load() -> Keys:
            return Keys(self.read(group, (KEY,)).column(0))

        found: Keys = self._cache.get((self._file, group), load, lambda one: one.size)
        return found

    def positions(self, spans: Sequence[Span]) -> Iterator[int]:
        """Yield the positions of rows in the whole row set. Raises as `find`."""
        for group, start, stop in spans:
            before = self._tail().rows_before[group]
            yield from range(before + start, before + stop)

    def columns(self, group: int, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return columns of a row group by name, without columns that the file lacks. Raises as `find`."""
        values = self.values(group, [name for name in names if name != KEY])
        found = {name: one.array for name, one in values.items()}
        if KEY in names:
            found[KEY] = self.keys(group).array
        return found

    def values(self, group: int, names: Sequence[str]) -> Mapping[str, Values]:
        """Return columns, as `columns` does, but for reads of single values, and without the keys.

        Columns that are not in the cache are read together. Raises as `find`.
        """
        file = self._file
        found: dict[str, Any] = {name: self._cache.held((file, group, name)) for name in names}
        if None not in found.values():
            return found
        numbers = self._tail().numbers
        wanted = [(file, group, name) for name in found if name in numbers]

        def load(missing: Iterable[Any]) -> dict[Hashable, Values]:
            batch = self.read(group, [name for _, _, name in missing])
            return {(file, group, one.name): Values(batch.column(one.name)) for one in batch.schema}

        read = self._cache.get_all((file, group, "columns"), wanted, load, lambda one: one.size)
        return {name: read[file, group, name] for _, _, name in wanted}

    def batches(
        self, low: bytes, high: bytes | None, columns: Sequence[str], *, reverse: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from key ``low`` to below ``high``, a batch for each row group.

        The batches have the keys, and those ``columns`` that the row set has. With ``reverse``, the last rows
        come first. Raises as `find`, also during the iteration.
        """
        pa = pyarrow()
        groups = self.groups(low, high)
        for group in reversed(groups) if reverse else groups:
            if not len(group):
                continue
            batch = pa.RecordBatch.from_pydict(group.columns(tuple(dict.fromkeys((KEY, *columns)))))
            yield batch.take(pa.array(range(len(batch) - 1, -1, -1))) if reverse else batch

    def groups(self, low: bytes, high: bytes | None) -> list[RowGroup]:
        """Return the row groups that may have rows from key ``low`` to below ``high``. Raises as `find`."""
        if self._high < low or (high is not None and self._low >= high):
            return []
        tail = self._tail()
        first = max(0, bisect_left(tail.first_keys, low) - 1)
        last = len(tail.first_keys) if high is None else bisect_left(tail.first_keys, high)
        return [RowGroup(self, tail, group, low, high) for group in range(first, last)]

    def read(self, group: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Read and verify those columns of a row group that the row set has. Raises as `find`."""
        pa = pyarrow()
        from pyarrow import parquet

        tail = self._tail()
        numbers = [tail.numbers[name] for name in columns if name in tail.numbers]
        chunks = [group * len(tail.numbers) + number for number in numbers]
        # Pages of this memory that are never written cost nothing. The memory is allocated before the block
        # that reports errors as damage: a lack of memory is not damage.
        file = mmap.mmap(-1, self.entry.row_set.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with self._reporting_damage():
            self._fetch(file, [(chunk, *chunk_range(tail.metadata, chunk)) for chunk in sorted(chunks)])
            found = parquet.ParquetFile(pa.BufferReader(pa.py_buffer(file)), metadata=tail.metadata)
            table = found.read_row_group(group, columns=list(columns), use_threads=False)
            if len(table) != tail.metadata.row_group(group).num_rows:
                raise self._damaged("a row group has another number of rows than its footer says")
        [batch] = table.combine_chunks().to_batches()
        return batch

    def _fetch(self, file: mmap.mmap, chunks: Iterable[tuple[int, int, int]]) -> None:
        """Fetch and verify chunks, and write them to their places in ``file``; all other bytes stay zeros."""
        for some in _together(chunks):
            begin, end = some[0][1], some[-1][1] + some[-1][2]
            content = self._location.read_at(self._file, begin, end - begin)
            for chunk, start, size in some:
                part = memoryview(content)[start - begin : start - begin + size]
                if crc32(part) != self.entry.row_set.checksum_of(chunk):
                    raise self._damaged(f"the checksum of part {chunk} is wrong")
            file[begin:end] = content

    def _tail(self) -> _Tail:
        key = self._file, "tail"
        found: _Tail | None = self._cache.held(key)
        if found is None:
            size = self.entry.row_set.size - self.entry.row_set.tail
            found = self._cache.get(key, self._load_tail, lambda _: _TAIL_OBJECTS * size)
        return found

    def _load_tail(self) -> _Tail:
        pa = pyarrow()
        from pyarrow import parquet

        row_set = self.entry.row_set
        with self._reporting_damage():
            packed = self._location.read_at(self._file, row_set.tail, row_set.size - row_set.tail + 1)
            if len(packed) != row_set.size - row_set.tail or crc32(packed) != row_set.checksum:
                raise self._damaged("its size or the checksum of its tail is wrong")
            # The footer is found from the end of the file, so the tail is enough.
            metadata = parquet.read_metadata(pa.BufferReader(packed))
        first_keys = [bytes.fromhex(one) for one in json.loads(metadata.metadata[FIRST_KEYS.encode()])]
        numbers = {name: number for number, name in enumerate(metadata.schema.to_arrow_schema().names)}
        filters, rows_before, rows = [], [], 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            key = group.column(numbers[KEY])
            start = key.bloom_filter_offset - row_set.tail
            filters.append(BloomFilter(packed[start : start + key.bloom_filter_length]))
            rows_before.append(rows)
            rows += group.num_rows
        return _Tail(metadata, numbers, first_keys, rows_before, filters)

    def removed_positions(self) -> Positions | None:
        """Return the positions of the removed rows; None if there are none. Raises as `find`."""
        gone = self.entry.removed
        if gone is None:
            return None
        found: Positions = self._cache.get(
            (gone.file,), lambda: gone.load(self._location), lambda one: one.nbytes
        )
        return found

    def _is_removed(self, position: int) -> bool:
        import numpy as np

        gone = self.removed_positions()
        if gone is None:
            return False
        found = int(np.searchsorted(gone, position))
        return found < len(gone) and int(gone[found]) == position

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self._damaged("it is missing") from None
        except (pyarrow().ArrowException, OSError) as error:
            raise self._damaged(reason_of(error)) from error

    def _damaged(self, reason: str) -> BaseDamaged:
        return BaseDamaged(self._location.shown, self._file, reason)


def _together(chunks: Iterable[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield groups of chunks that are close together, since each request to an object store takes time.

    A chunk has one column of one row group. It is given as its number, position and size. The chunks are in
    the order of the file.
    """
    some: list[tuple[int, int, int]] = []
    for chunk in chunks:
        if some and chunk[1] - sum(some[-1][1:]) > _GAP:
            yield some
            some = []
        some.append(chunk)
    if some:
        yield some


class RowGroup:
    """The rows of a row group whose keys are at or above ``low`` and below ``high``, without removed rows.

    If ``low`` or ``high`` cuts the row group, its columns are kept in the cache, because the next read may
    want the other part. Otherwise they are not kept, because a long scan would fill the cache.
    """

    def __init__(
        self, reader: RowSetReader, tail: _Tail, number: int, low: bytes, high: bytes | None
    ) -> None:
        self._reader = reader
        self._tail = tail
        self._number = number
        self._metadata = tail.metadata.row_group(number)
        keys = tail.first_keys
        self.first = keys[number]
        """The first key of the row group."""
        following = keys[number + 1] if number + 1 < len(keys) else None
        self.last = reader.entry.row_set.high if following is None else following
        """The last key of the row group, or a key above it."""
        # None: this bound does not cut the row group.
        self._low = low if low > self.first else None
        self._high = high if high is not None and high <= self.last else None

    def __len__(self) -> int:
        return len(self._positions)

    def columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return columns by name, without columns that the file lacks. Raises as `RowSetReader.find`."""
        pa = pyarrow()
        if self._low is None and self._high is None:
            batch = self._reader.read(self._number, names)
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
        else:
            found = self._reader.columns(self._number, names)
        chosen = self._positions
        if len(chosen) == self._metadata.num_rows:
            return found
        if len(chosen) and chosen[-1] - chosen[0] + 1 == len(chosen):
            return {name: array.slice(chosen[0], len(chosen)) for name, array in found.items()}
        taken = pa.array(chosen)
        return {name: array.take(taken) for name, array in found.items()}

    def statistics(self, name: str) -> Any:
        """Return Parquet's statistics of a column, or None. They include rows outside the range."""
        return self._metadata.column(self._tail.numbers[name]).statistics

    def has_column(self, name: str) -> bool:
        """Return True if the row set has the column."""
        return name in self._tail.numbers

    @cached_property
    def _positions(self) -> Positions:
        """The positions of the rows in the row group."""
        import numpy as np

        start, stop = 0, self._metadata.num_rows
        if self._low is not None or self._high is not None:
            keys = self._reader.keys(self._number)
            start = 0 if self._low is None else bisect_left(keys, self._low)
            stop = stop if self._high is None else bisect_left(keys, self._high)
        positions = np.arange(start, stop, dtype=np.uint32)
        gone = self._reader.removed_positions()
        if gone is None:
            return positions
        before = self._tail.rows_before[self._number]
        inside = gone[np.searchsorted(gone, before + start) : np.searchsorted(gone, before + stop)]
        return np.delete(positions, inside - (before + start))
