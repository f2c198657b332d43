"""Interleaved rounds: every contestant has a turn in each round, so that other load affects all contestants.

The ratio of two contestants is computed within each round, and the figure is the median over the rounds. A
slow moment of the machine slows the two contestants down by the same factor.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from percolator_bench import progress

K = TypeVar("K", bound=Hashable)

_FIRST: Final = 1_000_000
"""Lower numbers belong to the rows that a suite loads before the race."""


@dataclass(slots=True)
class Rates(Generic[K]):
    """Operations a second, by contestant and round."""

    by_name: dict[K, list[float]] = field(default_factory=dict)

    def of(self, name: K) -> list[float]:
        """The rates of one contestant, in the order of the rounds."""
        return self.by_name[name]

    def ratio(self, name: K, base: K) -> list[float]:
        """The rate of ``name`` divided by that of ``base``, round by round."""
        return [a / b for a, b in zip(self.by_name[name], self.by_name[base], strict=True)]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Contestant:
    """``run(first, count)`` does ``count`` operations; its new keys are numbered from ``first``.

    ``prepare`` is called before each turn, and its time does not count.
    """

    run: Callable[[int, int], None]
    operations: int
    prepare: Callable[[], None] = _nothing


def race(contestants: Mapping[K, Contestant], rounds: int) -> Rates[K]:
    """Run every contestant to warm up, and then in ``rounds`` rounds; the order is reversed each time."""
    rates: Rates[K] = Rates({name: [] for name in contestants})
    order = list(contestants)
    first = _FIRST
    with _old_objects_set_aside():
        for number in range(rounds + 1):
            here = f"round {number} of {rounds}" if number else "warming up"
            for name in order if number % 2 else reversed(order):
                progress.tell(here, str(name))
                contestant = contestants[name]
                count = contestant.operations if number else max(1, contestant.operations // 4)
                contestant.prepare()
                gc.collect()
                started = time.perf_counter()
                contestant.run(first, count)
                seconds = time.perf_counter() - started
                first += count
                if number:
                    rates.by_name[name].append(count / seconds)
    return rates


@contextmanager
def _old_objects_set_aside() -> Iterator[None]:
    """Freeze existing objects, so that Python's garbage collection between the turns is cheap."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
