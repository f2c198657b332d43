"""Tasks on all tablets of a store, or on some, so that several tasks share the work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from percolator_airflow.operators.base import StoreOperator
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from percolator_core.database import Database

Tablets = Iterable[Sequence[Any]]
"""Pairs. Each pair has a table's name, and the number of one of the table's tablets."""


def read_tablets(tablets: Tablets | None) -> list[tuple[str, int]] | None:
    """Return ``tablets`` as a list of pairs: a table's name, and a tablet's number. None means all tablets.

    Raises:
        ConfigurationError: an element is not such a pair.
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
    """Return the tablets that exist: a table may be dropped while a task is queued."""
    numbers = {table.name: len(db.catalog.table(table.name).tags) for table in db.tables()}
    return [(table, number) for table, number in tablets if number < numbers.get(table, 0)]


class TabletsOperator(StoreOperator):
    """A task on tablets.

    Args:
        chain, project, conn_id, namespace: see `StoreOperator`; only the chain's name is used.
        tablets: pairs of a table's name and a tablet's number; None means all tablets.
        skip_missing: True skips tablets that no longer exist; with False they fail the task.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "tablets")

    def __init__(self, *, tablets: Tablets | None = None, skip_missing: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tablets = tablets
        self.skip_missing = skip_missing

    @contextmanager
    def opened(self, carry_on: str) -> Iterator[tuple[Database, list[tuple[str, int]] | None]]:
        """Open the database for the whole task, and parse ``self.tablets``; ``carry_on``: see `guarded`."""
        with self.database(carry_on) as db:
            tablets = read_tablets(self.tablets)
            if self.skip_missing and tablets is not None:
                tablets = still_there(db, tablets)
            yield db, tablets
