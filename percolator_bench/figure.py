"""One measured number, with its spread and its target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Unit: TypeAlias = Literal["/s", "ratio", "ms", "µs", "bytes", "MB", "share", "count"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for a figure, which has to be at least ``bound``, or at most ``bound``."""

    sense: Literal["at least", "at most"]
    bound: float

    def met_by(self, value: float) -> bool:
        """Return True if ``value`` meets the bound."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.sense == 'at least' else '≤'} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number.

    ``value`` is the median of the samples, ``low`` and ``high`` are their quartiles. ``suite``, ``place``
    (the transport or store) and ``name`` identify it. If a suite varies a parameter, ``axis`` is its name
    ("callers") and ``at`` its value: figures with one name are then points of a curve.
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
        """True if the target is met; None without a target."""
        return None if self.target is None else self.target.met_by(self.value)

    def as_dict(self) -> dict[str, Any]:
        """Return the figure for JSON."""
        return asdict(self) | {"met": self.met}


def median_figure(  # noqa: PLR0917
    suite: str,
    place: str,
    name: str,
    unit: Unit,
    samples: Sequence[float],
    target: Target | None = None,
    *,
    axis: str = "",
    at: float | None = None,
) -> Figure:
    """Compute a figure from its samples, of which there is at least one."""
    low, high = quartiles(samples)
    median = statistics.median(samples)
    return Figure(suite, place, name, unit, median, low, high, len(samples), target, axis, at)


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile of at least one sample."""
    if len(samples) == 1:
        return samples[0], samples[0]
    cuts = statistics.quantiles(samples, n=4, method="inclusive")
    return cuts[0], cuts[-1]
