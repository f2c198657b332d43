"""Text for ages, sizes and counts."""

from __future__ import annotations

import re
from typing import Final

from percolator_core.notation.error import NotationError

SIZE_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?((B|KB|MB|GB|TB)|(KiB|MiB|GiB|TiB))$"

UNIT_BYTES: Final = {
    "B": 1,
    **{f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate("KMGT")},
    **{f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
}


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``512MB`` or ``4GiB``. Raises NotationError."""
    if not re.fullmatch(SIZE_PATTERN, text):
        raise NotationError(f"{text!r} is not a size: write a number and a unit, such as 512MB or 4GiB")
    number, unit = re.split(r"(?=[A-Za-z])", text, maxsplit=1)
    return int(float(number) * UNIT_BYTES[unit])


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
