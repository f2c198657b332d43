"""Histograms of durations. They have a constant size, and can be added up over processes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets in seconds, inclusive; one more bucket counts longer durations."""


@dataclass(slots=True)
class Histogram:
    """``counts`` has a number for each of `BOUNDS`, and one for longer durations.

    ``seconds`` is the sum of all durations. Only one thread at a time may use the histogram.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound as text (the last is ``+Inf``), with the number of durations up to it."""
        return list(zip([*map(str, BOUNDS), "+Inf"], accumulate(self.counts), strict=True))

    def flat(self) -> list[float]:
        """Return the histogram as a list of numbers, for `from_flat` in another process."""
        return [self.seconds, *self.counts]

    @classmethod
    def from_flat(cls, numbers: Sequence[float]) -> Histogram:
        """Make a histogram from the list of `flat`; raise ValueError if its buckets are not `BOUNDS`."""
        seconds, *counts = numbers
        if len(counts) != len(BOUNDS) + 1:
            raise ValueError(f"a histogram has {len(BOUNDS) + 1} buckets, not {len(counts)}")
        return cls([int(count) for count in counts], seconds)

    @classmethod
    def sum(cls, histograms: Iterable[Histogram]) -> Histogram:
        """Add up histograms, bucket by bucket."""
        made = cls()
        for one in histograms:
            made.counts = [mine + its for mine, its in zip(made.counts, one.counts, strict=True)]
            made.seconds += one.seconds
        return made
