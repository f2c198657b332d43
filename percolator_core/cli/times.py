"""Times as options and output have them: lengths of time in, moments in UTC out."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

import typer


def parse_length(text: str) -> timedelta:
    """A length such as ``90s``, ``15m``, ``1h``, ``7d`` or a number of seconds; raises typer.BadParameter.

    All that a chain's YAML takes for a duration is one here.
    """
    from percolator_core.observers.declaration import UNIT_SECONDS

    units = {**UNIT_SECONDS, "": 1.0, "min": 60.0, "d": 86_400.0}
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) ?([a-z]*)", text.strip())
    if match is None or match[2] not in units:
        raise typer.BadParameter(f"{text!r} is no length of time: write 90s, 15m, 1h or 7d")
    return timedelta(seconds=float(match[1]) * units[match[2]])


def show_time(timestamp: float, to: Literal["milliseconds", "microseconds"] = "milliseconds") -> str:
    """A timestamp in microseconds as a time in UTC."""
    # In two steps: as seconds in a float, a moment of today has no whole microseconds.
    seconds, microseconds = divmod(int(timestamp), 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
    return moment.isoformat(sep=" ", timespec=to).replace("+00:00", "Z")
