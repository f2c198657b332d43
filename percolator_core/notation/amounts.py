"""Ages, sizes and counts, as people say them."""

from __future__ import annotations


def show_age(seconds: float | None) -> str:
    """Seconds as people say them; a dash for None."""
    if seconds is None:
        return "-"
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def show_size(size: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def count_of(number: int, thing: str) -> str:
    """``1 row``, ``2 rows``, ``1,000 rows``."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
