"""Ranges of row keys: their bounds, and the limit of a scan."""

from __future__ import annotations

from typing import TypeAlias

from percolator_core.layout.records import row_bytes

KeyRange: TypeAlias = tuple[bytes, bytes, bytes | None]
"""A tablet's tag, the first row key, and the exclusive upper bound; None means the tablet's end."""


def scan_bounds(
    start: str | bytes | None, stop: str | bytes | None, prefix: str | bytes | None
) -> tuple[bytes, bytes | None]:
    """Return the bounds of a scan. ``low`` is inclusive, ``high`` exclusive; None means no upper bound."""
    low = row_bytes(start) if start is not None else b""
    high = row_bytes(stop) if stop is not None else None
    if prefix is not None:
        key = row_bytes(prefix)
        low = max(low, key)
        above = _least_above_prefix(key)
        if above is not None:
            high = above if high is None else min(high, above)
    return low, high


def _least_above_prefix(prefix: bytes) -> bytes | None:
    """Return the least key above all keys with the prefix; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def check_limit(limit: int, least: int) -> None:
    """Raise TypeError if ``limit`` is no int, ValueError if it is below ``least``."""
    if not isinstance(limit, int):
        raise TypeError(f"limit is int, not {type(limit).__name__}")
    if limit < least:
        raise ValueError(f"limit is {least} or more, not {limit}")
