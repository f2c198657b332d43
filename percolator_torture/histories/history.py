"""Histories: the reads and writes of transactions, as their clients saw them.

Every written value has a *mark*: the transaction that wrote it, and the number of its write to the cell. So a
read identifies its writer, and no conclusion from a history depends on the timestamps under test.

A history is in columns of machine integers: a million transactions of two reads and two writes take about 120
MB. `TransactionRecord` is the readable form of one transaction, for input and output.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from percolator_torture.histories.marks import (
    ABSENT,
    NUMBER_BITS,
    NUMBER_MASK,
    WRITE_BITS,
    WRITE_MASK,
    Mark,
    Processes,
)

Outcome = Literal["ok", "fail", "unknown"]
"""``ok``: the commit returned. ``fail``: certainly nothing was committed. ``unknown``: anything else."""

OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "fail", "unknown")
OK, FAIL, UNKNOWN = range(3)
"""Positions in `OUTCOMES`, as a column stores an outcome."""

NEVER: Final = 2**63 - 1
"""The time of return of a transaction that never returned."""

_GAP: Final = 1_000_000


class CellKey(NamedTuple):
    """A cell: table, row key, column."""

    table: str
    row: bytes
    column: str

    def __str__(self) -> str:
        return f"{self.table}.{self.column} of row {self.row!r}"


class Read(NamedTuple):
    """A cell read from the snapshot, and the mark of its value, None for an absent cell."""

    cell: CellKey
    seen: Mark | None


class OwnRead(NamedTuple):
    """A cell read after the transaction had written it itself.

    ``wrote`` is its last write to the cell before the read: the `Mark.write`, 0 for a deletion.
    """

    cell: CellKey
    wrote: int
    seen: Mark | None


class Write(NamedTuple):
    """A transaction's last write to a cell: the `Mark.write` of the value, 0 for a deletion."""

    cell: CellKey
    write: int = 1


class ScanRead(NamedTuple):
    """A range of rows read: ``seen`` has exactly the cells of the columns in ``low <= row < high``.

    ``high`` None means the end of the table, ``columns`` None means all columns. ``own`` are the
    transaction's own writes in the range before the scan.
    """

    table: str
    low: bytes
    high: bytes | None
    columns: tuple[str, ...] | None
    seen: tuple[Read, ...]
    own: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One transaction, as its process saw it.

    ``began`` and ``returned`` are `time.monotonic_ns`, which on Linux is one clock for all processes of a
    machine; ``returned`` is None for a process that was killed. ``start_ts`` is None if it is unknown.
    ``commit_ts`` is None if the transaction wrote nothing or is not known to have committed. ``blind`` is
    True for a transaction that writes and had not fixed its snapshot when its commit began.

    >>> TransactionRecord("w1", 7, 100, 200, 10, 11, writes=(Write(CellKey("t", b"x", "v")),)).id
    'w1:7'
    """

    process: str
    number: int
    began: int
    returned: int | None
    start_ts: int | None
    commit_ts: int | None = None
    outcome: Outcome = "ok"
    reads: tuple[Read, ...] = ()
    own_reads: tuple[OwnRead, ...] = ()
    scans: tuple[ScanRead, ...] = ()
    writes: tuple[Write, ...] = ()
    blind: bool = False

    @property
    def id(self) -> str:
        """``process:number``."""
        return f"{self.process}:{self.number}"

    def mark(self, write: int = 1) -> Mark:
        """Return the mark of one of its values."""
        return Mark(self.process, self.number, write)


class PackedScan(NamedTuple):
    """A scan with its cells and marks as integers."""

    table: str
    low: bytes
    high: bytes | None
    columns: tuple[str, ...] | None
    seen: tuple[tuple[int, int], ...]
    own: dict[int, int]


class History:
    """Transactions of any number of processes, in columns, which the checker reads.

    Position ``i`` of the columns from ``identity`` to ``blind`` is one transaction; 0 in ``start_ts`` and
    ``commit_ts`` means None. Reads and writes are columns of their own, with the transaction of each. A
    ``write_mark`` of `ABSENT` is a deletion.
    """

    __slots__ = (
        "_at",
        "_cell_index",
        "began",
        "blind",
        "cells",
        "commit_ts",
        "identity",
        "outcome",
        "own_reads",
        "processes",
        "read_cell",
        "read_mark",
        "read_owner",
        "returned",
        "scans",
        "start_ts",
        "write_cell",
        "write_mark",
        "write_owner",
    )

    def __init__(self, records: Iterable[TransactionRecord] = ()) -> None:
        self.processes = Processes()
        self.cells: list[CellKey] = []
        self._cell_index: dict[CellKey, int] = {}
        self._at: list[array[int]] = []
        self.identity, self.began, self.returned = array("q"), array("q"), array("q")
        self.start_ts, self.commit_ts = array("q"), array("q")
        self.outcome, self.blind = bytearray(), bytearray()
        self.read_owner, self.read_cell, self.read_mark = array("i"), array("i"), array("q")
        self.write_owner, self.write_cell, self.write_mark = array("i"), array("i"), array("q")
        self.own_reads: dict[int, list[tuple[int, int, int]]] = {}
        self.scans: dict[int, list[PackedScan]] = {}
        for record in records:
            self.add(record)

    def add(self, record: TransactionRecord) -> None:
        """Add a transaction.

        Raises:
            ValueError: another transaction has its id, or its fields contradict each other.
        """
        identity = self.processes.identity(record.process, record.number)
        if self.position(identity << WRITE_BITS) is not None:
            raise ValueError(
                f"two transactions have the id {record.id}: give every process a name of its own"
            )
        _check_record(record)
        position = len(self.identity)
        self._place(identity, position)
        self.identity.append(identity)
        self.began.append(record.began)
        self.returned.append(NEVER if record.returned is None else record.returned)
        self.start_ts.append(record.start_ts or 0)
        self.commit_ts.append(record.commit_ts or 0)
        self.outcome.append(OUTCOMES.index(record.outcome))
        self.blind.append(record.blind)
        cell_index, pack = self.cell_index, self.processes.pack
        for cell, seen in record.reads:
            self.read_owner.append(position)
            self.read_cell.append(cell_index(cell))
            self.read_mark.append(pack(seen))
        for cell, write in record.writes:
            self.write_owner.append(position)
            self.write_cell.append(cell_index(cell))
            self.write_mark.append(identity << WRITE_BITS | write if write else ABSENT)
        if record.own_reads:
            self.own_reads[position] = [
                (cell_index(cell), identity << WRITE_BITS | wrote if wrote else ABSENT, pack(seen))
                for cell, wrote, seen in record.own_reads
            ]
        if record.scans:
            self.scans[position] = [self._pack_scan(scan, identity) for scan in record.scans]

    def _pack_scan(self, scan: ScanRead, identity: int) -> PackedScan:
        return PackedScan(
            scan.table,
            scan.low,
            scan.high,
            scan.columns,
            tuple((self.cell_index(cell), self.processes.pack(seen)) for cell, seen in scan.seen),
            {
                self.cell_index(cell): identity << WRITE_BITS | write if write else ABSENT
                for cell, write in scan.own
            },
        )

    def cell_index(self, cell: CellKey) -> int:
        """Return the cell's number, a new one if it has none yet."""
        found = self._cell_index.get(cell)
        if found is None:
            found = self._cell_index[cell] = len(self.cells)
            self.cells.append(cell)
        return found

    def position(self, packed_mark: int) -> int | None:
        """Return the position of the transaction of a packed mark; None if the history does not have it."""
        identity = packed_mark >> WRITE_BITS
        process, number = identity >> NUMBER_BITS, identity & NUMBER_MASK
        if process >= len(self._at) or number >= len(self._at[process]):
            return None
        position = self._at[process][number]
        return None if position < 0 else position

    def _place(self, identity: int, position: int) -> None:
        # By process and number: numbers are dense, and a dictionary of a million ids would take 100 MB.
        process, number = identity >> NUMBER_BITS, identity & NUMBER_MASK
        while len(self._at) <= process:
            self._at.append(array("i"))
        places = self._at[process]
        if number > len(places) + _GAP:
            raise ValueError(f"transaction {number} of a process skips over a million numbers: count from 1")
        if number >= len(places):
            places.extend(itertools.repeat(-1, number + 1 - len(places)))
        places[number] = position

    def id_of(self, position: int) -> str:
        """Return the id of the transaction at a position."""
        identity = self.identity[position]
        return f"{self.processes.names[identity >> NUMBER_BITS]}:{identity & NUMBER_MASK}"

    def reads_of(self, position: int) -> range:
        """Return the positions of a transaction's reads in their columns."""
        return _span(self.read_owner, position)

    def writes_of(self, position: int) -> range:
        """Return the positions of a transaction's writes in their columns."""
        return _span(self.write_owner, position)

    def __len__(self) -> int:
        return len(self.identity)

    def __iter__(self) -> Iterator[TransactionRecord]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, position: int) -> TransactionRecord:
        """Return the record of the transaction at a position, from 0."""
        identity, returned = self.identity[position], self.returned[position]
        cells, unpack = self.cells, self.processes.unpack
        return TransactionRecord(
            process=self.processes.names[identity >> NUMBER_BITS],
            number=identity & NUMBER_MASK,
            began=self.began[position],
            returned=None if returned == NEVER else returned,
            start_ts=self.start_ts[position] or None,
            commit_ts=self.commit_ts[position] or None,
            outcome=OUTCOMES[self.outcome[position]],
            reads=tuple(
                Read(cells[self.read_cell[at]], unpack(self.read_mark[at])) for at in self.reads_of(position)
            ),
            own_reads=tuple(
                OwnRead(cells[cell], wrote & WRITE_MASK, unpack(seen))
                for cell, wrote, seen in self.own_reads.get(position, ())
            ),
            scans=tuple(
                ScanRead(
                    *scan[:4],
                    tuple(Read(cells[cell], unpack(seen)) for cell, seen in scan.seen),
                    tuple(Write(cells[cell], wrote & WRITE_MASK) for cell, wrote in scan.own.items()),
                )
                for scan in self.scans.get(position, ())
            ),
            writes=tuple(
                Write(cells[self.write_cell[at]], self.write_mark[at] & WRITE_MASK)
                for at in self.writes_of(position)
            ),
            blind=bool(self.blind[position]),
        )


def _span(owners: array[int], position: int) -> range:
    return range(bisect_left(owners, position), bisect_right(owners, position))


def _check_record(record: TransactionRecord) -> None:
    wrong = None
    if record.start_ts is None and (record.reads or record.scans):
        wrong = "it read and has no start timestamp"
    elif record.outcome == "ok" and record.writes and not (record.start_ts and record.commit_ts):
        wrong = "it committed writes and lacks a timestamp"
    elif record.outcome == "ok" and record.returned is None:
        wrong = "it is ok and never returned"
    elif record.returned is not None and record.returned < record.began:
        wrong = "it returned before it began"
    elif record.commit_ts is not None and (record.outcome != "ok" or not record.writes):
        wrong = "it has a commit timestamp and no writes that are known to have committed"
    elif record.blind and (record.reads or record.scans):
        wrong = "it is blind, but has reads"
    elif _repeats([write.cell for write in record.writes]):
        wrong = "it lists a cell twice among its writes"
    if wrong is not None:
        raise ValueError(f"transaction {record.id} cannot be: {wrong}")


def _repeats(cells: Sequence[CellKey]) -> bool:
    return len(cells) > 1 and len(set(cells)) != len(cells)
