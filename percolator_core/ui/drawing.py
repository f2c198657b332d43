"""The drawing of a chain with live figures: the library's SVG with links and styles of the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from typing import Final
from urllib.parse import urlencode

from markupsafe import Markup

from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import show_age
from percolator_core.observers import Chain
from percolator_core.observers.drawing.folding import folded, without_readers
from percolator_core.observers.drawing.layout import Box, BoxSize, Drawing, lay_out
from percolator_core.observers.drawing.svg import BoxLink, parts
from percolator_core.ui.links import Links
from percolator_core.ui.standing import Standing, show_rate

_OBSERVER_SIZE: Final = BoxSize(width=232.0, height=70.0, gap=30.0)

WIDEST: Final = 1500.0
"""The greatest width of a drawing from left to right. A wider one runs from top to bottom: to fit on a
screen of 1440 pixels, it would have to be too small to read."""

_INSET: Final = 12.0
_SHORT: Final = 15
"""The longest name, in characters, that the zoomed-out drawing shows 1.5 times as large."""

_LINES: Final = (40.0, 58.0)
"""The y coordinates of the lines below the name."""


@dataclass(frozen=True, slots=True)
class View:
    """The tables whose columns are not folded; with ``reads``, columns that are only read are drawn, too."""

    opened: frozenset[str] = frozenset()
    reads: bool = False

    def toggled(self, table: str) -> View:
        """Return the view with the columns of the table folded, or unfolded."""
        return replace(self, opened=self.opened ^ {table})

    def link(self, links: Links) -> str:
        """Return the link to the graph in this view."""
        names = [("open", table) for table in sorted(self.opened)]
        query = urlencode([*names, *([("reads", "1")] if self.reads else [])])
        return links.to("") + (f"?{query}" if query else "") + "#graph"


def foldable(chain: Chain) -> list[str]:
    """Return the tables with several columns in the graph, sorted."""
    tables = Counter(node["table"] for _, node in chain.graph.nodes(data=True) if node["kind"] == "column")
    return sorted(table for table, count in tables.items() if count > 1)


@lru_cache(maxsize=100)
def _layout(chain: Chain, view: View) -> Drawing:
    """Place the boxes of a chain; the result is cached, because a large chain takes a while."""
    graph = folded(chain.graph if view.reads else without_readers(chain.graph), view.opened)
    across = lay_out(graph, _OBSERVER_SIZE)
    return across if across.width <= WIDEST else lay_out(graph, _OBSERVER_SIZE, down=True)


def draw(chain: Chain, view: View, standings: Mapping[str, Standing], links: Links) -> Markup:
    """Draw the chain's graph; each observer has its figures, and each box is a link."""
    drawing = _layout(chain, view)

    def link(box: Box) -> BoxLink:
        if box.attributes["kind"] == "observer":
            return _observer(box, standings.get(box.node), links)
        table, columns = box.attributes["table"], box.attributes.get("columns")
        # The position is the id, because the name of a column may be any text.
        number = next(index for index, one in enumerate(drawing.boxes) if one is box)
        if columns:
            label = f"Unfold the columns of {table}: {', '.join(map(abbreviated, columns))}"
            return BoxLink(view.toggled(table).link(links), label, f"column-{number}", "folded")
        label = f"{''.join(box.label)}: the rows of {table}"
        return BoxLink(links.table(table, "rows"), label, f"column-{number}")

    made = parts(drawing, link)
    left, top, width, height = made.view
    # `parts` and `_observer` have escaped all text that people wrote.
    return Markup(  # noqa: S704
        f'<svg class="chain" role="group" aria-label="The chain as a drawing" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="{left:.0f} {top:.0f} {width:.0f} {height:.0f}">{made.body}</svg>'
    )


def _observer(box: Box, standing: Standing | None, links: Links) -> BoxLink:
    name = f"observer-{box.node}"
    if standing is None:
        return BoxLink(links.observer(box.node), f"{box.node}: its state is unknown", name, "is-inactive")
    # Zoomed out, only the names are shown; short names are larger.
    long = " long" if len(box.node) > _SHORT else ""
    return BoxLink(
        links.observer(box.node),
        sentence(standing),
        name,
        f"is-{standing.state}{long}",
        _inside(box, standing),
    )


def sentence(standing: Standing) -> str:
    """Return all figures of an observer in a sentence, for screen readers."""
    now, rate = standing.now, standing.rate
    facts = [f"{standing.word}: {standing.why}", f"backlog {now.backlog:,}"]
    if now.oldest is not None:
        facts.append(f"oldest {show_age(now.oldest)}")
    if rate is not None:
        facts.append(f"{show_rate(rate.runs)} runs a second")
    facts.append(f"{now.failed:,} in quarantine")
    return f"{now.name}, {'; '.join(facts)}"


def _inside(box: Box, standing: Standing) -> str:
    now, rate, right = standing.now, standing.rate, box.width - _INSET
    first, second = _LINES
    lines = [
        f'<use class="sign" href="#sign-{standing.state}" x="{_INSET - 1:g}" y="10" width="13" height="13"/>',
        _text("state", _INSET, first, _doing(standing)),
    ]
    if rate is not None:
        lines.append(_text("end", right, first, f"{show_rate(rate.runs)} runs/s"))
    lines.append(_text("", _INSET, second, f"backlog {_brief(now.backlog)}"))
    if now.failed:
        lines.append(_text("failed end", right, second, f"quarantine {_brief(now.failed)}"))
    elif now.oldest is not None:
        lines.append(_text("end", right, second, f"oldest {show_age(now.oldest)}"))
    return "".join(lines)


def _doing(standing: Standing) -> str:
    """Return the state's name, with the rate of failures if there are any."""
    rate = standing.rate
    return standing.word + (
        f" {show_rate(rate.failures)}/s" if rate is not None and rate.failures > 0 else ""
    )


def _brief(number: int) -> str:
    """Shorten a number to fit into a box of the drawing. The table below the drawing has all digits."""
    for unit, length in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 100 * length or number >= length >= 10**6:
            return f"{number / length:.3g} {unit}"
    return f"{number:,}"


def _text(classes: str, x: float, y: float, text: str) -> str:
    return f'<text class="fact {classes}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
