"""How the input is cut into tasks.

A *split* is what one reader reads in one go: a file, a byte range of a file or some row groups. Small
splits share a task and large files are cut where the format allows it, so that neither a million
small files nor one large one leaves most of the machine idle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from percolator_core.spark.loading.records import BadRecord, Origin, Record, build_record
from percolator_core.spark.loading.typed_records import TypedRecords

MAX_SPLIT: Final = 32 * 1024 * 1024
"""Most bytes of input that a task gets, where the format can be cut."""

_MIN_TASK: Final = 1024 * 1024
_TASKS_PER_CORE: Final = 4
_OPENING_COST: Final = 16 * 1024
"""What opening a file and running its transaction cost, in bytes of input."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the input; ``start`` and ``stop`` are bytes, or row groups of a Parquet file.

    ``name`` is the path relative to the folder that was given; ``size`` is in bytes.
    """

    path: str
    name: str
    start: int
    stop: int
    size: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How the input is to be read; `percolator_core.spark.loading.source.open_source` explains each.

    ``typed`` is what makes records of the fields if the table is typed.
    """

    key: str | None = None
    columns: Mapping[str, str] | None = None
    base_url: str = ""
    delimiter: str | None = None
    encoding: str | None = None
    null_text: str = ""
    typed: TypedRecords | None = None


class SplitReader(ABC):
    """Reads the splits of one format."""

    __slots__ = ("options",)

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    @abstractmethod
    def read(self, split: Split) -> Iterator[Record | BadRecord]:
        """The records of the split, in its order. Never raises for what the file holds."""

    def cut(self, path: str, name: str, size: int, target: int) -> Iterator[Split]:  # noqa: ARG002
        """The splits of one file, of about ``target`` bytes; the whole file unless the format can be cut."""
        yield Split(path, name, 0, size, size)

    def keyed_record(self, origin: Origin, fields: dict[str, object], head: bytes) -> Record | BadRecord:
        """The record with these fields, its key among them."""
        options = self.options
        if options.typed is not None:
            return options.typed.build(origin, fields, head)
        assert options.key is not None
        key = fields.get(options.key) if options.columns is not None else fields.pop(options.key, None)
        return build_record(origin, key, fields, options.columns, head)

    def page_record(
        self,
        origin: Origin,
        key: str | bytes | None,
        fields: Mapping[str, object],
        columns: Mapping[str, str],
        head: bytes,
    ) -> Record | BadRecord:
        """The record of a page; of its fields those in ``columns`` are loaded, if nothing else was said."""
        if self.options.typed is not None:
            return self.options.typed.build(origin, fields, head)
        return build_record(origin, key, fields, self.options.columns or columns, head)


def task_size(sizes: Sequence[int], cores: int) -> int:
    """Bytes that a task is to have: some tasks for each core, of a megabyte to ``MAX_SPLIT``."""
    total = sum(sizes) + _OPENING_COST * len(sizes)
    return min(MAX_SPLIT, max(_MIN_TASK, total // (cores * _TASKS_PER_CORE)))


def group_splits(splits: Iterable[Split], target: int) -> list[list[Split]]:
    """Tasks of about ``target`` bytes; a split above that has one to itself."""
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
