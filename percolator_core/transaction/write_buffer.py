"""A transaction's own writes, laid over what the store has."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import NOTIFY, PUT, Write
from percolator_core.transaction.scan import Row

RowWrites: TypeAlias = dict[bytes, Write]
"""Writes to one row, by encoded column."""


def overlay(cells: dict[str, bytes], own: RowWrites, wanted: list[str] | None) -> dict[str, bytes]:
    """The cells with our own writes applied."""
    for encoded, write in own.items():
        if write.kind == NOTIFY or is_internal(encoded):
            continue
        column = encoded.decode()
        if wanted is not None and column not in wanted:
            continue
        if write.kind == PUT:
            cells[column] = write.value
        else:
            cells.pop(column, None)
    return cells


def merge(
    stored: Iterator[Row], mine: list[tuple[bytes, RowWrites]], wanted: list[str] | None, reverse: bool
) -> Iterator[Row]:
    """Stored rows and our own, in order; a row that is in both comes once."""
    tagged = heapq.merge(
        ((row, 0, cells) for row, cells in stored),
        ((row, 1, own) for row, own in mine),
        key=itemgetter(0),
        reverse=reverse,
    )
    for row, group in itertools.groupby(tagged, key=itemgetter(0)):
        cells: dict[str, bytes] = {}
        own: RowWrites = {}
        for _, is_mine, found in group:
            if is_mine:
                own = found  # type: ignore[assignment]
            else:
                cells = found  # type: ignore[assignment]
        visible = overlay(cells, own, wanted)
        if visible:
            yield row, visible
