"""Read arguments of tasks: Airflow passes them as Python values, as JSON, or as the text of a template."""

from __future__ import annotations

from typing import Any

from percolator_core.errors import ConfigurationError


def seconds(name: str, value: Any) -> float:
    """Read a number of seconds, 0 or more. Raises ConfigurationError for any other value."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e9:
        raise ConfigurationError(f"{name} is a number of seconds, 0 or more, not {value!r}")
    return number


def count(name: str, value: Any) -> int:
    """Read a whole number, 0 or more. Raises ConfigurationError for any other value."""
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"{name} is a whole number, 0 or more, not {value!r}")
    return number


def is_nothing(value: Any) -> bool:
    """Return True if the argument was left out; a template turns None into text."""
    return value is None or value in ("", "None")
