"""Parse durations and times, and show timestamps in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from percolator_core.notation.error import NotationError

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
"""The units of durations in declarations."""


def parse_length(text: str) -> timedelta:
    """Parse a duration such as ``90s``, ``15m``, ``1h`` or ``7d``.

    This accepts every duration that a chain's YAML accepts. Raises NotationError for other text, also for a
    number without a unit: hours and days are usual, so a bare number would often mean something else.
    """
    units = {**UNIT_SECONDS, "min": 60.0, "d": 86_400.0}
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) ?([a-z]*)", text.strip())
    if match is not None and not match[2]:
        number = match[1]
        raise NotationError(f"{text!r} has no unit: write {number}s, {number}m, {number}h or {number}d")
    if match is None or match[2] not in units:
        raise NotationError(f"{text!r} is not a duration: write 90s, 15m, 1h or 7d")
    return timedelta(seconds=float(match[1]) * units[match[2]])


def show_time(timestamp: float, to: Literal["milliseconds", "microseconds"] = "milliseconds") -> str:
    """Return a timestamp in microseconds since 1970 as a time in UTC."""
    # A float of seconds since 1970 cannot hold microseconds exactly, so integers are divided.
    seconds, microseconds = divmod(int(timestamp), 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
    return moment.isoformat(sep=" ", timespec=to).replace("+00:00", "Z")


def parse_time(text: str | None, option: str = "--at") -> int | datetime | timedelta | None:
    """Parse a time; return None for empty text, and a timedelta for a length of time before now.

    Raises NotationError for other text or a missing zone.
    """
    if text is None or not text.strip():
        return None
    if text.isascii() and text.isdecimal():
        # 2**53 has 16 digits. Longer text is not parsed, because Python is slow for very long integers, or
        # refuses them.
        if len(text) <= 16 and 0 < int(text) < 2**53:
            return int(text)
        raise NotationError(f"{option} {text[:40]}: microseconds since 1970 are 1 to 2**53 - 1")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return parse_length(text.removesuffix(" ago"))
        except (NotationError, OverflowError):
            raise NotationError(
                f"{option} {text!r} is not a time: write 2026-11-20T10:00:00Z, microseconds since 1970, or "
                "15m for 15 minutes ago"
            ) from None
    if moment.tzinfo is None:
        raise NotationError(f"{option} {text!r} has no time zone: add Z for UTC, or an offset such as +02:00")
    return moment
