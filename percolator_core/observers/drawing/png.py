"""A chain's drawing as png. It needs matplotlib, which the ``plot`` extra installs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import ConfigurationError
from percolator_core.observers.drawing.layout import CHARACTER, MARGIN, Box, Point, Step, lay_out
from percolator_core.observers.drawing.style import (
    DASHES,
    LIGHT,
    WIDTHS,
    edge_style,
    legend,
    node_style,
    size,
    subtitle,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from percolator_core.observers.graph import Graph

_POINT: Final = 0.72
"""Points per pixel, at 100 pixels per inch."""
_MOST_PIXELS: Final = 30_000


def png(graph: Graph) -> bytes:
    """Return the drawing as png, with twice the resolution of the svg.

    Raises ConfigurationError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError(
            "a png needs matplotlib: pip install 'percolator-core[plot]', or choose svg"
        ) from None
    drawing = lay_out(graph)
    width, height = size(drawing)
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor=LIGHT["ground"])
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    _write(axes, (MARGIN, 32), drawing.name, LIGHT["title"], 17, weight="bold")
    for line in sorted(drawing.lines, key=lambda line: edge_style(line.attributes) == "feedback"):
        _draw_line(axes, line.path, edge_style(line.attributes))
    for box in drawing.boxes:
        _draw_box(axes, box)
    for style, text, x, y in legend(drawing):
        _draw_line(axes, (("M", ((x, y),)), ("L", ((x + 26, y),))), style)
        _write(axes, (x + 36, y), text, LIGHT["faint"], 11)
    buffer = io.BytesIO()
    # matplotlib refuses an image with too many pixels, such as the image of thousands of observers.
    resolution = min(200.0, 100.0 * _MOST_PIXELS / max(width, height))
    figure.savefig(buffer, format="png", dpi=resolution, facecolor=LIGHT["ground"])
    return buffer.getvalue()


def _draw_line(axes: Axes, steps: Sequence[Step], style: str) -> None:
    from matplotlib.patches import PathPatch, Polygon
    from matplotlib.path import Path

    codes = {"M": [Path.MOVETO], "L": [Path.LINETO], "Q": [Path.CURVE3] * 2, "C": [Path.CURVE4] * 3}
    points = [point for _, ends in steps for point in ends]
    path = Path(points, [code for letter, _ in steps for code in codes[letter]])
    dashes = (0, DASHES[style]) if style in DASHES else "solid"
    colour = LIGHT[style]
    width = WIDTHS[style] * _POINT
    axes.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=width, linestyle=dashes))
    # Every path ends horizontally, to the right.
    x, y = points[-1]
    tip = [(x, y), (x - 8, y - 3.4), (x - 8, y + 3.4)]
    axes.add_patch(Polygon(tip, closed=True, facecolor=colour, edgecolor="none"))


def _draw_box(axes: Axes, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = node_style(box.attributes)
    observer = box.attributes["kind"] == "observer"
    fill = style if observer else "column"
    frame = FancyBboxPatch(
        (box.x, box.y),
        box.width,
        box.height,
        boxstyle=f"round,pad=0,rounding_size={7 if observer else box.height / 2}",
        facecolor=LIGHT[f"{fill}-fill"],
        edgecolor=LIGHT["weak" if style == "notify" else style],
        linewidth=1.4 * _POINT,
        linestyle=(0, (4, 2.5)) if style == "notify" else "solid",
    )
    axes.add_patch(frame)
    middle = box.x + box.width / 2
    if observer:
        text = LIGHT[f"{style}-text"]
        _write(axes, (middle, box.y + 16), box.node, text, 13, weight="bold", ha="center")
        _write(axes, (middle, box.y + 32.5), subtitle(box.attributes), text, 10.5, ha="center", alpha=0.8)
    else:
        table, column = box.label
        start = middle - (len(table) + len(column)) * CHARACTER / 2
        _write(axes, (start, box.middle), table, LIGHT["faint"], 13)
        after = start + len(table) * CHARACTER
        _write(axes, (after, box.middle), column, LIGHT["column-text"], 13)


def _write(axes: Axes, at: Point, text: str, colour: str, pixels: float, **options: Any) -> None:
    # Without parse_math=False, dollar signs in a name would begin a formula.
    axes.text(
        *at,
        text,
        color=colour,
        fontsize=pixels * _POINT,
        family="monospace",
        va="center_baseline",
        parse_math=False,
        **options,
    )
