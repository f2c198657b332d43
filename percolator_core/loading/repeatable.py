"""Transactions of bounded size that may be repeated, because each reads its rows first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from percolator_core.database import Database
from percolator_core.errors import CommitUndetermined
from percolator_core.schema.definitions import TableDefinition
from percolator_core.transaction.transaction import Transaction
from percolator_core.transaction.write_set import CELLS_PER_CALL, in_calls

T = TypeVar("T")

_ATTEMPTS: Final = 30
_UNDETERMINED: Final = 5


def run(
    db: Database, transaction: Callable[[Transaction], T], check: Callable[[], object] | None = None
) -> T:
    """Run a function as `Database.run` does, and repeat it if the outcome of its commit is unknown.

    ``check`` is called before each commit; if it raises, the commit does not happen.
    """

    def checked(t: Transaction) -> T:
        result = transaction(t)
        if check is not None:
            check()
        return result

    for _ in range(_UNDETERMINED):
        try:
            return db.run(checked, _ATTEMPTS)
        except CommitUndetermined:
            continue
    return db.run(checked, _ATTEMPTS)


def in_groups(definition: TableDefinition, rows: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Group rows of a typed table so that one call of the store commits a group. ``size`` is in bytes."""
    return in_calls(rows, size, max(1, CELLS_PER_CALL // (1 + len(definition.value_columns))))
