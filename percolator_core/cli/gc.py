"""``gc``: drop versions that nobody reads any more."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.data import show_time
from percolator_core.cli.options import DEFAULT_URL, Namespace, Url, connect_to_existing


def gc(
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="Keep what snapshots of this age can see: 90s, 15m, 1h, 7d.")
    ] = "1h",
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Collect garbage: resolve old locks, then drop versions that no snapshot can see.

    Older snapshots are refused from then on; pinned ones hold it back. It may be stopped and repeated at any
    time.
    """
    length = parse_age(keep)
    output = outputs.current()
    output.carry_on = "`percolator gc` carries on"
    with connect_to_existing(url, namespace) as db:
        done = db.collect_garbage(length)
    numbers = ["versions dropped", "rows dropped", "locks resolved"]
    shown = outputs.table(*numbers, "safe point", numbers=numbers)
    settled = done.locks.committed + done.locks.rolled_back
    shown.add_row(str(done.versions), str(done.rows), str(settled), show_time(done.safe_point))
    output.result(asdict(done), shown)


def parse_age(text: str) -> timedelta:
    """A time such as ``90s``, ``15m``, ``1h``, ``7d`` or a number of seconds; raises typer.BadParameter.

    All that a chain's YAML takes for a duration is one here.
    """
    from percolator_core.observers.declaration import UNIT_SECONDS

    units = {**UNIT_SECONDS, "": 1.0, "min": 60.0, "d": 86_400.0}
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) ?([a-z]*)", text.strip())
    if match is None or match[2] not in units:
        raise typer.BadParameter(f"{text!r} is no length of time: write 90s, 15m, 1h or 7d")
    return timedelta(seconds=float(match[1]) * units[match[2]])
