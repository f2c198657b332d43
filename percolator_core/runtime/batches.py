"""Divide items into batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield batches of ``size`` items (1 or more); the last batch may have fewer.

    Python has this from 3.12 on, as `itertools.batched`.
    """
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def batched_by_size(
    items: Iterable[T], size_of: Callable[[T], int], enough: int, most: float = math.inf
) -> Iterator[list[T]]:
    """Yield batches; a batch ends when it has ``most`` items, or when their sizes add up to ``enough``."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if len(batch) >= most or size >= enough:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
