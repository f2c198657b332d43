"""Plots over time: axes with round labels, and curves as SVG paths.

A plot's curves are drawn in a field of `WIDTH` by `HEIGHT`, which the page stretches to the available space.
Labels are outside the field, at shares of its width and height, so that the stretching does not distort them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Final, Literal

from percolator_core.notation.amounts import show_age, show_size

WIDTH: Final = 1000.0
HEIGHT: Final = 200.0

Form = Literal["count", "rate", "age", "size"]
"""The unit of a plot's numbers: pieces, pieces per second, seconds, bytes."""

Values = Sequence[float | None]

_INTERVALS: Final = 4
"""The vertical axis has at most this many intervals."""

_TIMES: Final = 6
"""The time axis has at most this many labels."""

_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320, 10_080, 20_160, 43_200)
_SECONDS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200)
_BREAK: Final = 3.0
"""A curve has a gap before a sample that came after more than this many median intervals."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of an axis. ``share`` is its distance from the left or the top, as a share of the axis."""

    share: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve. ``style`` is the number of its color and dash, the same in all plots."""

    name: str
    style: int
    values: Values


@dataclass(frozen=True, slots=True)
class Span:
    """The shown period and the times of its samples, in seconds since 1970."""

    begin: float
    end: float
    times: Sequence[float]

    def share(self, time: float) -> float:
        """Return the position from the left, 0 to 1."""
        return (time - self.begin) / max(self.end - self.begin, 1e-9)

    def breaks(self) -> set[int]:
        """Return the positions of the samples that follow a gap."""
        steps = [after - before for before, after in pairwise(self.times)]
        if not steps:
            return set()
        most = _BREAK * median(steps)
        return {position for position, step in enumerate(steps, 1) if step > most}

    def ticks(self) -> list[Tick]:
        """Return labels at round times, in UTC."""
        length = self.end - self.begin
        step = next((60 * one for one in _MINUTES if length <= 60 * one * _TIMES), 0) or length / _TIMES
        first = math.ceil(self.begin / step) * step
        found = (first + step * index for index in range(_TIMES + 1))
        return [Tick(self.share(at), _moment(at, step)) for at in found if at <= self.end]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the page; ``unit`` is shown next to the title."""

    key: str
    title: str
    unit: str
    form: Form
    curves: Sequence[Curve]
    span: Span
    top: float = field(init=False)
    ticks: Sequence[Tick] = field(init=False)

    def __post_init__(self) -> None:
        most = max((value for curve in self.curves for value in curve.values if value is not None), default=0)
        # The axis of a curve of zeros ends at a whole number.
        step = next(one for one in _steps(self.form) if one * _INTERVALS >= (most or _INTERVALS))
        # At least one interval, so that a curve of zeros is at the bottom and not in the middle.
        parts = max(1, math.ceil(most / step - 1e-9))
        ticks = [Tick(1 - index / parts, show(self.form, index * step)) for index in range(parts + 1)]
        object.__setattr__(self, "top", parts * step)
        object.__setattr__(self, "ticks", ticks)

    def lines(self) -> list[tuple[Curve, str]]:
        """Return the curves that have values, each with its path."""
        breaks = self.span.breaks()
        made = ((curve, self._path(curve.values, breaks)) for curve in self.curves)
        return [(curve, path) for curve, path in made if path]

    def _path(self, values: Values, breaks: set[int]) -> str:
        parts: list[str] = []
        drawn = False
        for position, (time, value) in enumerate(zip(self.span.times, values, strict=True)):
            if value is None or position in breaks:
                drawn = False
            if value is None:
                continue
            x, y = WIDTH * self.span.share(time), HEIGHT * (1 - value / self.top)
            # A single point is a line of no length, which its round ends make visible.
            parts.append(f"L{x:.1f} {y:.1f}" if drawn else f"M{x:.1f} {y:.1f}h0")
            drawn = True
        return "".join(parts)

    def newest(self) -> str:
        """Return the newest values of all curves as one: the highest age, or the sum of other numbers."""
        last = [curve.values[-1] for curve in self.curves if curve.values]
        numbers = [value for value in last if value is not None]
        if not numbers:
            return "-"
        return show(self.form, max(numbers) if self.form == "age" else sum(numbers))


def rates(times: Sequence[float], counts: Values) -> list[float | None]:
    """Return the increase per second since the previous sample; None if a count is missing or was reset."""
    found: list[float | None] = [None] if times else []
    for (begin, end), (old, new) in zip(pairwise(times), pairwise(counts), strict=True):
        known = old is not None and new is not None and new >= old and end > begin
        found.append((new - old) / (end - begin) if known and old is not None and new is not None else None)
    return found


def added(counts: Iterable[int | None]) -> int:
    """Return the increase over all samples. A step at which the count was reset adds nothing."""
    known = [count for count in counts if count is not None]
    return sum(max(0, after - before) for before, after in pairwise(known))


def peak(values: Values) -> float | None:
    """Return the highest value, or None if there is no value."""
    return max((value for value in values if value is not None), default=None)


def show(form: Form, value: float | None) -> str:
    """Format a number of an axis."""
    if value is None:
        return "-"
    if form == "size":
        return show_size(value).replace(".0 ", " ")
    if form == "age":
        return show_age(value).replace(".0 ", " ")
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _steps(form: Form) -> Iterator[float]:
    """Yield interval lengths that give round labels, in increasing order."""
    if form == "size":
        yield from (2.0**power for power in range(10, 70))
    elif form == "age":
        yield from _SECONDS
        yield from (86_400.0 * 2**power for power in range(40))
    else:
        least = 0 if form == "count" else -3
        yield from (one * 10.0**power for power in range(least, 30) for one in (1, 2, 5))


def _moment(time: float, step: float) -> str:
    moment = datetime.fromtimestamp(time, UTC)
    midnight = moment.hour == moment.minute == 0
    return f"{moment.day} {moment:%b}" if midnight or step >= 86_400 else f"{moment:%H:%M}"


def busiest(names: Sequence[str], score: Sequence[float], most: int) -> list[str]:
    """Return the names with the highest scores, at most ``most``, in their original order."""
    best = sorted(range(len(names)), key=score.__getitem__, reverse=True)[:most]
    return [names[place] for place in sorted(best)]
