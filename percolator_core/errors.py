"""The exceptions of the library; `docs/reference/api/errors.md` lists them with remedies.

Each message is one sentence that names what to do next. `TooManyBadRecords`, a PercolatorError, is in
`percolator_core.loading`. Three errors are Python's own: TimeoutError from `Worker.run_until_idle`, and
ValueError and TypeError for arguments that are not valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import AnyStr, Final

MOST_NAMED: Final = 200
"""A message shows at most this many characters of a name or row key. Names of tables are never longer."""


def abbreviated(text: AnyStr, longest: int = MOST_NAMED) -> AnyStr:
    """Cut a name or row key of up to 64 KiB to ``longest`` characters or bytes, with ``…`` at the end."""
    if len(text) <= longest:
        return text
    cut = text[: max(1, longest - 1)]
    if isinstance(cut, str):
        return cut + "…"
    return cut + "…".encode()


def described(error: BaseException, longest: int) -> str:
    """Return the type and the message of an error, cut to ``longest`` characters."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception of the user's, with a __str__ of its own
        message = "<it cannot be printed>"
    return f"{type(error).__name__}: {message}"[:longest]


class PercolatorError(Exception):
    """The root of all errors raised by this library."""


class ConfigurationError(PercolatorError):
    """A declaration, URL, server setting or version that cannot work; the message says what to change."""


class CyclicChain(ConfigurationError):
    """Observers that would wake each other for ever.

    ``cycle`` alternates observers and ``table.column`` names. Its last element repeats the first.
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
    """A row with that primary key, or with that value in a unique column, exists.

    The refused write is not buffered, and the transaction may go on. Use upsert, or another key or value.
    """


class RowNotFound(PercolatorError):
    """The table has no row with that primary key: use insert or upsert.

    The update is not buffered, and the transaction may go on.
    """


class TransactionConflict(PercolatorError):
    """The transaction aborted and wrote nothing; run it again with a fresh snapshot.

    ``reason`` is ``"newer commit"`` (another client committed to the cell after this snapshot), ``"locked"``
    (another client is committing to it now), ``"table changed"`` (since the snapshot the table was dropped,
    or its definition was changed; the first read is also refused if any table changes during it),
    ``"rolled back"`` (by another client), or ``"failed over"`` (the server where the transaction began was
    replaced, and data that the transaction read may be lost). The message abbreviates a long ``row`` or
    ``column``.
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
    """Another client rolled this transaction back, or its server was replaced (``reason``); run it again."""


class LockTimeout(PercolatorError):
    """A reader has waited too long for a live lock; the writer is slow, try again later."""

    @classmethod
    def of_cell(cls, row: bytes, column: str, seconds: float) -> LockTimeout:
        """The error after waiting ``seconds`` for the lock of one cell."""
        return cls(
            f"row {abbreviated(repr(row))}, column {abbreviated(column)}: another client has been committing "
            f"for {seconds:g} s; try again later"
        )


class CommitUndetermined(PercolatorError):
    """The commit may or may not have happened; never re-run it blindly.

    ``start_timestamp`` identifies the transaction: if it committed, ``db.history`` of a cell that it wrote
    has a version with this start timestamp.
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
    """The snapshot is below the safe point; read a newer one.

    Garbage collection has passed the snapshot, or the table was created later, or the table or a column was
    dropped later.
    """


class StoreUnavailable(PercolatorError):
    """The store cannot be reached, is read-only, or is out of memory.

    ``executed_maybe`` is True if a request may have been executed although its reply is missing.
    """

    executed_maybe = False


class BaseDamaged(PercolatorError):
    """A file of a table's columnar base is missing or damaged: restore it from a backup.

    A read that needs the file fails: it never returns a result without the rows of the file.
    """

    def __init__(self, url: str, file: str, reason: str) -> None:
        super().__init__(f"the base at {url} is damaged: {file}: {reason}; restore this file from a backup")
        self.url = url
        self.file = file
        self.reason = reason

    def __reduce__(self) -> tuple[type[BaseDamaged], tuple[str, str, str]]:
        return type(self), (self.url, self.file, self.reason)


def of_another_process(it: str) -> PercolatorError:
    """Return the error to raise in a forked child that uses its parent's transaction, snapshot or request."""
    return PercolatorError(
        f"the {it} belongs to the process from which this one was forked: begin a new one here"
    )
