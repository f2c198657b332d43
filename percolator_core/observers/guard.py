"""The transaction that an observer is given: it refuses a write that its declaration keeps silent about.

The graph, the check for cycles and whatever is drawn from them are only as true as ``writes`` is. So a write
to a column that some observer of the chain watches must be declared; it is refused at once, before it can
wake anyone. Columns that nobody observes may be written undeclared. Reads are the transaction's own methods,
at no cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from percolator_core.errors import ConfigurationError, abbreviated
from percolator_core.tables.model import definition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from percolator_core.observers.chain import Chain
    from percolator_core.observers.observer import Column, Observer
    from percolator_core.tables.model import Table
    from percolator_core.transaction.transaction import Transaction

Row = str | bytes


class Guard:
    """What one observer may not write: computed once, then asked at every write."""

    __slots__ = ("_refused", "_refused_rows", "_watchers", "observer")

    def __init__(self, chain: Chain, observer: Observer) -> None:
        self.observer = observer
        self._watchers: Mapping[Column, tuple[str, ...]] = chain.observed
        self._refused = frozenset(column for column in chain.observed if not observer.declares(*column))
        notify_only = {(table.name, column) for table in chain.tables for column in table.notify_only}
        # Removing a row removes data, so it wakes nobody who watches a notify-only column.
        self._refused_rows: dict[str, str] = {}
        for table, column in sorted(self._refused - notify_only):
            self._refused_rows.setdefault(table, column)

    def check(self, table: str, column: str) -> None:
        """Raise ConfigurationError if the observer must declare this column and does not."""
        if (table, column) in self._refused:
            self._refuse(table, column, f"{table}.{column}")

    def check_row(self, table: str) -> None:
        """The same for all columns of a row; whether the row has them now makes no difference."""
        column = self._refused_rows.get(table)
        if column is not None:
            self._refuse(table, column, f"{table}.*")

    def check_columns(self, table: str, columns: Iterable[str]) -> None:
        """The same for several columns."""
        for column in columns:
            self.check(table, column)

    def _refuse(self, table: str, column: str, mend: str) -> NoReturn:
        watchers = ", ".join(self._watchers[table, column])
        raise ConfigurationError(
            f"observer {self.observer.name} wrote {table}.{abbreviated(column)}, which {watchers} observes, "
            f"without declaring it: add '{abbreviated(mend)}' to writes in {self.observer.file}"
        )


class ObserverTransaction:
    """An open transaction, as its observer sees it.

    It reads and writes as a ``Transaction`` does. ``commit`` and ``rollback`` raise, and it is no context
    manager: the worker commits it, together with the acknowledgement, when the observer returns, and discards
    it when the observer raises.
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

        Raises ConfigurationError unless all the table's observed columns are declared in ``writes``, whether
        this row has them or not: an error that depends on the data is found too late.
        """
        self._guard.check_row(table)
        self._transaction.delete_row(table, row)

    def insert(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Add a row to a typed table, as `Transaction.insert`.

        Raises ConfigurationError unless all the table's observed columns are declared in ``writes``.
        """
        self._guard.check_row(_table_of(row))
        self._transaction.insert(row, **values)

    def upsert(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Add a row, or set the fields that were set of the one with its key, as `Transaction.upsert`.

        Raises ConfigurationError unless those of them that are observed are declared in ``writes``, and so
        are observed columns in which a row that is not there yet would have a default.
        """
        if isinstance(row, type):
            row, values = row(**values), {}
        names = set(values) if isinstance(row, str) else {name for name, value in row if value is not None}
        if not isinstance(row, str):
            names |= row.model_fields_set
        self._guard.check_columns(_table_of(row), sorted(names))
        self._transaction.upsert(row, **values)

    def update(self, row: Table | type[Table] | str, /, **values: Any) -> None:
        """Set the fields that were set of a row that is there, as `Transaction.update`.

        Raises ConfigurationError unless those of them that are observed are declared in ``writes``.
        """
        names = values if isinstance(row, type | str) else row.model_fields_set
        self._guard.check_columns(_table_of(row), sorted(names))
        self._transaction.update(row, **values)

    def remove(self, table: type[Table] | str, /, **key: Any) -> bool:
        """Remove a row of a typed table, as `Transaction.remove`. Raises ConfigurationError as ``insert``."""
        self._guard.check_row(_table_of(table))
        return self._transaction.remove(table, **key)

    def notify(self, table: str, row: Row, column: str) -> None:
        """Wake the weak observers of a notify-only cell. Raises ConfigurationError as ``set`` does."""
        self._guard.check(table, column)
        self._transaction.notify(table, row, column)

    def commit(self) -> NoReturn:
        """Raises ConfigurationError: the worker commits."""
        self._leave_to_worker("commit")

    def rollback(self) -> NoReturn:
        """Raises ConfigurationError: raise an exception instead."""
        self._leave_to_worker("rollback")

    def _leave_to_worker(self, called: str) -> NoReturn:
        raise ConfigurationError(
            f"observer {self._guard.observer.name} called {called}(): return to commit, raise to discard; "
            "the worker commits the transaction together with the acknowledgement"
        )


def _table_of(row: Table | type[Table] | str) -> str:
    """The name of the table of a row, a model or a table's name. Raises TypeError for anything else."""
    if isinstance(row, str):
        return row
    return definition_of(row if isinstance(row, type) else type(row)).name


def guards(chain: Chain) -> dict[str, Guard]:
    """A guard for each observer of the chain, by name."""
    return {observer.name: Guard(chain, observer) for observer in chain.observers.values()}
