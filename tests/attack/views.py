"""Transactions and snapshots that write down what they saw, typed rows and half-read scans included."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, cast

from percolator_core import Snapshot, Transaction
from percolator_torture.histories.history import CellKey, Outcome, TransactionRecord
from percolator_torture.histories.marks import tag_value
from percolator_torture.histories.recorder import RecordedTransaction
from tests.attack.ledger import Shape

WHOLE_ROW = "*"
"""Stands for all columns of a row that is removed, until it is known which these were."""

UNWRITTEN = ("id", "kind")
"""Columns of typed rows whose values follow from the row key. They have no marks."""

KINDS = 4


def kind_of(row: bytes) -> int:
    """The value of the indexed column of a row."""
    return sum(row) % KINDS


class View(RecordedTransaction):
    """A transaction, or a snapshot, and its record. Not for several threads.

    ``past`` is a snapshot of a time that has gone by: it has no place in the order of real time.
    """

    __slots__ = ("began", "began_at", "blind", "complaints", "past", "pinned")

    def __init__(
        self,
        begin: Callable[[], Snapshot],
        process: str,
        number: int,
        *,
        past: bool = False,
        pinned: bool = False,
    ) -> None:
        began = time.monotonic_ns()  # before: a snapshot has its timestamp from the start
        reader = begin()
        super().__init__(cast("Transaction", reader), process, number)  # a snapshot only reads
        self.past = past
        self.pinned = pinned
        self.blind = False
        """True if it commits without a read: then its commit determines its order."""
        self.began = 0 if past else began
        self.began_at = time.monotonic()
        self.complaints: list[str] = []
        """The faults that no action of another client can excuse."""
        if pinned:
            reader.__enter__()

    @property
    def reader(self) -> Snapshot:
        """The snapshot or transaction that is read."""
        return self._transaction

    @property
    def writable(self) -> bool:
        """True for a transaction."""
        return isinstance(self._transaction, Transaction)

    @property
    def id(self) -> str:
        """As in the history."""
        return self._mark.transaction

    @property
    def wrote(self) -> bool:
        """True after a write."""
        return bool(self._own)

    # Typed rows.

    def find(self, table: str, row: bytes) -> None:
        """Read a row by its key."""
        found = self.reader.find(table, id=row.decode())
        rows = [] if found is None else [(row, self._cells(table, row, found))]
        columns = self._names(table, [found] if found else [])
        self._note_range(table, row, row + b"\0", columns, rows)

    def find_by_kind(self, table: str, where: Any, kind: int, rows: list[bytes]) -> None:
        """Read the rows that the index has for a value; all of ``rows`` that are there are among them."""
        found = {one["id"].encode(): one for one in self.reader.select(table, where)}
        columns = self._names(table, list(found.values()))
        for row, one in found.items():
            if kind_of(row) != kind:
                self.complaints.append(
                    f"a select of {table} with kind == {kind} returned the row {row!r}, whose kind is "
                    f"{kind_of(row)} (the answer says {one['kind']!r})"
                )
        for row in rows:
            if kind_of(row) == kind:
                cells = [(row, self._cells(table, row, found[row]))] if row in found else []
                self._note_range(table, row, row + b"\0", columns, cells)

    def open_scan(self, table: str, shape: Shape, dice: random.Random) -> OpenScan:
        """Begin to read a table from some row on."""
        start = dice.choice([None, None, b"a", b"b"])
        limit = dice.choice([None, None, None, 100])
        if not shape.typed:
            rows = self.reader.scan(table, start=start, limit=limit)
            return OpenScan(self, table, rows, start or b"", limit)
        names: set[tuple[str, ...]] = set()
        found = self._decoded(table, self.reader.select(table, limit=limit), names)
        return OpenScan(self, table, found, b"", limit, names)

    def _decoded(
        self, table: str, found: Iterator[dict[str, Any]], names: set[tuple[str, ...]]
    ) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        for one in found:
            row = one["id"].encode()
            names.add(tuple(name for name in one if name not in UNWRITTEN))
            if len(names) > 1:
                self.complaints.append(f"one select of {table} names the columns {sorted(names)}")
            yield row, self._cells(table, row, one)

    def _names(self, table: str, found: list[dict[str, Any]]) -> tuple[str, ...] | None:
        """The columns of an answer, which are those of each of its rows; None for an empty one."""
        names = {tuple(name for name in one if name not in UNWRITTEN) for one in found}
        if len(names) > 1:
            self.complaints.append(f"one answer of {table} names the columns {sorted(names)}")
        return names.pop() if names else None

    def _cells(self, table: str, row: bytes, found: dict[str, Any]) -> dict[str, bytes]:
        if found["kind"] != kind_of(row):
            self.complaints.append(
                f"the row {row!r} of {table} has the kind {found['kind']!r}, {kind_of(row)} was written"
            )
        return {name: value for name, value in found.items() if name not in UNWRITTEN and value is not None}

    def _note_range(
        self,
        table: str,
        low: bytes,
        high: bytes | None,
        columns: tuple[str, ...] | None,
        rows: list[tuple[bytes, dict[str, bytes]]],
    ) -> None:
        own = self.own_between(table, low, high, None)
        self.saw_range(table, low, high, columns, rows, own)

    # Writes.

    def put_row(self, table: str, row: bytes, shape: Shape, payload: bytes) -> None:
        """Write all cells of a row that is not there."""
        if not shape.typed:
            for column in shape.columns:
                self.set(table, row, column, payload)
            return
        values = {column: self._value(table, row, column, payload) for column in shape.columns}
        self.writer.insert(table, id=row.decode(), kind=kind_of(row), **values)
        self._note_writes(table, row, values)

    def change_cell(self, table: str, row: bytes, shape: Shape, column: str, payload: bytes) -> None:
        """Write one cell of a row; of a typed table the row must be there."""
        if not shape.typed:
            self.set(table, row, column, payload)
            return
        values = {column: self._value(table, row, column, payload)}
        self.writer.update(table, id=row.decode(), **values)
        self._note_writes(table, row, values)

    def remove_row(self, table: str, row: bytes, shape: Shape) -> None:
        """Remove a row that is there."""
        if not shape.typed:
            for column in shape.columns:
                self.delete(table, row, column)
        elif self.writer.remove(table, id=row.decode()):
            for cell in [one for one in self._own if one.table == table and one.row == row]:
                del self._own[cell]
            self._own[CellKey(table, row, WHOLE_ROW)] = 0

    def _value(self, table: str, row: bytes, column: str, payload: bytes) -> bytes:
        write = self._written.get(CellKey(table, row, column), 0) + 1
        return tag_value(self._mark._replace(write=write), payload)

    def _note_writes(self, table: str, row: bytes, columns: Iterable[str]) -> None:
        for column in columns:
            cell = CellKey(table, row, column)
            self._written[cell] = self._own[cell] = self._written.get(cell, 0) + 1

    @property
    def writer(self) -> Transaction:
        """The transaction that is written."""
        assert isinstance(self._transaction, Transaction)
        return self._transaction

    # The end.

    def commit(self) -> int:
        """As `Transaction.commit`."""
        self.blind = self.start_ts is None
        return self.writer.commit()

    def close(self) -> None:
        """Discard the writes; unpin a snapshot."""
        if self.writable:
            self.writer.rollback()
        elif self.pinned:
            self.pinned = False
            self.reader.__exit__(None, None, None)

    def finished(self, outcome: Outcome, commit_ts: int | None = None) -> TransactionRecord:
        """The record of it, now that it is over."""
        record = self.record(
            self.began,
            "fail" if self.past else outcome,
            returned=None if self.past else time.monotonic_ns(),
        )
        return dataclasses.replace(
            record,
            blind=self.blind,
            commit_ts=commit_ts if outcome == "ok" and self._own else None,
        )


class OpenScan:
    """A scan or select that is consumed bit by bit, while other things happen."""

    def __init__(  # noqa: PLR0917
        self,
        view: View,
        table: str,
        rows: Iterator[tuple[bytes, dict[str, bytes]]],
        low: bytes,
        limit: int | None,
        names: set[tuple[str, ...]] | None = None,
    ) -> None:
        self.view = view
        self.table = table
        self._taken: list[tuple[bytes, dict[str, bytes]]] = []
        self._rows = rows
        self._low = low
        self._limit = limit
        self._names = names
        """Of a typed table, the columns that its rows have had so far."""
        self._own = view.own_between(table, low, None, None)

    def take(self, count: int | None) -> bool:
        """Take so many more rows, None for all; False when it came to its end. Raises as it does."""
        more = list(islice(self._rows, count))
        self._taken += more
        if count is not None and len(more) == count:
            return True
        self.note(whole=self._limit is None or len(self._taken) < self._limit)
        return False

    def note(self, *, whole: bool = False) -> None:
        """Write down what came: of the whole table, or up to the last row."""
        if not whole and not self._taken:
            return
        high = None if whole else self._taken[-1][0] + b"\0"
        columns = next(iter(self._names), None) if self._names else None
        own = tuple(write for write in self._own if high is None or write.cell.row < high)
        self.view.saw_range(self.table, self._low, high, columns, self._taken, own)
