"""The transaction that an observer gets: it refuses undeclared writes to observed columns.

The graph and the check for cycles rely on ``writes``. So an observer must declare each write to a column that
an observer of the chain watches. Reads have no extra cost: they are the transaction's own methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from percolator_core.errors import ConfigurationError, abbreviated
from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.observers.graph import loop_columns
from percolator_core.tables.model import definition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from percolator_core.observers.chain import Chain
    from percolator_core.observers.observer import Column, Observer
    from percolator_core.tables.model import Table
    from percolator_core.transaction.transaction import Transaction

Row = str | bytes


class Guard:
    """The columns that an observer must not write; computed once, checked at every write."""

    __slots__ = ("_allowed", "_refused", "_refused_rows", "_watchers", "boosts", "observer")

    def __init__(self, chain: Chain, observer: Observer, loop: frozenset[str]) -> None:
        """``loop`` has the columns of the observer's loop, as ``table.column``."""
        self.observer = observer
        mine = {column: names for column, names in chain.observed.items() if ".".join(column) in loop}
        self.boosts = {column: found for column, names in mine.items() if (found := _ordered(chain, names))}
        """By column of the loop, the observers that take the cells with the most notifications first."""
        self._watchers: Mapping[Column, tuple[str, ...]] = chain.observed
        notify_only = {(table.name, column) for table in chain.tables for column in table.notify_only}
        self._refused = frozenset(
            column
            for column in chain.observed
            if not observer.declares(*column, notify_only=column in notify_only)
        )
        keys = {(table.name, column) for table in chain.tables for column in table.key}
        self._allowed = {
            table: {name for of, name in observer.writes if of == table}
            | {name for of, name in notify_only | keys if of == table}
            for table, column in self._refused
            if column == EVERY_COLUMN
        }
        """By table whose whole rows are watched, the columns that the observer may write."""
        # Removing a row does not wake observers of notify-only columns.
        self._refused_rows: dict[str, str] = {}
        for table, column in sorted(self._refused - notify_only):
            self._refused_rows.setdefault(table, column)

    def check(self, table: str, column: str) -> None:
        """Raise ConfigurationError if the observer has to declare this column and does not."""
        if (table, column) in self._refused:
            self._refuse(table, column, f"{table}.{column}")
        if self._allowed and column not in self._allowed.get(table, (column,)):
            self._refuse(table, column, f"{table}.{column}")

    def check_row(self, table: str) -> None:
        """Check all columns of a table."""
        column = self._refused_rows.get(table)
        if column is not None:
            self._refuse(table, column, f"{table}.*")

    def check_columns(self, table: str, columns: Iterable[str]) -> None:
        """Check several columns."""
        for column in columns:
            self.check(table, column)

    def _refuse(self, table: str, column: str, mend: str) -> NoReturn:
        watchers = ", ".join(self._watchers.get((table, column)) or self._watchers[table, EVERY_COLUMN])
        raise ConfigurationError(
            f"observer {self.observer.name} wrote {table}.{abbreviated(column)} without declaring it, and "
            f"{watchers} observes it: add '{abbreviated(mend)}' to writes in {self.observer.file}"
        )


class ObserverTransaction:
    """The open transaction that an observer gets; it reads and writes as a ``Transaction`` does.

    The worker commits it when the observer returns, and discards it when the observer raises. So ``commit``
    and ``rollback`` raise, and it is not a context manager.
    """

    __slots__ = (
        "_guard",
        "_transaction",
        "find",
        "get",
        "get_many",
        "get_row",
        "scan",
        "select",
        "to_arrow",
    )

    def __init__(self, transaction: Transaction, guard: Guard) -> None:
        self._transaction = transaction
        self._guard = guard
        self.get = transaction.get
        self.get_row = transaction.get_row
        self.get_many = transaction.get_many
        self.scan = transaction.scan
        self.find = transaction.find
        self.select = transaction.select
        self.to_arrow = transaction.to_arrow

    @property
    def start_timestamp(self) -> int:
        """The snapshot's timestamp, in microseconds."""
        return self._transaction.start_timestamp

    @property
    def commit_timestamp(self) -> int | None:
        """None while the observer runs."""
        return self._transaction.commit_timestamp

    def set(self, table: str, row: Row, column: str, value: bytes) -> None:
        """Buffer a write. Raises ConfigurationError if the column is observed and not in ``writes``."""
        self._guard.check(table, column)
        self._transaction.set(table, row, column, value)

    def delete(self, table: str, row: Row, column: str) -> None:
        """Buffer the removal of a cell. Raises ConfigurationError as ``set`` does."""
        self._guard.check(table, column)
        self._transaction.delete(table, row, column)

    def delete_row(self, table: str, row: Row) -> None:
        """Buffer the removal of a row.

        Raises ConfigurationError unless ``writes`` declares all observed columns of the table, also those
        that this row does not have: an error that depends on the data would be found too late.
        """
        self._guard.check_row(table)
        self._transaction.delete_row(table, row)

    def insert(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Insert a row, as `Transaction.insert`. Raises ConfigurationError as ``delete_row`` does."""
        self._guard.check_row(_table_of(row))
        self._transaction.insert(row, **values)

    def upsert(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Insert a row, or update the given fields of the row with the same key, as `Transaction.upsert`.

        Raises ConfigurationError unless ``writes`` declares the observed columns among these fields and among
        the fields that have a default.
        """
        if isinstance(row, type):
            row, values = row(**values), {}
        names = set(values) if isinstance(row, str) else {name for name, value in row if value is not None}
        if not isinstance(row, str):
            names |= row.model_fields_set
        self._guard.check_columns(_table_of(row), sorted(names))
        self._transaction.upsert(row, **values)

    def update(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Update the given fields of an existing row, as `Transaction.update`.

        Raises ConfigurationError unless the observed columns among these fields are declared in ``writes``.
        """
        names = values if isinstance(row, type | str) else row.model_fields_set
        self._guard.check_columns(_table_of(row), sorted(names))
        self._transaction.update(row, **values)

    def remove(self, table: type[Table] | str, /, **key: Any) -> bool:
        """Remove a row, as `Transaction.remove`. Raises ConfigurationError as ``delete_row`` does."""
        self._guard.check_row(_table_of(table))
        return self._transaction.remove(table, **key)

    def notify(self, table: str, row: Row, column: str) -> None:
        """Wake the weak observers of a notify-only cell. Raises ConfigurationError as ``set`` does."""
        self._guard.check(table, column)
        boosted = self._guard.boosts.get((table, column))
        if boosted is None:
            self._transaction.notify(table, row, column)
        else:
            self._transaction.boost(table, row, column, boosted)

    def commit(self) -> NoReturn:
        """Always raise ConfigurationError: the worker commits the transaction."""
        self._leave_to_worker("commit")

    def rollback(self) -> NoReturn:
        """Always raise ConfigurationError. To discard the transaction, an observer raises an exception."""
        self._leave_to_worker("rollback")

    def _leave_to_worker(self, called: str) -> NoReturn:
        raise ConfigurationError(
            f"observer {self._guard.observer.name} called {called}(): return to commit, raise to discard; "
            "the worker commits the transaction together with the acknowledgement"
        )


def _ordered(chain: Chain, observers: Iterable[str]) -> bytes:
    """Return the observers with the order ``most_notified``, joined as in the value of a notification."""
    return ",".join(name for name in observers if chain.observers[name].order == "most_notified").encode()


def _table_of(row: Table | type[Table] | str) -> str:
    if isinstance(row, str):
        return row
    return definition_of(row if isinstance(row, type) else type(row)).name


def guards(chain: Chain) -> dict[str, Guard]:
    """Return a guard for each observer of the chain, by name."""
    loops = loop_columns(chain.graph)
    return {name: Guard(chain, observer, loops[name]) for name, observer in chain.observers.items()}
