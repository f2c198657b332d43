"""Draw the report. Needs matplotlib, which the extra ``plot`` installs.

The points of a curve are joined by a line over their axis, and comparable curves share a panel. All other
figures are bars. In the name ``set: PostgreSQL`` the part before the colon is the operation, which has a
panel of its own. The part behind the colon is the contestant, which has the same colour in all panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from percolator_bench.figure import Figure, Target
from percolator_bench.report import Report, amount, label
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

T = TypeVar("T")

_TITLES: Final = {
    "/s": "per second",
    "ratio": "ratios",
    "ms": "milliseconds",
    "µs": "microseconds",
    "MB": "megabytes",
}
"""The other units are their own titles."""
_PLAIN, _MET, _MISSED, _TARGET = "#8da0b3", "#3a8f5c", "#c8553d", "#222222"
_FAMILIES: Final = {
    "percolator": ("#1b4f9c", "#6a9be0", "#0b2545", "#98b7dd"),
    "postgres": ("#2e8b57", "#8fce6b", "#14532d", "#4fb8a3"),
    "redis": ("#c0392b", "#ee9a52", "#7b241c", "#e8b4a0"),
    "watch": ("#8e2f8a", "#c98bc6"),
    "": ("#4d4d4d", "#b8860b", "#5f7d95", "#a05195", "#2f9e9e", "#d45087", "#7f7f3f", "#999999"),
}
"""For each word, the colours of names that contain it; the last colours are for all other names."""
_MARKERS: Final = "os^Dvp*X"
_STYLES: Final = ("-", "--", ":", "-.")
"""Line styles, one for each place (the transport or store, `Figure.place`) of a panel."""

_A_ROW: Final = 3
"""This many panels of lines are side by side."""
_WIDTH: Final = 16.0  # inches
_BAR_HEIGHT: Final = 0.24
_BARS_FRAME: Final = 0.9
_CURVES_HEIGHT: Final = 3.1
_MOST_BARS: Final = 40
_MOST_LINES: Final = 8
"""A panel with more bars or lines than this is divided by place, if there are several places."""
_LOG_X: Final = 100.0
_LOG_Y: Final = 30.0
_LOG_RATIO: Final = 8.0
"""An axis whose ends are further apart than this factor is logarithmic."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """Figures in one panel."""

    title: str
    figures: list[Figure]

    @property
    def places(self) -> list[str]:
        """The places of the figures, in the order of the figures."""
        return list(dict.fromkeys(figure.place for figure in self.figures))

    def named(self, figure: Figure, name: str) -> str:
        """Return ``name``, with the place of the figure if the panel has several."""
        return name if len(self.places) == 1 else f"{name} ({figure.place})"


@dataclass(slots=True)
class Colours:
    """One colour and marker for each name, in the whole picture."""

    given: dict[str, str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)

    def marker(self, name: str) -> str:
        """Return the marker of a name for which `of` was called before."""
        return _MARKERS[list(self.given).index(name) % len(_MARKERS)]

    def of(self, name: str) -> str:
        """Return the colour of a name; a new name gets the next colour of its family."""
        if name not in self.given:
            family = next((word for word in _FAMILIES if word in name.lower()), "")
            shades, number = _FAMILIES[family], self.used.get(family, 0)
            self.used[family] = number + 1
            self.given[name] = shades[number % len(shades)]
        return self.given[name]


_Render: TypeAlias = Callable[["SubFigure", Colours], None]
"""A function that draws a part of the picture."""


def check(path: Path) -> None:
    """Check before the measurement that `draw` can write the file.

    Raises:
        ConfigurationError: matplotlib is missing, or does not know the suffix.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: pip install 'percolator-core[plot]'") from None
    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise ConfigurationError(f"{path}: a plot is one of {', '.join(sorted(formats))}, as the suffix says")


def draw(report: Report, path: Path) -> None:
    """Write the picture to ``path``, in the format of its suffix.

    Raises:
        ConfigurationError: as for `check`; or there are no figures.
    """
    check(path)
    from matplotlib.figure import Figure as Canvas

    if not report.figures:
        raise ConfigurationError("there is nothing to draw: no suite has measured anything")
    suites = _by(report.figures, lambda one: one.suite).values()
    blocks = [block for suite in suites for block in _blocks(suite)]
    heights = [height for height, _ in blocks]
    canvas = Canvas(figsize=(_WIDTH, sum(heights) + 0.5), layout="constrained")
    canvas.suptitle(str(report.machine), fontsize=9, color="#555555")
    parts = canvas.subfigures(len(blocks), 1, height_ratios=heights, squeeze=False)
    colours = Colours()
    for part, (_, render) in zip(parts[:, 0], blocks, strict=True):
        render(part, colours)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=130)


def _by(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Group items by key, in the order of their first items."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


# The choice of panels.


def _blocks(figures: Sequence[Figure]) -> list[tuple[float, _Render]]:
    """Return the parts of the picture for one suite, from top to bottom, each with its height in inches."""
    curves, rest = panels_of_lines(figures)
    blocks: list[tuple[float, _Render]] = []
    # Each place begins a new row of panels.
    for panels in _by(curves, lambda panel: tuple(panel.places)).values():
        for first in range(0, len(panels), _A_ROW):
            row = panels[first : first + _A_ROW]
            blocks.append((_CURVES_HEIGHT, partial(_draw_curves, row)))
    blocks.extend(
        (_BAR_HEIGHT * len(panel.figures) + _BARS_FRAME, partial(_draw_bars, panel))
        for panel in panels_of_bars(rest)
    )
    return blocks


def panels_of_lines(figures: Sequence[Figure]) -> tuple[list[_Panel], list[Figure]]:
    """Return the panels of lines, and the figures that belong to none."""
    points = [figure for figure in figures if figure.at is not None]
    rest = [figure for figure in figures if figure.at is None]
    groups = {}
    for key, group in _by(points, lambda one: (one.unit, one.axis, _split(one.name)[0])).items():
        if len({figure.at for figure in group}) > 1:
            groups[key] = group
        else:
            rest += group
    # All panels of a suite are divided in the same way, so that a reader finds the same lines in each.
    apart = any(len(_lines(group)) > _MOST_LINES for group in groups.values())
    panels = []
    for (unit, _, topic), group in groups.items():
        panels += _panels(group, _title(group[0].suite, topic, unit), apart=apart)
    return panels, rest


def panels_of_bars(figures: Sequence[Figure]) -> list[_Panel]:
    """The panels of bars, one or more for each unit."""
    panels = []
    for unit, group in _by(figures, lambda one: one.unit).items():
        panels += _panels(group, _title(group[0].suite, "", unit), apart=len(group) > _MOST_BARS)
    return panels


def _panels(figures: list[Figure], title: str, *, apart: bool) -> list[_Panel]:
    """Make one panel, or with ``apart`` one for each place."""
    places = _by(figures, lambda one: one.place)
    if apart or len(places) == 1:
        return [_Panel(f"{title}, {place}", group) for place, group in places.items()]
    return [_Panel(title, figures)]


def _title(suite: str, topic: str, unit: str) -> str:
    between = "" if not topic else " " if unit == "/s" else ", "
    return f"{suite}: {topic}{between}{_TITLES.get(unit, unit)}"


def _split(name: str) -> tuple[str, str]:
    """Split a name into operation and contestant; a name without a colon is a contestant."""
    topic, colon, who = name.partition(": ")
    return (topic, who) if colon else ("", name)


def _lines(figures: Iterable[Figure]) -> dict[Any, list[Figure]]:
    return _by(figures, lambda one: (one.place, one.name))


# Lines.


def _draw_curves(panels: Sequence[_Panel], part: SubFigure, colours: Colours) -> None:
    row = part.subplots(1, _A_ROW, squeeze=False)[0]
    for axes, panel in zip(row, panels, strict=False):
        _draw_lines(axes, colours, panel)
    for axes in row[len(panels) :]:
        axes.set_axis_off()


def _draw_lines(axes: Axes, colours: Colours, panel: _Panel) -> None:
    for line in _lines(panel.figures).values():
        line.sort(key=_at)
        places = [_at(figure) for figure in line]
        who = _split(line[0].name)[1]
        colour = colours.of(who)
        axes.plot(
            places,
            [figure.value for figure in line],
            color=colour,
            label=panel.named(line[0], who),
            linestyle=_STYLES[panel.places.index(line[0].place) % len(_STYLES)],
            marker=colours.marker(who),
            markersize=4.5,
            linewidth=1.5,
        )
        lows, highs = [figure.low for figure in line], [figure.high for figure in line]
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
        for figure in line:
            if figure.target is not None:
                _draw_target(axes, _at(figure), figure.target)
    _scale_axes(axes, panel.figures)
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_xlabel(panel.figures[0].axis, fontsize=8)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)


def _draw_target(axes: Axes, at: float, target: Target) -> None:
    axes.plot(at, target.bound, "_", color=_TARGET, markersize=16, markeredgewidth=2)
    axes.annotate(
        _told(target),
        (at, target.bound),
        textcoords="offset points",
        xytext=(0, 4),
        ha="center",
        fontsize=7,
    )


def _told(target: Target) -> str:
    return f"{str(target)[0]} {amount(target.bound)}"


def _scale_axes(axes: Axes, figures: Sequence[Figure]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    places = sorted({_at(figure) for figure in figures})
    if _spans(places, _LOG_X):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(places) <= 8:
        axes.set_xticks(places, [amount(place) for place in places])
    if _spans([figure.value for figure in figures], _LOG_Y):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    axes.tick_params(labelsize=7)


def _at(figure: Figure) -> float:
    return 0.0 if figure.at is None else figure.at


def _spans(values: Sequence[float], factor: float) -> bool:
    return min(values) > 0 and max(values) / min(values) > factor


# Bars.


def _draw_bars(panel: _Panel, part: SubFigure, colours: Colours) -> None:
    axes = part.subplots()
    figures = panel.figures
    values = [figure.value for figure in figures]
    # Bars of ratios that are far apart start at 1, so that slower is left and faster is right.
    left = 1.0 if figures[0].unit == "ratio" and _spans(values, _LOG_RATIO) else 0.0
    spread: Any = [
        [max(0.0, figure.value - figure.low) for figure in figures],
        [max(0.0, figure.high - figure.value) for figure in figures],
    ]
    if left:
        axes.set_xscale("log")
    axes.barh(
        range(len(figures)),
        [value - left for value in values],
        left=left,
        height=0.7,
        color=[_colour(figure, colours) for figure in figures],
    )
    axes.errorbar(values, range(len(figures)), xerr=spread, fmt="none", ecolor="#55606b", elinewidth=1)
    for position, figure in enumerate(figures):
        _tell_value(axes, position, figure, left)
    axes.set_yticks(
        range(len(figures)), [panel.named(figure, label(figure)) for figure in figures], fontsize=7
    )
    axes.set_ylim(len(figures) - 0.4, -0.6)
    axes.margins(x=0.14)
    _finish_bars(axes, panel, left)


def _tell_value(axes: Axes, position: int, figure: Figure, left: float) -> None:
    ends = [figure.high, figure.value, left]
    text = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
    if figure.target is not None:
        bound = figure.target.bound
        axes.plot([bound] * 2, [position - 0.42, position + 0.42], color=_TARGET, linewidth=2)
        ends.append(bound)
        text = f"{text}  ({_told(figure.target)})"
    axes.annotate(
        text,
        (max(ends), position),
        textcoords="offset points",
        xytext=(5, 0),
        va="center",
        fontsize=7,
        color=_MISSED if figure.met is False else _TARGET,
    )


def _finish_bars(axes: Axes, panel: _Panel, left: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if left:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.axvline(left, color="#555555", linewidth=0.8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if any(figure.target for figure in panel.figures):
        handles = [
            Patch(color=_MET, label="target met"),
            Patch(color=_MISSED, label="not met"),
            Line2D(
                [],
                [],
                color=_TARGET,
                marker="|",
                linestyle="",
                markersize=9,
                markeredgewidth=2,
                label="target",
            ),
        ]
        axes.legend(
            handles=handles, fontsize=7, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), frameon=False
        )


def _colour(figure: Figure, colours: Colours) -> str:
    if figure.met is not None:
        return _MET if figure.met else _MISSED
    topic, who = _split(figure.name)
    return colours.of(who) if topic else _PLAIN
