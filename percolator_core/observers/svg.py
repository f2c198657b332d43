"""A chain's drawing as svg, by hand: no graphviz, no script, no font to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from percolator_core.observers.layout import CHARACTER, MARGIN, Box, Line, lay_out
from percolator_core.observers.style import (
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
    from collections.abc import Mapping

    from percolator_core.observers.graph import Graph

_FONT: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def svg(graph: Graph) -> str:
    """A drawing that needs nothing else; light or dark as the reader's system is."""
    drawing = lay_out(graph)
    width, height = size(drawing)
    styles = sorted({edge_style(line.attributes) for line in drawing.lines})
    extent = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {extent} role="img" aria-labelledby="title">',
        f'<title id="title">{escape(f"Chain {drawing.name}")}</title>',
        f"<style>{_css()}</style>",
        f"<defs>{''.join(map(_marker, styles))}</defs>",
        '<rect class="ground" width="100%" height="100%" rx="8"/>',
        f'<text class="title" x="{MARGIN:g}" y="42">{escape(drawing.name)}</text>',
    ]
    parts.extend(
        _svg_line(line)
        for line in sorted(drawing.lines, key=lambda line: edge_style(line.attributes) == "feedback")
    )
    parts.extend(_svg_box(box) for box in drawing.boxes)
    for style, text, x, y in legend(drawing):
        parts.append(f'<path class="line {style}" marker-end="url(#to-{style})" d="M{x:g} {y:g}h24"/>')
        parts.append(f'<text class="small" x="{x + 36:g}" y="{y + 4:g}">{text}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


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
    table, column = f"{box.attributes['table']}.", box.attributes["column"]
    start = middle - len(box.node) * CHARACTER / 2
    return (
        f'<g><rect class="box {style}" {shape} rx="{height / 2:g}"/>'
        + _fitted("table", start, y + 18.5, table)
        + _fitted("cell", start + len(table) * CHARACTER, y + 18.5, column)
        + "</g>"
    )


def _fitted(style: str, x: float, y: float, text: str) -> str:
    """Text that takes the room it was given, whatever font the reader has."""
    length = f'textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" {length}>{escape(text)}</text>'


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
