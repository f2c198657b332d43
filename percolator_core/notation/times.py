"""Times as options and output have them: lengths of time in, moments in UTC out."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from percolator_core.notation.error import NotationError

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
"""The units of durations in declarations."""


def parse_length(text: str) -> timedelta:
    """A length such as ``90s``, ``15m``, ``1h``, ``7d`` or a number of seconds; raises NotationError.

    All that a chain's YAML takes for a duration is one here.
    """
    units = {**UNIT_SECONDS, "": 1.0, "min": 60.0, "d": 86_400.0}
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) ?([a-z]*)", text.strip())
    if match is None or match[2] not in units:
        raise NotationError(f"{text!r} is no length of time: write 90s, 15m, 1h or 7d")
    return timedelta(seconds=float(match[1]) * units[match[2]])


def show_time(timestamp: float, to: Literal["milliseconds", "microseconds"] = "milliseconds") -> str:
    """A timestamp in microseconds as a time in UTC."""
    # In two steps: as seconds in a float, a moment of today has no whole microseconds.
    seconds, microseconds = divmod(int(timestamp), 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
    return moment.isoformat(sep=" ", timespec=to).replace("+00:00", "Z")


def parse_time(text: str | None, option: str = "--at") -> int | datetime | None:
    """What ``--at`` means; raises NotationError for what is no time, or has no time zone."""
    if text is None or not text.strip():
        return None
    if text.isascii() and text.isdecimal():
        # As many digits as 2**53 has: an int of any length takes long to read, or is refused.
        if len(text) <= 16 and 0 < int(text) < 2**53:
            return int(text)
        raise NotationError(f"{option} {text[:40]}: microseconds since 1970 are 1 to 2**53 - 1")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None:
        raise NotationError(
            f"{option} {text!r} is no time: write 2026-11-20T10:00:00Z, or microseconds since 1970"
        )
    if moment.tzinfo is None:
        raise NotationError(f"{option} {text!r} has no time zone: add Z for UTC, or an offset such as +02:00")
    return moment
