"""The rules of all declarations: unknown keys and values of a wrong type are refused, durations are text.

A schedule is a cron expression, a preset, or a duration such as ``10m``. Cron expressions are checked here,
so that ``percolator check`` reports errors without an installed scheduler. Extensions of some schedulers,
such as ``L`` and ``5#2``, are accepted.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from percolator_core.notation.amounts import SIZE_PATTERN, parse_size
from percolator_core.notation.times import UNIT_SECONDS
from percolator_core.observers.yaml_file import describe, did_you_mean, listed, quoted

DURATION_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
LENGTH_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"

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


class Declaration(BaseModel):
    """The base class of all declarations: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def parse_duration(value: object) -> float:
    """Return the seconds of a duration such as ``"50ms"`` or ``"2m"``, 1 ms to 24 h. Raises ValueError."""
    return _seconds(value, "duration", "50ms, 10s, 2m or 1h", DURATION_PATTERN, (86_400.0, "24h"))


def parse_length(value: object) -> float:
    """Return the seconds of a length, as ``"2d"`` or timedelta, 1 ms to ten years. Raises ValueError."""
    return _seconds(value, "length", "10s, 2m, 1h or 7d", LENGTH_PATTERN, (3660 * 86_400.0, "3660d"))


def _seconds(value: object, noun: str, examples: str, pattern: str, longest: tuple[float, str]) -> float:
    if isinstance(value, timedelta) and noun == "length":
        seconds = value.total_seconds()
    elif not isinstance(value, str):
        hint = f"; did you mean '{value}s'?" if isinstance(value, int) and not isinstance(value, bool) else ""
        raise ValueError(f"expected a {noun} such as {examples}, not {describe(value)}{hint}")
    elif not re.fullmatch(pattern, value):
        raise ValueError(f"{quoted(value)} is not a {noun}; write a number and a unit: {examples}")
    else:
        number, unit = re.split(r"(?=[a-z])", value, maxsplit=1)
        seconds = float(number) * {**UNIT_SECONDS, "d": 86_400.0}[unit]
    if not 0.001 <= seconds <= longest[0]:
        raise ValueError(f"{quoted(str(value))} is out of range; write a {noun} from 1ms to {longest[1]}")
    return seconds


def _size(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f"expected a size such as 512MB or 4GiB, not {describe(value)}")
    size = parse_size(value)
    if not size:
        raise ValueError(f"{quoted(value)} is out of range; write 1B or more")
    return size


def parse_schedule(value: object) -> str | timedelta | None:
    """Return cron or a preset as text, a duration as timedelta, None for ``none``. Raises ValueError."""
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


Duration = Annotated[
    float, BeforeValidator(parse_duration), WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN})
]
Length = Annotated[
    float, BeforeValidator(parse_length), WithJsonSchema({"type": "string", "pattern": LENGTH_PATTERN})
]
"""A duration that may be longer than a day."""
Size = Annotated[int, BeforeValidator(_size), WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN})]
_SCHEDULE: Final[dict[str, Any]] = {
    "type": ["string", "null"],
    "description": "five fields of cron, a preset such as @daily, a length such as 10m, or none",
}
Schedule = Annotated[str | timedelta | None, BeforeValidator(parse_schedule), WithJsonSchema(_SCHEDULE)]
