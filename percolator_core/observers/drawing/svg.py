"""A chain's drawing as svg, without graphviz, scripts or fonts to load.

`svg` makes a complete document. `parts` makes the same for a page, which adds styles and links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape, quoteattr

from percolator_core.observers.drawing.layout import (
    CHARACTER,
    MARGIN,
    TITLE_HEIGHT,
    Box,
    Drawing,
    Line,
    lay_out,
)
from percolator_core.observers.drawing.style import (
    DARK,
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
    from collections.abc import Callable, Mapping

    from percolator_core.observers.graph import Graph

_FONT: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def svg(graph: Graph) -> str:
    """Return a complete document, light or dark as the reader's system prefers."""
    drawing = lay_out(graph)
    width, height = size(drawing)
    extent = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {extent} role="img" aria-labelledby="title">',
        f'<title id="title">{escape(f"Chain {drawing.name}")}</title>',
        f"<style>{_css()}</style>",
        _tips(drawing),
        '<rect class="ground" width="100%" height="100%" rx="8"/>',
        f'<text class="title" x="{MARGIN:g}" y="42">{escape(drawing.name)}</text>',
        *_svg_lines(drawing),
        *(_svg_box(box) for box in drawing.boxes),
        *_svg_legend(drawing),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class BoxLink:
    """The link that a page adds to a box, with its accessible label, its id and its classes.

    ``inside`` is svg in place of the line below an observer's name, relative to the box's upper left corner.
    """

    href: str
    label: str
    id: str
    classes: str = ""
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """A drawing without ``<svg>``, style and title. ``view`` is the viewBox."""

    view: tuple[float, float, float, float]
    body: str


def parts(drawing: Drawing, link: Callable[[Box], BoxLink]) -> Parts:
    """Return the lines, boxes and legend of a drawing for a page; boxes are in reading order."""
    width, height = size(drawing)
    in_order = sorted(drawing.boxes, key=lambda box: (box.layer, box.x if drawing.down else box.y))
    body = [
        _tips(drawing),
        *_svg_lines(drawing),
        *(_linked_box(box, link(box)) for box in in_order),
        *_svg_legend(drawing),
    ]
    return Parts((0.0, TITLE_HEIGHT, width, height - TITLE_HEIGHT), "\n".join(body))


def _svg_lines(drawing: Drawing) -> list[str]:
    # Lines that close a loop are drawn last, above all other lines.
    lines = sorted(drawing.lines, key=lambda line: edge_style(line.attributes) == "feedback")
    return [_svg_line(line) for line in lines]


def _svg_legend(drawing: Drawing) -> list[str]:
    entries = []
    for style, text, x, y in legend(drawing):
        entries.append(f'<path class="line {style}" marker-end="url(#to-{style})" d="M{x:g} {y:g}h24"/>')
        entries.append(f'<text class="small" x="{x + 36:g}" y="{y + 4:g}">{text}</text>')
    return entries


def _svg_line(line: Line) -> str:
    style = edge_style(line.attributes)
    steps = " ".join(letter + " ".join(f"{x:.1f} {y:.1f}" for x, y in points) for letter, points in line.path)
    return f'<path class="line {style}" marker-end="url(#to-{style})" d="{steps}"/>'


def _svg_box(box: Box) -> str:
    style = node_style(box.attributes)
    x, y, width, height, middle = box.x, box.y, box.width, box.height, box.x + box.width / 2
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    if box.attributes["kind"] == "observer":
        hint = escape(" — ".join(filter(None, (box.attributes["function"], box.attributes["description"]))))
        return (
            f'<g><title>{hint}</title><rect class="box {style}" {shape} rx="7"/>'
            f'<text class="name on-{style}" x="{middle:.1f}" y="{y + 20:.1f}">{escape(box.node)}</text>'
            f'<text class="under on-{style}" x="{middle:.1f}" y="{y + 36:.1f}">'
            f"{escape(subtitle(box.attributes))}</text></g>"
        )
    hint = f"<title>{escape(box.node)}</title>" if "".join(box.label) != box.node else ""
    return f'<g>{hint}<rect class="box {style}" {shape} rx="{height / 2:g}"/>{_column_name(box)}</g>'


def _linked_box(box: Box, link: BoxLink) -> str:
    style, observer = node_style(box.attributes), box.attributes["kind"] == "observer"
    radius = 8.0 if observer else box.height / 2
    name = (
        f'<text class="name on-{style}" x="{box.x + 28:.1f}" y="{box.y + 21:.1f}">{escape(box.node)}</text>'
        f'<g transform="translate({box.x:.1f} {box.y:.1f})">{link.inside}</g>'
        if observer
        else _column_name(box)
    )
    classes = " ".join(filter(None, ("node", box.attributes["kind"], link.classes)))
    return (
        f"<a href={quoteattr(link.href)} id={quoteattr(link.id)} class={quoteattr(classes)} "
        f"aria-label={quoteattr(link.label)}><title>{escape(link.label)}</title>"
        f'<rect class="box {style}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius:g}"/>{name}</a>'
    )


def _column_name(box: Box) -> str:
    table, column = box.label
    # The name of a column is stronger than its table; for several columns, the table is.
    styles = ("cell", "table") if box.attributes.get("columns") else ("table", "cell")
    start = box.x + box.width / 2 - (len(table) + len(column)) * CHARACTER / 2
    # A space at the beginning of a text is not drawn, but its width counts.
    space = len(column) - len(column.lstrip())
    return _fitted(styles[0], start, box.y + 18.5, table) + _fitted(
        styles[1], start + (len(table) + space) * CHARACTER, box.y + 18.5, column[space:]
    )


def _fitted(style: str, x: float, y: float, text: str) -> str:
    """Return text of a fixed width, in any font."""
    length = f'textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" {length}>{escape(text)}</text>'


def _tips(drawing: Drawing) -> str:
    markers = [
        f'<marker id="to-{style}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="tip {style}" d="M0 1L10 5L0 9z"/></marker>'
        for style in sorted({edge_style(line.attributes) for line in drawing.lines})
    ]
    return f"<defs>{''.join(markers)}</defs>"


def _css() -> str:
    fixed = [
        f"text{{font-family:{_FONT};font-size:13px}}",
        ".title{font-size:20px;font-weight:700}.small{font-size:11px}",
        ".name,.under{text-anchor:middle}.name{font-weight:700}.under{font-size:10.5px;opacity:.8}",
        ".box{stroke-width:1.4}.notify{stroke-dasharray:5 3}.line{fill:none}",
    ]
    for style, width in WIDTHS.items():
        dashes = f";stroke-dasharray:{DASHES[style][0]:g} {DASHES[style][1]:g}" if style in DASHES else ""
        fixed.append(f".line.{style}{{stroke-width:{width:g}{dashes}}}")
    return f"{''.join(fixed)}{_colours(LIGHT)}@media(prefers-color-scheme:dark){{{_colours(DARK)}}}"


def _colours(colours: Mapping[str, str]) -> str:
    rules = [
        f".ground{{fill:{colours['ground']}}}.title{{fill:{colours['title']}}}",
        f".small,.table{{fill:{colours['faint']}}}.cell{{fill:{colours['column-text']}}}",
        f".box.column{{fill:{colours['column-fill']};stroke:{colours['column']}}}",
        f".box.notify{{fill:{colours['column-fill']};stroke:{colours['weak']}}}",
    ]
    for mode in ("strong", "weak"):
        rules.append(f".box.{mode}{{fill:{colours[f'{mode}-fill']};stroke:{colours[mode]}}}")
        rules.append(f".on-{mode}{{fill:{colours[f'{mode}-text']}}}")
    rules.extend(
        f".line.{style}{{stroke:{colours[style]}}}.tip.{style}{{fill:{colours[style]}}}" for style in WIDTHS
    )
    return "".join(rules)
