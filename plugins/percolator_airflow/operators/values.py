"""Arguments as Airflow hands them over: as they were written, as JSON, or as text that a template gave."""

from __future__ import annotations

from typing import Any

from percolator_core.errors import ConfigurationError


def seconds(name: str, value: Any) -> float:
    """A number of seconds, 0 or more; raises ConfigurationError for anything else."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e9:
        raise ConfigurationError(f"{name} is a number of seconds, 0 or more, not {value!r}")
    return number


def count(name: str, value: Any) -> int:
    """A whole number, 0 or more; raises ConfigurationError for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"{name} is a whole number, 0 or more, not {value!r}")
    return number


def is_nothing(value: Any) -> bool:
    """Whether it was left out; None is text in a template."""
    return value is None or value in ("", "None")
