"""Parquet: a row is a record, and a split has some row groups. Binary keys and values may be any bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from percolator_core.base.location import is_remote
from percolator_core.loading.objects import ObjectFile
from percolator_core.loading.records import BadRecord, Origin, Record
from percolator_core.loading.splits import Split, SplitReader

_BATCH: Final = 512
"""The number of rows that are decoded together."""

_UNREADABLE: Final = (OSError, ValueError, NotImplementedError)
"""Errors of pyarrow for damaged files and unknown encodings."""


class ParquetReader(SplitReader):
    """Reads only the key and the loaded columns."""

    suffixes = (".parquet",)

    def cut(self, path: str, name: str, size: int, target: int) -> Iterator[Split]:
        """Yield splits of whole row groups. A file with an unreadable footer is one split."""
        try:
            with _open(path) as file:
                sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
        except _UNREADABLE:
            yield Split(path, name, 0, 0, size)
            return
        start, filled = 0, 0
        for number, group_size in enumerate(sizes):
            if filled and filled + group_size > target:
                yield Split(path, name, start, number, filled)
                start, filled = number, 0
            filled += group_size
        yield Split(path, name, start, len(sizes), filled)

    def read(self, split: Split) -> Iterator[Record | BadRecord]:
        """Read the rows of the row groups; positions are row numbers within the file."""
        position = 0
        try:
            with _open(split.path) as file:
                columns = self._columns(file.schema_arrow.names)
                position = sum(file.metadata.row_group(i).num_rows for i in range(split.start))
                groups = list(range(split.start, split.stop))
                batches = file.iter_batches(_BATCH, row_groups=groups, columns=columns, use_threads=False)
                for batch in batches:
                    yield from self._records(split.path, position, batch)
                    position += batch.num_rows
        except _UNREADABLE as error:
            yield BadRecord(Origin(split.path, "row", position), f"unreadable from here on: {error}")

    def _columns(self, names: list[str]) -> list[str] | None:
        key, typed = self.options.key, self.options.typed
        if typed is not None:
            problem = typed.problem(names)
            if problem is not None:
                raise ValueError(f"it {problem}")
            return typed.wanted
        assert key is not None
        if key not in names:
            raise ValueError(f"there is no column {key!r}")
        if self.options.columns is None:
            return None
        return [name for name in names if name == key or name in self.options.columns]

    def _records(self, path: str, position: int, batch: Any) -> Iterator[Record | BadRecord]:
        try:
            rows = iter(batch.to_pylist())
        except ValueError:
            rows = _one_by_one(batch)
        typed = self.options.typed
        keys = [self.options.key] if typed is None else typed.key_fields
        for number, row in enumerate(rows, position):
            origin = Origin(path, "row", number)
            if isinstance(row, ValueError):
                yield BadRecord(origin, f"undecodable: {row}")
                continue
            head = ", ".join(repr(row[key]) for key in keys)
            yield self.keyed_record(origin, row, head.encode())


def read_schema(path: str) -> list[str]:
    """Read the column names of a Parquet file. Raises OSError or ValueError."""
    with _open(path) as file:
        return list(file.schema_arrow.names)


def _open(path: str) -> Any:
    import pyarrow.parquet as pq

    if not is_remote(path):
        return pq.ParquetFile(path)
    return pq.ParquetFile(ObjectFile(path), pre_buffer=True)  # fewer requests


def _one_by_one(batch: Any) -> Iterator[Any]:
    """Decode one by one the rows of a batch that has an undecodable value, such as text that is not UTF-8."""
    for number in range(batch.num_rows):
        try:
            yield batch.slice(number, 1).to_pylist()[0]
        except ValueError as error:
            yield error
