"""Render pages: the templates, their filters, and the values that all pages share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.templating import Jinja2Templates

from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of, show_age, show_size
from percolator_core.notation.times import show_time
from percolator_core.ui.host import ShownChain
from percolator_core.ui.standing import STATES, show_rate

TABS: Final = (
    ("", "Graph"),
    ("plots", "Plots"),
    ("quarantine", "Quarantine"),
    ("locks", "Locks"),
    ("tables", "Tables"),
    ("trace", "Trace"),
)
"""The pages of a chain: the path below the chain's path, and the label."""

templates: Final = Jinja2Templates(directory=Path(__file__).parent / "templates")
templates.env.filters.update(
    age=show_age,
    since=lambda time, now: (now - time) / 1e6,  # seconds between two timestamps
    size=show_size,
    time=show_time,
    count=count_of,
    number="{:,}".format,
    rate=show_rate,
    quoted=quote,
    short=abbreviated,
)
templates.env.globals.update(states=STATES)
templates.env.trim_blocks = templates.env.lstrip_blocks = True


def page(
    request: Request,
    template: str,
    *,
    chain: ShownChain | None = None,
    tab: str | None = None,
    status: int = 200,
    **context: Any,
) -> Response:
    """Render a template; ``tab`` is the path of one of `TABS`."""
    root = request.scope.get("root_path", "")
    return templates.TemplateResponse(
        request,
        template,
        {
            "root": root,
            "here": f"{root}/{chain.name}" if chain is not None else root,
            "chain": chain,
            "tab": tab,
            "tabs": TABS,
            **context,
        },
        status_code=status,
    )


def wants_page(request: Request) -> bool:
    """Return True if a browser requests a page, False if a program requests data."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")
