"""One measured number, with its spread and the target it is held against."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

Unit: TypeAlias = Literal["/s", "ratio", "ms", "µs", "bytes", "MB", "share", "count"]

_QUARTERS: Final = 4


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure should keep: at least ``bound``, or at most."""

    sense: Literal["at least", "at most"]
    bound: float

    def met_by(self, value: float) -> bool:
        """Whether ``value`` keeps the bound."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.sense == 'at least' else '≤'} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number.

    ``value`` is the median of the samples, ``low`` and ``high`` are their quartiles; ``suite``, ``place``
    (what it was measured over) and ``name`` tell it from others. Where a suite varies something, ``axis``
    says what ("callers"), and ``at`` how much it was: the figures of one name are then points of a curve.
    """

    suite: str
    place: str
    name: str
    unit: Unit
    value: float
    low: float
    high: float
    samples: int
    target: Target | None = None
    axis: str = ""
    at: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        return None if self.target is None else self.target.met_by(self.value)

    def as_dict(self) -> dict[str, Any]:
        """The figure as it stands in JSON."""
        return {
            "suite": self.suite,
            "place": self.place,
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "samples": self.samples,
            "target": None if self.target is None else asdict(self.target),
            "met": self.met,
            "axis": self.axis,
            "at": self.at,
        }


def median_figure(
    suite: str,
    place: str,
    name: str,
    unit: Unit,
    *,
    samples: Sequence[float],
    target: Target | None = None,
    axis: str = "",
    at: float | None = None,
) -> Figure:
    """A figure from its samples, of which there is at least one."""
    low, high = quartiles(samples)
    median = statistics.median(samples)
    return Figure(suite, place, name, unit, median, low, high, len(samples), target, axis, at)


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """The first and third quartile of at least one sample."""
    if len(samples) == 1:
        return samples[0], samples[0]
    cuts = statistics.quantiles(samples, n=_QUARTERS, method="inclusive")
    return cuts[0], cuts[-1]
