"""The results of a run: as JSON, and as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from percolator_core.bench.figure import Figure
from percolator_core.bench.machine import Machine

_DECIMALS = {"/s": 0, "ratio": 2, "ms": 2, "bytes": 1}
_SUFFIXES = {"/s": "/s", "ratio": "", "ms": " ms", "bytes": " B"}


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured, on which machine."""

    machine: Machine
    figures: list[Figure]

    @property
    def missed(self) -> list[Figure]:
        """The figures that do not meet their target."""
        return [figure for figure in self.figures if figure.met is False]

    def as_dict(self) -> dict[str, Any]:
        """The report as it stands in JSON."""
        return {"machine": self.machine.as_dict(), "figures": [figure.as_dict() for figure in self.figures]}

    def write(self, path: Path) -> None:
        """Write the JSON to a file; folders on the way are made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def table(self) -> Table:
        """The figures for a terminal."""
        table = Table(
            title=str(self.machine), title_justify="left", title_style="dim", box=None, pad_edge=False
        )
        table.add_column("figure", no_wrap=True)
        for heading in ("median", "quartiles", "target"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        previous = None
        for figure in self.figures:
            group = f"{figure.suite}, {figure.place}"
            if group != previous:
                table.add_row()
                table.add_row(Text(group, "bold"))
            table.add_row(figure.name, *_numbers(figure), _verdict(figure.met))
            previous = group
        return table


def _numbers(figure: Figure) -> tuple[str, str, str]:
    decimals = _DECIMALS[figure.unit]
    value = f"{figure.value:,.{decimals}f}{_SUFFIXES[figure.unit]}"
    spread = "" if figure.samples == 1 else f"{figure.low:,.{decimals}f}..{figure.high:,.{decimals}f}"
    return value, spread, str(figure.target or "")


def _verdict(met: bool | None) -> Text:
    if met is None:
        return Text()
    return Text("met", "green") if met else Text("not met", "red")
