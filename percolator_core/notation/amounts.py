"""Text for ages, sizes and counts."""

from __future__ import annotations


def show_age(seconds: float | None) -> str:
    """Return an age in seconds as text, such as ``2.5 s`` or ``3 d``; ``-`` for None."""
    if seconds is None:
        return "-"
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def show_size(size: float) -> str:
    """Return a number of bytes with a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def count_of(number: int, thing: str) -> str:
    """Return a count and its noun: ``1 row``, ``2 rows``, ``1,000 rows``."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
