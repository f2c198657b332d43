"""The report as a picture. Needs matplotlib, which the extra ``plot`` installs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from percolator_core.bench.figure import Figure
from percolator_core.bench.report import Report
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {
    "/s": "operations a second",
    "ratio": "ratios",
    "ms": "latency in milliseconds",
    "bytes": "bytes a cell beyond its value",
}
_PLAIN, _MET, _MISSED, _TARGET = "#8da0b3", "#3a8f5c", "#c8553d", "#222222"
_BAR_HEIGHT = 0.26  # inches


def draw(report: Report, path: Path) -> None:
    """Write the picture to ``path``, in the format its suffix names: one panel a unit, targets as ticks.

    Raises:
        ConfigurationError: matplotlib is missing, or has no such format.
    """
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: pip install 'percolator-core[plot]'") from None
    units = [unit for unit in _TITLES if any(figure.unit == unit for figure in report.figures)]
    panels = [[figure for figure in report.figures if figure.unit == unit] for unit in units]
    heights = [len(panel) + 3 for panel in panels]
    canvas = Canvas(figsize=(10, _BAR_HEIGHT * sum(heights) + 0.6), layout="constrained")
    canvas.suptitle(str(report.machine), fontsize=9, color="#555555")
    axes = canvas.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for unit, panel, one in zip(units, panels, axes[:, 0], strict=True):
        _draw_panel(one, _TITLES[unit], panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        canvas.savefig(path, dpi=130)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _draw_panel(axes: Axes, title: str, figures: list[Figure]) -> None:
    values = [figure.value for figure in figures]
    spread: Any = [
        [max(0.0, figure.value - figure.low) for figure in figures],
        [max(0.0, figure.high - figure.value) for figure in figures],
    ]
    bars = axes.barh(
        range(len(figures)),
        values,
        xerr=spread,
        height=0.7,
        color=[_colour(figure.met) for figure in figures],
        error_kw={"ecolor": "#55606b", "elinewidth": 1},
    )
    for position, figure in enumerate(figures):
        if figure.target is not None:
            axes.plot(
                [figure.target.bound] * 2, [position - 0.42, position + 0.42], color=_TARGET, linewidth=2
            )
    labels = [f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" for value in values]
    axes.bar_label(bars, labels=labels, padding=6, fontsize=7)
    axes.set_yticks(
        range(len(figures)), [f"{figure.name} ({figure.place})" for figure in figures], fontsize=7
    )
    axes.tick_params(axis="x", labelsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.set_title(title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(met: bool | None) -> str:
    return {None: _PLAIN, True: _MET, False: _MISSED}[met]
