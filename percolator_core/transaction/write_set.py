"""Divides the write set of a transaction into script calls, and groups these calls into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.records import NOTIFY
from percolator_core.store.packing import NUMBERS
from percolator_core.transaction.write_buffer import TableWrites

T = TypeVar("T")

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
    return primary_first(mutations)


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


def primary_first(mutations: list[Mutation]) -> list[Mutation]:
    """Return the mutations, with a possible primary in front.

    A notification cannot be the primary, because it leaves no version.
    """
    for position, mutation in enumerate(mutations):
        if mutation.kind != NOTIFY:
            return [mutation, *mutations[:position], *mutations[position + 1 :]] if position else mutations
    return mutations
