"""Run transactions, and record their reads and writes for the checker.

A workload uses `RecordedTransaction`, which reads and writes plain payloads; the marks in the stored values
are hidden. Every attempt is a transaction of its own in the history.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self, TypeVar

from percolator_core.database import Database
from percolator_core.errors import LockTimeout, SnapshotTooOld, StoreUnavailable, TransactionConflict
from percolator_core.layout.key_ranges import scan_bounds
from percolator_core.layout.records import row_bytes
from percolator_core.transaction.transaction import Transaction
from percolator_torture.histories.history import (
    CellKey,
    Outcome,
    OwnRead,
    Read,
    ScanRead,
    TransactionRecord,
    Write,
)
from percolator_torture.histories.journal import Journal
from percolator_torture.histories.marks import Mark, tag_value, untag_value

T = TypeVar("T")

NOT_COMMITTED: Final = (TransactionConflict, SnapshotTooOld, LockTimeout, StoreUnavailable)
"""If a commit raises one of these errors, nothing was committed. The checker verifies this.

A request that may have been executed ends in `CommitUndetermined`. If the prewrite fails, the primary is
never committed, because only the transaction's own client commits it.
"""

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.25


class RecordedTransaction:
    """A transaction on plain payloads, for one thread or task at a time."""

    __slots__ = ("_mark", "_own", "_own_reads", "_reads", "_scans", "_transaction", "_written")

    def __init__(self, transaction: Transaction, process: str, number: int) -> None:
        self._transaction = transaction
        self._mark = Mark(process, number)
        self._own: dict[CellKey, int] = {}
        self._written: dict[CellKey, int] = {}
        self._reads: list[Read] = []
        self._own_reads: list[OwnRead] = []
        self._scans: list[ScanRead] = []

    @property
    def plain(self) -> Transaction:
        """The plain transaction: reads and writes through it are not recorded."""
        return self._transaction

    @property
    def start_timestamp(self) -> int:
        """The timestamp of the snapshot; reading it fixes the snapshot (`Transaction.start_timestamp`)."""
        return self._transaction.start_timestamp

    def get(self, table: str, row: str | bytes, column: str) -> bytes | None:
        """Return the payload of a cell, or None. Raises the errors of `Transaction.get`."""
        return self._saw(CellKey(table, row_bytes(row), column), self._transaction.get(table, row, column))

    def get_many(self, cells: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """Return the payloads of many cells, in one round trip. Raises as `Transaction.get_many`."""
        asked = [CellKey(table, row_bytes(row), column) for table, row, column in cells]
        return [
            self._saw(cell, value)
            for cell, value in zip(asked, self._transaction.get_many(asked), strict=True)
        ]

    def get_row(self, table: str, row: str | bytes, columns: Iterable[str] | None = None) -> dict[str, bytes]:
        """Return the payloads of a row, by column; all or the named ones. Raises as `Transaction.get_row`.

        It is recorded as a scan of the one row.
        """
        key = row_bytes(row)
        wanted = None if columns is None else tuple(columns)
        if wanted == ():
            return {}
        own = self.own_between(table, key, key + b"\0", wanted)
        cells = self._transaction.get_row(table, key, wanted)
        return dict(self.saw_range(table, key, key + b"\0", wanted, [(key, cells)], own)[0][1])

    def scan(  # noqa: PLR0917
        self,
        table: str,
        start: str | bytes | None = None,
        stop: str | bytes | None = None,
        prefix: str | bytes | None = None,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[tuple[bytes, dict[str, bytes]]]:
        """Read the rows in a range with their payloads. Arguments as of `Transaction.scan`.

        If the limit ended the scan, the range up to the last row counts as read.
        """
        low, high = scan_bounds(start, stop, prefix)
        wanted = None if columns is None else tuple(columns)
        rows = list(self._transaction.scan(table, start, stop, prefix, wanted, limit, reverse))
        if limit is not None and len(rows) >= limit:
            if not rows:
                return []
            if reverse:
                low = rows[-1][0]
            else:
                high = rows[-1][0] + b"\0"
        if wanted == () or (high is not None and low >= high):
            return []
        return self.saw_range(table, low, high, wanted, rows, self.own_between(table, low, high, wanted))

    def set(self, table: str, row: str | bytes, column: str, payload: bytes) -> None:
        """Write a cell. Raises the errors of `Transaction.set`."""
        cell = CellKey(table, row_bytes(row), column)
        write = self._written.get(cell, 0) + 1
        self._transaction.set(*cell, tag_value(self._mark._replace(write=write), payload))
        self._written[cell] = self._own[cell] = write

    def delete(self, table: str, row: str | bytes, column: str) -> None:
        """Delete a cell."""
        cell = CellKey(table, row_bytes(row), column)
        self._transaction.delete(*cell)
        self._own[cell] = 0

    # Internals.

    def _saw(self, cell: CellKey, value: bytes | None) -> bytes | None:
        mark, payload = (None, None) if value is None else untag_value(value)
        if cell in self._own:
            self._own_reads.append(OwnRead(cell, self._own[cell], mark))
        else:
            self._reads.append(Read(cell, mark))
        return payload

    def saw_range(  # noqa: PLR0917
        self,
        table: str,
        low: bytes,
        high: bytes | None,
        columns: tuple[str, ...] | None,
        rows: list[tuple[bytes, dict[str, bytes]]],
        own: tuple[Write, ...],
    ) -> list[tuple[bytes, dict[str, bytes]]]:
        """Record a read of a range, and return its rows with plain values; ``own`` are earlier writes."""
        seen: list[Read] = []
        payloads: list[tuple[bytes, dict[str, bytes]]] = []
        for row, cells in rows:
            plain: dict[str, bytes] = {}
            for column, value in cells.items():
                mark, plain[column] = untag_value(value)
                seen.append(Read(CellKey(table, row, column), mark))
            payloads.append((row, plain))
        self._scans.append(ScanRead(table, low, high, columns, tuple(seen), own))
        return payloads

    def own_between(
        self, table: str, low: bytes, high: bytes | None, columns: tuple[str, ...] | None
    ) -> tuple[Write, ...]:
        """Return the transaction's own writes in a range."""
        return tuple(
            Write(cell, write)
            for cell, write in self._own.items()
            if cell.table == table
            and low <= cell.row
            and (high is None or cell.row < high)
            and (columns is None or cell.column in columns)
        )

    @property
    def start_ts(self) -> int | None:
        """Return the start timestamp if it is known."""
        return self._transaction._start_ts  # noqa: SLF001 - the public property would fetch one

    def record(self, began: int, outcome: Outcome, returned: int | None = None) -> TransactionRecord:
        """Return the record so far, for the history."""
        return TransactionRecord(
            process=self._mark.process,
            number=self._mark.number,
            began=began,
            returned=returned,
            start_ts=self.start_ts,
            outcome=outcome,
            reads=tuple(self._reads),
            own_reads=tuple(self._own_reads),
            scans=tuple(self._scans),
            writes=tuple(Write(cell, write) for cell, write in self._own.items()),
            blind=bool(self._own) and self.start_ts is None,
        )


class Recorder:
    """Runs transactions of one process and records them in ``<folder>/<process>.history``.

    Several threads, and tasks under `Database.concurrency`, may share it. A forked child needs its own.

    >>> with Recorder(db, folder, "w1") as recorder:
    ...     recorder.run(lambda t: t.set("t", "row", "column", b"payload"))

    Raises:
        FileExistsError: the folder has a history of that process; a name is used once.
        ValueError: the name has a character other than letters, digits, ``_``, ``.`` and ``-``.
    """

    def __init__(self, db: Database, folder: str | Path, process: str) -> None:
        self.db = db
        self.process = process
        self._journal = Journal(folder, process)
        self._numbers = itertools.count(1)

    @property
    def path(self) -> Path:
        """The file of the history."""
        return self._journal.path

    def run(self, fn: Callable[[RecordedTransaction], T], attempts: int = 10) -> T:
        """Run ``fn`` in a transaction and commit; after a conflict run it again, as `Database.run` does.

        Raises:
            TransactionConflict: all ``attempts`` (1 or more) conflicted.
            CommitUndetermined, StoreUnavailable, …: as for `Transaction.commit`; and all errors of ``fn``.
        """
        if attempts < 1:
            raise ValueError(f"attempts is 1 or more, not {attempts}")
        pause = _FIRST_PAUSE
        for remaining in reversed(range(attempts)):
            try:
                return self._attempt(fn)
            except TransactionConflict:
                if not remaining:
                    raise
            self.db.store.sleep(random.uniform(0, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Internals.

    def _attempt(self, fn: Callable[[RecordedTransaction], T]) -> T:
        self._journal.check_process()
        number = next(self._numbers)
        began = time.monotonic_ns()
        transaction = self.db.begin()
        recorded = RecordedTransaction(transaction, self.process, number)
        try:
            value = fn(recorded)
        except BaseException:
            # No write has been sent yet, so nothing can be committed, whatever the error is.
            transaction.rollback()
            self._journal.note(recorded.record(began, "fail", time.monotonic_ns()))
            raise
        self._commit(transaction, recorded, began)
        return value

    def _commit(self, transaction: Transaction, recorded: RecordedTransaction, began: int) -> None:
        intent = recorded.record(began, "unknown")
        if intent.writes:
            # If this process dies, the transaction has an intent and no outcome, and counts as unknown.
            self._journal.intend(intent)
        outcome: Outcome = "unknown"
        commit_ts = None
        try:
            commit_ts = transaction.commit()
            outcome = "ok"
        except NOT_COMMITTED:
            outcome = "fail"
            raise
        finally:
            result = dataclasses.replace(
                intent,
                returned=time.monotonic_ns(),
                start_ts=recorded.start_ts,
                commit_ts=commit_ts if intent.writes else None,
                outcome=outcome if intent.writes or outcome == "ok" else "fail",
            )
            if intent.writes:
                self._journal.conclude(result)
            else:
                self._journal.note(result)
