"""The rules of all declarations: unknown keys and values of a wrong type are refused, durations are text."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from percolator_core.notation.amounts import SIZE_PATTERN, parse_size
from percolator_core.notation.times import UNIT_SECONDS
from percolator_core.observers.yaml_file import describe, quoted

DURATION_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
LENGTH_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"


class Declaration(BaseModel):
    """The base class of all declarations: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def parse_duration(value: object) -> float:
    """Parse a duration such as ``"50ms"`` or ``"2m"``, 1 ms to 24 h, into seconds. Raises ValueError."""
    return _seconds(value, "duration", "50ms, 10s, 2m or 1h", DURATION_PATTERN, (86_400.0, "24h"))


def parse_length(value: object) -> float:
    """Parse a duration such as ``"10s"`` or ``"2d"``, 1 ms to ten years, into seconds.

    A timedelta is accepted, too. Raises ValueError for other values.
    """
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


def _size_or_none(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"expected a size such as 512MB or 4GiB, not {describe(value)}")
    size = parse_size(value)
    if not size:
        raise ValueError(f"{quoted(value)} is out of range; write 1B or more")
    return size


def _or_none(parse: Callable[[object], float]) -> Callable[[object], float | None]:
    return lambda value: None if value is None else parse(value)


Duration = Annotated[
    float, BeforeValidator(parse_duration), WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN})
]
Length = Annotated[
    float, BeforeValidator(parse_length), WithJsonSchema({"type": "string", "pattern": LENGTH_PATTERN})
]
"""A duration that may be longer than a day."""
OptionalDuration = Annotated[
    float | None,
    BeforeValidator(_or_none(parse_duration)),
    WithJsonSchema({"type": ["string", "null"], "pattern": DURATION_PATTERN}),
]
OptionalSize = Annotated[
    int | None,
    BeforeValidator(_size_or_none),
    WithJsonSchema({"type": ["string", "null"], "pattern": SIZE_PATTERN}),
]
OptionalLength = Annotated[
    float | None,
    BeforeValidator(_or_none(parse_length)),
    WithJsonSchema({"type": ["string", "null"], "pattern": LENGTH_PATTERN}),
]
