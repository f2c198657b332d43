"""Arguments as Airflow hands them over: as they were written, as JSON, or as text that a template gave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from percolator_core.database import Database

Tablets = Iterable[Sequence[Any]]
"""Pairs of a table's name and the number of a tablet."""


def read_tablets(tablets: Tablets | None) -> list[tuple[str, int]] | None:
    """The pairs; None is all tablets.

    Raises:
        ConfigurationError: they are no pairs of a table and a number.
    """
    if tablets is None:
        return None
    try:
        return [(str(table), int(number)) for table, number in tablets]
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"tablets are pairs of a table and a number, such as [['documents', 0]], not {tablets!r}"
        ) from None


def still_there(db: Database, tablets: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of the tablets that are there: a table may be dropped while a task waits for its turn."""
    numbers = {table.name: len(db.catalog.table(table.name).tags) for table in db.tables()}
    return [(table, number) for table, number in tablets if number < numbers.get(table, 0)]


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
