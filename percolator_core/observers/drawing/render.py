"""A chain's graph as mermaid, dot, svg or png.

``mermaid`` and ``dot`` are text for other tools; ``svg`` and ``png`` are drawn here, without graphviz. The
svg has light or dark colours as the reader's system prefers, and always a background. Only ``png`` needs
matplotlib, which the ``plot`` extra installs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from percolator_core.errors import ConfigurationError, abbreviated
from percolator_core.observers.drawing.png import png
from percolator_core.observers.drawing.style import LIGHT, edge_style, node_style
from percolator_core.observers.drawing.svg import svg

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from percolator_core.observers.graph import Graph


def render(graph: Graph, form: str) -> str | bytes:
    """Return the graph as ``"mermaid"``, ``"dot"`` or ``"svg"`` (text) or ``"png"`` (bytes).

    Raises ConfigurationError for another form, or for png without matplotlib.
    """
    if form not in FORMS:
        raise ConfigurationError(f"{form!r} is not a form of the graph; choose {', '.join(FORMS)}")
    return FORMS[form](graph)


def mermaid(graph: Graph) -> str:
    """Return a mermaid flowchart, which GitHub and many editors show."""
    ids = {node: f"n{number}" for number, node in enumerate(graph)}
    lines = ["flowchart LR"]
    for node, attributes in graph.nodes(data=True):
        text = escape(_label(node, attributes), {'"': "&quot;"})
        shape = f'["{text}"]' if attributes["kind"] == "observer" else f'(["{text}"])'
        lines.append(f"    {ids[node]}{shape}:::{node_style(attributes)}")
    arrows = {"strong": "-->", "weak": "-.->", "writes": "-->", "reads": "-.-", "feedback": "==>|feedback|"}
    for source, target, attributes in graph.edges(data=True):
        lines.append(f"    {ids[source]} {arrows[edge_style(attributes)]} {ids[target]}")
    for style in ("strong", "weak", "column"):
        colours = f"fill:{LIGHT[f'{style}-fill']},stroke:{LIGHT[style]},color:{LIGHT[f'{style}-text']}"
        lines.append(f"    classDef {style} {colours}")
    colours = f"fill:{LIGHT['column-fill']},stroke:{LIGHT['weak']},color:{LIGHT['column-text']}"
    lines.append(f"    classDef notify {colours},stroke-dasharray:5 3")
    return "\n".join(lines) + "\n"


def _label(node: str, attributes: Mapping[str, Any]) -> str:
    if attributes["kind"] == "observer":
        return node
    return f"{attributes['table']}.{abbreviated(attributes['column'])}"


def dot(graph: Graph) -> str:
    """Return the graph in the language of Graphviz."""

    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = [
        f"digraph {quote(str(graph.graph.get('name', '')))} {{",
        "    rankdir=LR;",
        '    node [fontname="monospace", fontsize=11];',
    ]
    borders = {"column": "filled,rounded", "notify": "filled,rounded,dashed"}
    for node, attributes in graph.nodes(data=True):
        style = node_style(attributes)
        colour = "column" if style == "notify" else style
        shape = f'shape=box, style="{borders.get(style, "filled")}"'
        label = _label(node, attributes)
        shown = f"label={quote(label)}, " if label != node else ""
        lines.append(
            f"    {quote(node)} [{shown}{shape}, color={quote(LIGHT[colour])}, "
            f"fillcolor={quote(LIGHT[f'{colour}-fill'])}, fontcolor={quote(LIGHT[f'{colour}-text'])}];"
        )
    dashes = {
        "weak": ", style=dashed",
        "reads": ", style=dotted",
        "feedback": ', penwidth=2, label="feedback"',
    }
    for source, target, attributes in graph.edges(data=True):
        style = edge_style(attributes)
        colour = quote(LIGHT[style])
        lines.append(f"    {quote(source)} -> {quote(target)} [color={colour}{dashes.get(style, '')}];")
    return "\n".join([*lines, "}"]) + "\n"


FORMS: Final[dict[str, Callable[[Graph], str | bytes]]] = {
    "mermaid": mermaid,
    "dot": dot,
    "svg": svg,
    "png": png,
}
"""The function for each form of ``render``."""
