"""Divide the input into tasks.

A *split* is a file, a byte range of a file, or some row groups. Small splits share a task, and large files
are divided if their format allows it. So all cores have work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from percolator_core.loading.records import BadRecord, Origin, Record, build_record
from percolator_core.loading.typed_records import TypedRecords
from percolator_core.loading.values import Dialect

MAX_SPLIT: Final = 32 * 1024 * 1024
"""The limit of input bytes in a task, if files of the format can be divided."""

_MIN_TASK: Final = 1024 * 1024
_TASKS_PER_CORE: Final = 4
_OPENING_COST: Final = 16 * 1024
"""The cost of opening a file and of its transaction, expressed in bytes of input."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the input; ``start`` and ``stop`` are bytes, or row groups of a Parquet file.

    ``name`` is the path relative to the given folder; ``size`` is in bytes.
    """

    path: str
    name: str
    start: int
    stop: int
    size: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of `open_source`; ``typed`` builds the records of a typed table."""

    key: str | None
    columns: Mapping[str, str] | None
    base_url: str
    delimiter: str | None
    encoding: str | None
    null_text: str
    typed: TypedRecords | None = None


class SplitReader(ABC):
    """Reads the splits of one format."""

    __slots__ = ("options",)

    suffixes: ClassVar[tuple[str, ...]]
    """The suffixes of the format's files."""

    dialect: ClassVar[Dialect] = "python"

    page_fields: ClassVar[tuple[str, ...]] = ()
    """The default fields of a format of pages, whose row key is ``url``. Empty for other formats."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    @abstractmethod
    def read(self, split: Split) -> Iterator[Record | BadRecord]:
        """Yield the records of the split in the file's order. Errors of the input yield malformed records."""

    def cut(self, path: str, name: str, size: int, target: int) -> Iterator[Split]:  # noqa: ARG002
        """Divide a file into splits of about ``target`` bytes, or yield one split of the whole file."""
        yield Split(path, name, 0, size, size)

    def keyed_record(self, origin: Origin, fields: dict[str, object], head: bytes) -> Record | BadRecord:
        """Build the record with these fields, which include the key."""
        options = self.options
        if options.typed is not None:
            return options.typed.build(origin, fields, head)
        assert options.key is not None
        key = fields.get(options.key) if options.columns is not None else fields.pop(options.key, None)
        return build_record(origin, key, fields, options.columns, head)

    def page_record(
        self, origin: Origin, key: str | bytes | None, fields: Mapping[str, object], head: bytes
    ) -> Record | BadRecord:
        """Build the record of a page with the row key ``key``."""
        if self.options.typed is not None:
            return self.options.typed.build(origin, fields, head)
        columns = self.options.columns or {name: name for name in self.page_fields}
        return build_record(origin, key, fields, columns, head)


def task_size(sizes: Sequence[int], cores: int) -> int:
    """Return the size of a task in bytes, from 1 MiB to ``MAX_SPLIT``, so that each core gets a few tasks."""
    total = sum(sizes) + _OPENING_COST * len(sizes)
    return min(MAX_SPLIT, max(_MIN_TASK, total // (cores * _TASKS_PER_CORE)))


def group_splits(splits: Iterable[Split], target: int) -> list[list[Split]]:
    """Group splits into tasks of about ``target`` bytes. A larger split has its own task."""
    tasks: list[list[Split]] = []
    filled = target
    for split in splits:
        cost = split.size + _OPENING_COST
        if filled + cost > target and filled > 0:
            tasks.append([])
            filled = 0
        tasks[-1].append(split)
        filled += cost
    return tasks
