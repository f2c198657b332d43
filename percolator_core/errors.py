"""The exceptions with which the library says what went wrong.

::

    PercolatorError
    ├── ConfigurationError        a declaration, URL, server setting or version that cannot work
    │   └── CyclicChain           observers that would wake each other for ever
    ├── UnknownTable, UnknownColumn
    ├── RowExists, RowNotFound    a row of a typed table is there already, or is not: nothing was written
    ├── TransactionConflict       aborted, nothing written: run it again
    │   └── TransactionAborted    rolled back by another client, or by a failover: run it again
    ├── LockTimeout               a reader waited too long for a live lock
    ├── CommitUndetermined        the outcome of a commit could not be learned
    ├── SnapshotTooOld            below the safe point: garbage collection, or a drop, has passed it
    └── StoreUnavailable          the store cannot be reached, is read-only, or is out of memory

Each message is one sentence that names what to do next. Not here are `TooManyBadRecords`, a PercolatorError
in `percolator_core.spark`, and three of Python's own: TimeoutError from `Worker.run_until_idle`, and
ValueError and TypeError for arguments that cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, overload

MOST_NAMED: Final = 200
"""Characters of a name or a row key in a message: a name of a table, which is never longer, is whole."""


@overload
def abbreviated(text: str, longest: int = MOST_NAMED) -> str: ...


@overload
def abbreviated(text: bytes, longest: int = MOST_NAMED) -> bytes: ...


def abbreviated(text: str | bytes, longest: int = MOST_NAMED) -> str | bytes:
    """A name for a message, a log line or a list: cut off with ``…`` behind ``longest`` characters or bytes.

    Names of columns and keys of rows have up to 64 KiB, and nobody reads a message of that size.
    """
    if len(text) <= longest:
        return text
    most = max(1, longest - 1)
    return text[:most] + "…" if isinstance(text, str) else text[:most] + "…".encode()


class PercolatorError(Exception):
    """The root of all errors raised by this library."""


class ConfigurationError(PercolatorError):
    """A declaration, URL, server setting or version that cannot work; names what to change."""


class CyclicChain(ConfigurationError):
    """Observers that would wake each other for ever.

    ``cycle`` alternates observers and ``table.column`` names, and starts and ends with the same one.
    """

    def __init__(self, message: str, cycle: Sequence[str]) -> None:
        super().__init__(message)
        self.cycle = list(cycle)

    def __reduce__(self) -> tuple[type[CyclicChain], tuple[str, list[str]]]:
        return type(self), (str(self), self.cycle)


class UnknownTable(PercolatorError):
    """The catalog holds no table of that name."""


class UnknownColumn(PercolatorError):
    """The table has no such column, or the column cannot be used in this way."""


class RowExists(PercolatorError):
    """There is a row with that primary key, or with that value in a column that is unique.

    Of what was refused nothing is buffered: the transaction may go on. Use upsert, or another key or value.
    """


class RowNotFound(PercolatorError):
    """There is no row with that primary key to update: use insert or upsert.

    Nothing of the update is buffered: the transaction may go on.
    """


class TransactionConflict(PercolatorError):
    """The transaction aborted and wrote nothing; run it again with a fresh snapshot.

    ``reason`` is ``"newer commit"`` (someone committed to the cell after this snapshot),
    ``"locked"`` (someone is committing to it now), ``"table changed"`` (its definition was changed, or it was
    dropped, meanwhile), ``"rolled back"``, or ``"failed over"`` (the server where it began was replaced, and
    may have lost what it read). ``row`` and ``column`` are whole; the message abbreviates long ones.
    """

    def __init__(self, table: str, row: bytes, column: str, reason: str) -> None:
        super().__init__(
            f"{table}.{abbreviated(column)} of row {abbreviated(repr(row))}: {reason}; nothing was written, "
            "run the transaction again"
        )
        self.table = table
        self.row = row
        self.column = column
        self.reason = reason

    def __reduce__(self) -> tuple[type[TransactionConflict], tuple[str, bytes, str, str]]:
        return type(self), (self.table, self.row, self.column, self.reason)


class TransactionAborted(TransactionConflict):
    """Another client took this transaction for dead, or the server where it began was replaced (``reason``).

    Nothing was written: run it again.
    """


class LockTimeout(PercolatorError):
    """A reader waited too long for a live lock; the writer is slow, try again later."""

    @classmethod
    def of_cell(cls, row: bytes, column: str, seconds: float) -> LockTimeout:
        """The error of a reader that has waited so long for one cell."""
        return cls(
            f"row {abbreviated(repr(row))}, column {abbreviated(column)}: another client has been committing "
            f"for {seconds:g} s; try again later"
        )


class CommitUndetermined(PercolatorError):
    """The commit may or may not have happened; never re-run it blindly.

    ``start_timestamp`` identifies the transaction: ``db.history`` of a cell it wrote shows it if it
    committed.
    """

    def __init__(self, start_timestamp: int) -> None:
        super().__init__(
            f"the outcome of the transaction begun at {start_timestamp} could not be learned: "
            "look for it in the history of a cell it wrote before you run it again"
        )
        self.start_timestamp = start_timestamp

    def __reduce__(self) -> tuple[type[CommitUndetermined], tuple[int]]:
        return type(self), (self.start_timestamp,)


class SnapshotTooOld(PercolatorError):
    """The snapshot lies below the safe point; read a newer one.

    Garbage collection has passed it, or the table or a column of it was dropped, or the table was made later.
    """


class StoreUnavailable(PercolatorError):
    """The store cannot be reached, is read-only, or is out of memory.

    ``executed_maybe`` says whether a request may have been executed although its reply is missing.
    """

    executed_maybe = False


def of_another_process(it: str) -> PercolatorError:
    """What to raise in a forked child that goes on with something of its parent's, such as a transaction."""
    return PercolatorError(
        f"the {it} was begun by another process, from which this one was forked: begin one of your own here"
    )
