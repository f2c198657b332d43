"""The buffered writes of a transaction: applied to rows that were read, and divided into script calls."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias, TypeVar

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import NOTIFY, PUT, Write
from percolator_core.store.packing import NUMBERS
from percolator_core.transaction.scan import Row

T = TypeVar("T")

RowWrites: TypeAlias = dict[bytes, Write]
"""Writes to one row, by encoded column."""

TableWrites: TypeAlias = dict[bytes, RowWrites]
"""Writes to one table, by row."""

CELLS_PER_CALL: Final = 1000
BYTES_PER_CALL: Final = 4 << 20
"""Bounds of one prewrite call: all other clients wait while a script runs."""

CALLS_PER_BATCH: Final = 64
CELLS_PER_BATCH: Final = 16_000
BYTES_PER_BATCH: Final = 32 << 20
"""Bounds of the prewrites that are sent together: while the client sends, it has two copies of each.

A long commit refreshes its primary lock between two batches.
"""

assert len(NUMBERS) > CELLS_PER_CALL  # `tags_and_cells` looks up the positions of tags there, counted from 1


def rows_between(
    writes: TableWrites, handle: TableHandle, low: bytes, high: bytes | None, reverse: bool
) -> list[tuple[bytes, RowWrites]]:
    """The written rows from ``low`` to below ``high``, sorted by key, with the present names of columns."""
    rows = sorted((row for row in writes if low <= row and (high is None or row < high)), reverse=reverse)
    return [(row, handle.named(writes[row])) for row in rows]


def with_writes(cells: dict[str, bytes], writes: RowWrites, wanted: list[str] | None) -> dict[str, bytes]:
    """Apply the writes to the ``wanted`` columns (None: all) to the cells of a row, and return the cells."""
    for encoded, (kind, value) in writes.items():
        if kind == NOTIFY or is_internal(encoded):
            continue
        column = encoded.decode()
        if wanted is not None and column not in wanted:
            continue
        if kind == PUT:
            cells[column] = value
        else:
            cells.pop(column, None)
    return cells


def merge(
    stored: Iterator[Row], written: list[tuple[bytes, RowWrites]], wanted: list[str] | None, reverse: bool
) -> Iterator[Row]:
    """Yield stored and written rows in key order. A row that is in both comes once, with writes applied."""
    tagged = heapq.merge(
        ((row, 0, cells) for row, cells in stored),
        ((row, 1, writes) for row, writes in written),
        key=itemgetter(0),
        reverse=reverse,
    )
    for row, group in itertools.groupby(tagged, key=itemgetter(0)):
        cells: dict[str, bytes] = {}
        writes: RowWrites = {}
        for _, is_written, found in group:
            if is_written:
                writes = found  # type: ignore[assignment]
            else:
                cells = found  # type: ignore[assignment]
        visible = with_writes(cells, writes, wanted)
        if visible:
            yield row, visible


class Mutation(NamedTuple):
    """One write, with the tag of its tablet, and the version of the table definition at the time of `set`."""

    tag: bytes
    table: str
    row: bytes
    column: bytes
    kind: int
    value: bytes
    version: bytes = b""


def mutations_of(writes: Mapping[str, TableWrites], handles: Mapping[str, TableHandle]) -> list[Mutation]:
    """Return the writes as mutations, the primary in front. The keys of ``handles`` are tables' names."""
    mutations: list[Mutation] = []
    for table, rows in writes.items():
        handle = handles[table]
        for row, columns in rows.items():
            tag = handle.tag(row)
            for column, (kind, value) in columns.items():
                mutations.append(Mutation(tag, table, row, column, kind, value, handle.version))
    # The primary must not be a notification, because a notification leaves no version.
    for position, mutation in enumerate(mutations):
        if mutation.kind != NOTIFY:
            return [mutation, *mutations[:position], *mutations[position + 1 :]] if position else mutations
    return mutations


def bounded_calls(mutations: list[Mutation], one_a_tablet: bool) -> list[list[Mutation]]:
    """Divide the write set into calls of bounded size. The primary's call is the first."""
    if len(mutations) == 1:
        return [mutations]
    groups: Iterable[Sequence[Mutation]] = (mutations,)
    if one_a_tablet:
        by_tag: dict[bytes, list[Mutation]] = {}
        for mutation in mutations:
            by_tag.setdefault(mutation.tag, []).append(mutation)
        groups = by_tag.values()
    return [call for group in groups for call in in_calls(group, _weight, CELLS_PER_CALL)]


def in_calls(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield groups of at most ``most`` items and `BYTES_PER_CALL` bytes; a larger item has its own group."""
    call: list[T] = []
    size = 0
    for item in items:
        one = weight(item)
        if call and (len(call) >= most or size + one > BYTES_PER_CALL):
            yield call
            call, size = [], 0
        call.append(item)
        size += one
    if call:
        yield call


def tags_and_cells(call: Sequence[Mutation], *, values: bool) -> tuple[list[bytes], list[bytes]]:
    """Return the tags of a call, and its cells as script arguments, each cell with its tag's position."""
    tags: dict[bytes, bytes] = {}
    cells: list[bytes] = []
    for tag, _, row, column, kind, value, _ in call:
        position = tags.setdefault(tag, NUMBERS[len(tags) + 1])
        if values:
            cells += (position, row, column, NUMBERS[kind], value)
        else:
            cells += (position, row, column, NUMBERS[kind])
    return list(tags), cells


def versions_of(call: Sequence[Mutation]) -> bytes:
    """Return the versions of a call's table definitions, one for each tag as `tags_and_cells` orders them."""
    if len(call) == 1:
        return call[0].version
    return b",".join({mutation.tag: mutation.version for mutation in call}.values())


def in_batches(calls: Iterable[list[Mutation]]) -> Iterator[list[list[Mutation]]]:
    """Yield the calls in batches of bounded size."""
    batch: list[list[Mutation]] = []
    cells = size = 0
    for call in calls:
        weight = sum(map(_weight, call))
        is_over = cells + len(call) > CELLS_PER_BATCH or size + weight > BYTES_PER_BATCH
        if batch and (is_over or len(batch) >= CALLS_PER_BATCH):
            yield batch
            batch, cells, size = [], 0, 0
        batch.append(call)
        cells += len(call)
        size += weight
    yield batch


def _weight(mutation: Mutation) -> int:
    return len(mutation.value) + len(mutation.row) + len(mutation.column)
