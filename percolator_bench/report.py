"""The results of a run: as JSON, and as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from percolator_bench.figure import Figure
from percolator_bench.machine import Machine

_DECIMALS = {"/s": 0, "ratio": 2, "ms": 2, "µs": 1, "bytes": 1, "MB": 1, "share": 3, "count": 0}
_SUFFIXES = {"/s": "/s", "ms": " ms", "µs": " µs", "bytes": " B", "MB": " MB"}
"""The other units have none."""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence about a suite's figures: the settings of peers, or a measurement that was not possible."""

    suite: str
    text: str

    def __str__(self) -> str:
        return f"{self.suite}: {self.text}"


@dataclass(frozen=True, slots=True)
class Report:
    """The figures, and their machine."""

    machine: Machine
    figures: list[Figure]
    notes: list[Note] = field(default_factory=list)

    def add(self, found: Iterable[Figure | Note]) -> None:
        """Add the figures of a suite, one by one."""
        for one in found:
            if isinstance(one, Note):
                self.notes.append(one)
            else:
                self.figures.append(one)

    @property
    def missed(self) -> list[Figure]:
        """The figures that do not meet their target."""
        return [figure for figure in self.figures if figure.met is False]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "machine": asdict(self.machine),
            "figures": [figure.as_dict() for figure in self.figures],
            "notes": [asdict(note) for note in self.notes],
        }

    def write(self, path: Path) -> None:
        """Write the JSON to a file, and create its folders."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def table(self) -> Table:
        """The figures for a terminal."""
        table = Table(
            title=str(self.machine), title_justify="left", title_style="dim", box=None, pad_edge=False
        )
        table.add_column("figure", overflow="fold")
        for heading in ("median", "quartiles", "target"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        previous = None
        for figure in self.figures:
            group = f"{figure.suite}, {figure.place}"
            if group != previous:
                table.add_row()
                table.add_row(Text(group, "bold"))
            table.add_row(label(figure), *_numbers(figure), _verdict(figure.met))
            previous = group
        return table

    def for_terminal(self) -> RenderableType:
        """The table, and its notes."""
        return Group(self.table(), *([Text()] if self.notes else []), *(Text(str(n)) for n in self.notes))


def label(figure: Figure) -> str:
    """The name, and for a point of a curve its position: ``timestamps, 16 callers``."""
    return figure.name if figure.at is None else f"{figure.name}, {amount(figure.at)} {figure.axis}"


def amount(at: float) -> str:
    """Format a position on an axis: ``1,000,000``, ``0.25``."""
    return f"{at:,.0f}" if float(at).is_integer() else f"{at:g}"


def _numbers(figure: Figure) -> tuple[str, str, str]:
    decimals = _DECIMALS[figure.unit]
    value = f"{figure.value:,.{decimals}f}{_SUFFIXES.get(figure.unit, '')}"
    spread = "" if figure.samples == 1 else f"{figure.low:,.{decimals}f}..{figure.high:,.{decimals}f}"
    return value, spread, str(figure.target or "")


def _verdict(met: bool | None) -> Text:
    if met is None:
        return Text()
    return Text("met", "green") if met else Text("not met", "red")
