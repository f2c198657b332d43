"""Parse schedules: a cron expression, a preset, or a duration such as ``10m``.

Cron expressions are checked here, so that ``percolator check`` reports errors without an installed scheduler.
Extensions of some schedulers, such as ``L`` and ``5#2``, are accepted.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

from percolator_core.observers.rules import LENGTH_PATTERN, parse_length
from percolator_core.observers.yaml_file import describe, did_you_mean, listed, quoted

PRESETS: Final = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
NEVER: Final = "none"
"""The DAG runs only when it is triggered manually; null in YAML means the same."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final[tuple[tuple[str, int, int, tuple[str, ...]], ...]] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_PART: Final = re.compile(r"(\*|\?|L|[0-9a-z]+(?:-[0-9a-z]+)?(?:#[1-5])?L?)(?:/(\d+))?", re.IGNORECASE)


def parse_schedule(value: object) -> str | timedelta | None:
    """Return a cron expression or a preset as text, a duration as a timedelta, and None for ``none``.

    Raises ValueError for other values.
    """
    if value is None or isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected a schedule such as '0 3 * * *', @daily or 10m, not {describe(value)}")
    text = " ".join(value.split())
    if text == NEVER:
        return None
    if text.startswith("@"):
        if text not in PRESETS:
            mend = did_you_mean(text, PRESETS) or f"; write {listed(PRESETS)}"
            raise ValueError(f"{quoted(text)} is not a known schedule{mend}")
        return text
    if re.fullmatch(LENGTH_PATTERN, text):
        seconds = parse_length(text)
        if seconds < 1:
            raise ValueError(f"{quoted(text)} is too short; write 1s or more")
        return timedelta(seconds=seconds)
    _check_cron(text)
    return text


def _check_cron(text: str) -> None:
    parts = text.split(" ")
    if len(parts) != len(_FIELDS):
        raise ValueError(
            f"{quoted(text)} is no schedule; write five fields of cron such as '0 3 * * *', @daily, a length "
            "such as 10m, or none"
        )
    for part, (name, low, high, words) in zip(parts, _FIELDS, strict=True):
        for one in part.split(","):
            if not _fits(one, low, high, words):
                example = f"{low} to {high}" + (f" or {words[0]} to {words[-1]}" if words else "")
                raise ValueError(
                    f"{quoted(text)} is no schedule: {quoted(part)} is not a valid {name}; write *, */2, or "
                    f"numbers from {example}"
                )


def _fits(part: str, low: int, high: int, words: tuple[str, ...]) -> bool:
    found = _PART.fullmatch(part)
    if found is None or found[2] == "0":
        return False
    if found[1] in ("*", "?", "L", "l"):
        return True
    values = re.sub(r"(#\d|L)$", "", found[1].lower()).split("-")
    numbers = [words.index(one) + low if one in words else one for one in values]
    if any(not str(one).isdecimal() for one in numbers):
        return False
    return all(low <= int(one) <= high for one in numbers)


_SCHEMA: Final[dict[str, Any]] = {
    "type": ["string", "null"],
    "description": "five fields of cron, a preset such as @daily, a length such as 10m, or none",
}
Schedule = Annotated[str | timedelta | None, BeforeValidator(parse_schedule), WithJsonSchema(_SCHEMA)]
