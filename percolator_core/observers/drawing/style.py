"""The style of a chain's drawing: light and dark colours, line styles, and the legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from percolator_core.observers.drawing.layout import CHARACTER, MARGIN, Drawing

if TYPE_CHECKING:
    from collections.abc import Mapping

LIGHT: Final = {
    "ground": "#ffffff",
    "title": "#16202c",
    "faint": "#66727f",
    "strong": "#2f6bd0",
    "strong-fill": "#e9f1fe",
    "strong-text": "#123a78",
    "weak": "#8447c6",
    "weak-fill": "#f5ecfe",
    "weak-text": "#4f1f86",
    "column": "#94a1ae",
    "column-fill": "#f5f7f9",
    "column-text": "#1f2a36",
    "writes": "#71808e",
    "reads": "#94a1ae",
    "feedback": "#cf5f10",
}
DARK: Final = {
    "ground": "#11161d",
    "title": "#eef2f6",
    "faint": "#97a3af",
    "strong": "#6ea2f7",
    "strong-fill": "#182c4d",
    "strong-text": "#dce9ff",
    "weak": "#bf8df2",
    "weak-fill": "#33204b",
    "weak-text": "#efe0ff",
    "column": "#5f6d7b",
    "column-fill": "#1c242d",
    "column-text": "#e3e8ee",
    "writes": "#8e9caa",
    "reads": "#77858f",
    "feedback": "#f59147",
}
WIDTHS: Final = {"strong": 1.6, "weak": 1.6, "writes": 1.4, "reads": 1.3, "feedback": 2.0}
DASHES: Final = {"weak": (6.0, 4.0), "reads": (1.5, 3.5)}
LEGEND: Final = {
    "strong": "wakes",
    "weak": "wakes, weakly",
    "writes": "writes",
    "reads": "is read by",
    "feedback": "closes a loop",
}


def node_style(attributes: Mapping[str, Any]) -> str:
    """Return ``strong`` or ``weak`` for an observer, ``column`` or ``notify`` (notify-only) for a column."""
    if attributes["kind"] == "observer":
        return str(attributes["mode"])
    return "notify" if attributes["notify_only"] else "column"


def edge_style(attributes: Mapping[str, Any]) -> str:
    """Return ``strong`` or ``weak`` for an edge that wakes, else ``feedback``, ``reads`` or ``writes``."""
    if attributes["kind"] == "observe":
        return str(attributes["mode"])
    return "feedback" if attributes.get("feedback") else str(attributes["kind"])


def subtitle(attributes: Mapping[str, Any]) -> str:
    """Return the line below the name in an observer's box."""
    mode = str(attributes["mode"])
    return f"{mode} · threads" if attributes["executor"] == "threads" else mode


def legend(drawing: Drawing) -> list[tuple[str, str, float, float]]:
    """Return the legend below the drawing: ``(style, text, x, y)`` for each of its line styles."""
    seen = {edge_style(line.attributes) for line in drawing.lines}
    entries, x = [], MARGIN
    for style, text in LEGEND.items():
        if style in seen:
            entries.append((style, text, x, drawing.height + 4))
            x += 36 + len(text) * CHARACTER * 0.85 + 26
    return entries


def size(drawing: Drawing) -> tuple[float, float]:
    """Return width and height in pixels, with title and legend."""
    entries = legend(drawing)
    right = 0.0
    if entries:
        _, text, x, _ = entries[-1]
        right = x + 36 + len(text) * CHARACTER * 0.85
    title = len(drawing.name) * 11.0
    return max(drawing.width, right + MARGIN, title + 2 * MARGIN), drawing.height + (26 if entries else 0)
