"""A chain's drawing as svg, by hand: no graphviz, no script, no font to load.

`svg` makes a document that needs nothing else. `parts` makes the same lines and boxes for a page that has
styles and links of its own.
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
    """A drawing that needs nothing else; light or dark as the reader's system is."""
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
class Dress:
    """What a page adds to a box: a link, with the name that it is told by, an id and classes.

    ``inside`` is svg that stands in an observer's box below its name, from its upper left corner; it
    replaces the line under the name, and the name then begins at the left.
    """

    href: str
    label: str
    id: str
    classes: str = ""
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """A drawing without its frame: no ``<svg>``, no style, no title. ``view`` is the frame's viewBox."""

    view: tuple[float, float, float, float]
    body: str


def parts(drawing: Drawing, dress: Callable[[Box], Dress]) -> Parts:
    """The lines, boxes and legend of a drawing for a page. Boxes come in reading order."""
    width, height = size(drawing)
    body = [
        _tips(drawing),
        *_svg_lines(drawing),
        *(_linked_box(box, dress(box)) for box in sorted(drawing.boxes, key=lambda box: (box.layer, box.y))),
        *_svg_legend(drawing),
    ]
    return Parts((0.0, TITLE_HEIGHT, width, height - TITLE_HEIGHT), "\n".join(body))


def _svg_lines(drawing: Drawing) -> list[str]:
    # Those that close a loop lie over the others.
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


def _linked_box(box: Box, dress: Dress) -> str:
    style, observer = node_style(box.attributes), box.attributes["kind"] == "observer"
    radius = 8.0 if observer else box.height / 2
    name = (
        f'<text class="name on-{style}" x="{box.x + 28:.1f}" y="{box.y + 21:.1f}">{escape(box.node)}</text>'
        f'<g transform="translate({box.x:.1f} {box.y:.1f})">{dress.inside}</g>'
        if observer
        else _column_name(box)
    )
    classes = " ".join(filter(None, ("node", box.attributes["kind"], dress.classes)))
    return (
        f"<a href={quoteattr(dress.href)} id={quoteattr(dress.id)} class={quoteattr(classes)} "
        f"aria-label={quoteattr(dress.label)}><title>{escape(dress.label)}</title>"
        f'<rect class="box {style}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius:g}"/>{name}</a>'
    )


def _column_name(box: Box) -> str:
    table, column = box.label
    start = box.x + box.width / 2 - (len(table) + len(column)) * CHARACTER / 2
    return _fitted("table", start, box.y + 18.5, table) + _fitted(
        "cell", start + len(table) * CHARACTER, box.y + 18.5, column
    )


def _fitted(style: str, x: float, y: float, text: str) -> str:
    """Text that takes the room it was given, whatever font the reader has."""
    length = f'textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" {length}>{escape(text)}</text>'


def _tips(drawing: Drawing) -> str:
    styles = sorted({edge_style(line.attributes) for line in drawing.lines})
    return f"<defs>{''.join(map(_marker, styles))}</defs>"


def _marker(style: str) -> str:
    return (
        f'<marker id="to-{style}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="tip {style}" d="M0 1L10 5L0 9z"/></marker>'
    )


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
