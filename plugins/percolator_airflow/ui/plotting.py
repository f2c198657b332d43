"""Curves over time as parts of a page: nice axes, and lines as svg paths.

A plot's lines lie in a field of `WIDTH` by `HEIGHT` that is stretched to the room there is. Labels stand
outside of it at shares of its width and height, so that their letters keep their size.
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
"""What a number is: how many, how many a second, seconds, bytes."""

Values = Sequence[float | None]

_INTERVALS: Final = 4
"""Parts of the upward axis, at most."""

_TIMES: Final = 6
"""Labels of the axis of time, at most."""

_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320, 10_080, 20_160, 43_200)
_SECONDS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200)
_BREAK: Final = 3.0
"""A line breaks where the next look came so many times later than it usually does."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label, at a share of the axis: from the left, or from the top."""

    share: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A line. ``style`` is its number, by which it has a colour and a dash in all plots."""

    name: str
    style: int
    values: Values


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is shown, in seconds since 1970, and when was looked."""

    begin: float
    end: float
    times: Sequence[float]

    def share(self, time: float) -> float:
        """How far from the left, 0 to 1."""
        return (time - self.begin) / max(self.end - self.begin, 1e-9)

    def breaks(self) -> set[int]:
        """The positions of looks before which nobody looked for a while."""
        steps = [after - before for before, after in pairwise(self.times)]
        if not steps:
            return set()
        most = _BREAK * median(steps)
        return {position for position, step in enumerate(steps, 1) if step > most}

    def ticks(self) -> list[Tick]:
        """Round times, in UTC."""
        length = self.end - self.begin
        step = next((60 * one for one in _MINUTES if length <= 60 * one * _TIMES), 0) or length / _TIMES
        first = math.ceil(self.begin / step) * step
        found = (first + step * index for index in range(_TIMES + 1))
        return [Tick(self.share(at), _moment(at, step)) for at in found if at <= self.end]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the page; ``unit`` is told beside its title."""

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
        step = next(one for one in _steps(self.form) if one * _INTERVALS >= most)
        # One part at least, so that a line of zeros lies at the bottom and not in the middle.
        parts = max(1, math.ceil(most / step - 1e-9))
        ticks = [Tick(1 - index / parts, show(self.form, index * step)) for index in range(parts + 1)]
        object.__setattr__(self, "top", parts * step)
        object.__setattr__(self, "ticks", ticks)

    def lines(self) -> list[tuple[Curve, str]]:
        """Each curve with its path; one that has no value has none."""
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
            # A point alone is a line of no length, which round ends make visible.
            parts.append(f"L{x:.1f} {y:.1f}" if drawn else f"M{x:.1f} {y:.1f}h0")
            drawn = True
        return "".join(parts)

    def newest(self) -> str:
        """What was seen last, of all curves together or of the highest."""
        last = [curve.values[-1] for curve in self.curves if curve.values]
        numbers = [value for value in last if value is not None]
        if not numbers:
            return "-"
        return show(self.form, max(numbers) if self.form == "age" else sum(numbers))


def rates(times: Sequence[float], counts: Sequence[int | None]) -> list[float | None]:
    """How much was added a second since the look before; None where a count is missing or began anew."""
    found: list[float | None] = [None] if times else []
    for (begin, end), (old, new) in zip(pairwise(times), pairwise(counts), strict=True):
        known = old is not None and new is not None and new >= old and end > begin
        found.append((new - old) / (end - begin) if known and old is not None and new is not None else None)
    return found


def added(counts: Iterable[int | None]) -> int:
    """How much was added from the first look to the last, beginnings anew left out."""
    known = [count for count in counts if count is not None]
    return sum(max(0, after - before) for before, after in pairwise(known))


def peak(values: Values) -> float | None:
    """The highest value that there is."""
    return max((value for value in values if value is not None), default=None)


def show(form: Form, value: float | None) -> str:
    """A number of an axis."""
    if value is None:
        return "-"
    if form == "size":
        return show_size(value).replace(".0 ", " ")
    if form == "age":
        return show_age(value).replace(".0 ", " ")
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _steps(form: Form) -> Iterator[float]:
    """Lengths of an axis' parts that make round labels, growing."""
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
    """The names with the highest scores, at most so many, in the order that they had."""
    if len(names) <= most:
        return list(names)
    least = sorted(score, reverse=True)[most - 1]
    above = sum(one > least for one in score)
    left = most - above
    found = []
    for name, one in zip(names, score, strict=True):
        if one > least:
            found.append(name)
        elif one == least and left:
            found.append(name)
            left -= 1
    return found
