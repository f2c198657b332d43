"""The drawing of a chain with live figures: the library's SVG with links and styles of the pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from html import escape
from typing import Final

from markupsafe import Markup

from percolator_airflow.ui.links import Links
from percolator_airflow.ui.standing import Standing, show_rate
from percolator_core.notation.amounts import show_age
from percolator_core.observers import Chain
from percolator_core.observers.drawing.layout import Box, BoxSize, Drawing, lay_out
from percolator_core.observers.drawing.style import subtitle
from percolator_core.observers.drawing.svg import BoxLink, parts

_OBSERVER_SIZE: Final = BoxSize(width=208.0, height=84.0)
_INSET: Final = 12.0
_SHORT: Final = 15
"""The longest name, in characters, that the zoomed-out drawing shows 1.5 times as large."""

_LINES: Final = (39.0, 56.0, 73.0)
"""The y coordinates of the lines below the name."""


@lru_cache(maxsize=100)
def _layout(chain: Chain) -> Drawing:
    """Place the boxes of a chain; the result is cached, because a large chain takes a while."""
    return lay_out(chain.graph, _OBSERVER_SIZE)


def draw(chain: Chain, standings: Mapping[str, Standing], links: Links) -> Markup:
    """Draw the chain's graph; each observer has its figures, and each box is a link."""
    drawing = _layout(chain)

    def link(box: Box) -> BoxLink:
        if box.attributes["kind"] == "observer":
            return _observer(box, standings.get(box.node), links)
        table = box.attributes["table"]
        href = links.table(table, "rows")
        # The position is the id, because the name of a column may be any text.
        number = next(index for index, one in enumerate(drawing.boxes) if one is box)
        return BoxLink(href, f"{''.join(box.label)}: the rows of {table}", f"column-{number}")

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
        return BoxLink(f"#row-{box.node}", f"{box.node}: its state is unknown", name, "is-inactive")
    now = standing.now
    # Zoomed out, only the names are shown; short names are larger.
    long = " long" if len(box.node) > _SHORT else ""
    href = links.to("quarantine", observer=box.node) if now.failed else f"#row-{box.node}"
    return BoxLink(href, sentence(standing), name, f"is-{standing.state}{long}", _inside(box, standing))


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
    first, second, third = _LINES
    lines = [
        f'<use class="sign" href="#sign-{standing.state}" x="{_INSET - 1:g}" y="10" width="13" height="13"/>',
        _text("state", _INSET, first, _doing(standing)),
    ]
    if rate is not None:
        lines.append(_text("end", right, first, f"{show_rate(rate.runs)} runs/s"))
    lines.append(_text("", _INSET, second, f"backlog {_brief(now.backlog)}"))
    if now.oldest is not None:
        lines.append(_text("end", right, second, f"oldest {show_age(now.oldest)}"))
    if now.failed:
        lines.append(_text("failed", _INSET, third, f"{_brief(now.failed)} in quarantine"))
    else:
        lines.append(_text("faint", _INSET, third, subtitle(box.attributes)))
    return "".join(lines)


def _doing(standing: Standing) -> str:
    """Return the state's name, with the rate of failures if there are any."""
    rate = standing.rate
    return standing.word + (
        f" {show_rate(rate.failures)}/s" if rate is not None and rate.failures > 0 else ""
    )


def _brief(number: int) -> str:
    """Shorten a number to fit into a box of the drawing. The table below the drawing has all digits."""
    for unit, length in (("G", 10**9), ("M", 10**6)):
        if number >= length:
            return f"{number / length:.2f} {unit}"
    return f"{number:,}"


def _text(classes: str, x: float, y: float, text: str) -> str:
    return f'<text class="fact {classes}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
