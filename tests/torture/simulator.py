"""Histories of an ideal store: snapshot isolation simulated step by step, from a seed.

For trying out the checker: what comes out is correct, and as tangled as the settings make it. Transactions of
many processes interleave; some conflict, some are left with an unknown outcome, committed or not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from percolator_torture.histories.final_state import FinalState, Versions
from percolator_torture.histories.history import (
    CellKey,
    History,
    Outcome,
    OwnRead,
    Read,
    ScanRead,
    TransactionRecord,
    Write,
)
from percolator_torture.histories.marks import Mark

TABLE = "t"
COLUMN = "v"


@dataclass(frozen=True, slots=True)
class Mix:
    """How often things happen, each from 0 to 1; ``reads`` and ``writes`` are cells of one transaction."""

    reads: int = 2
    writes: int = 2
    read_only: float = 0.1
    blind: float = 0.1
    deletes: float = 0.1
    own_reads: float = 0.1
    scans: float = 0.05
    unknown: float = 0.05
    given_up: float = 0.02


def simulate(
    seed: int, transactions: int, *, cells: int = 50, processes: int = 8, mix: Mix | None = None
) -> tuple[History, FinalState]:
    """A correct history of that many transactions, and the state it leaves.

    The same arguments give the same history. ``cells`` is how many there are to read and write, ``processes``
    how many transactions are under way together.
    """
    simulator = _Simulator(random.Random(seed), cells, processes, mix or Mix())
    while simulator.finished < transactions:
        simulator.step()
    return simulator.history, simulator.final()


class _Simulator:
    def __init__(self, random_: random.Random, cells: int, processes: int, mix: Mix) -> None:
        self.history = History()
        self.finished = 0
        self._random = random_
        self._mix = mix
        self._cells = [CellKey(TABLE, b"%06d" % number, COLUMN) for number in range(cells)]
        self._newest: list[tuple[int, Mark | None]] = [(0, None)] * cells
        self._versions: dict[CellKey, Versions] = {}
        self._final = FinalState()
        self._open: list[TransactionRecord | None] = [None] * processes
        self._numbers = [0] * processes
        self._spares: list[int] = []
        self._clock = 0
        self._timestamp = 0

    def step(self) -> None:
        """Let one process begin or end a transaction."""
        process = self._random.randrange(len(self._open))
        record = self._open[process]
        if record is None:
            self._open[process] = self._begin(process)
        else:
            self._open[process] = None
            self._end(record)
            self.finished += 1

    def final(self) -> FinalState:
        """The state now."""
        self._final.cells.update(self._versions)
        return self._final

    # Inside.

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _tick(self) -> int:
        self._clock += self._random.randrange(3)  # several things may happen at one time
        return self._clock

    def _next_timestamp(self) -> int:
        self._timestamp += self._random.randrange(1, 4)
        return self._timestamp

    def _begin(self, process: int) -> TransactionRecord:
        self._numbers[process] += 1
        mix = self._mix
        blind = self._chance(mix.blind)
        record = TransactionRecord(
            f"p{process}", self._numbers[process], self._tick(), None, None, blind=blind
        )
        writes: tuple[Write, ...] = ()
        if blind or not self._chance(mix.read_only):
            writes = tuple(self._write(number) for number in self._some(mix.writes))
        changes: dict[str, Any] = {"writes": writes}
        if not blind:
            changes["start_ts"] = self._next_timestamp()
            changes["reads"] = tuple(self._read(number) for number in self._some(mix.reads))
            if self._chance(mix.scans):
                changes["scans"] = (self._scan(record, writes),)
        if self._chance(mix.own_reads):
            changes["own_reads"] = tuple(
                OwnRead(cell, write, record.mark(write) if write else None) for cell, write in writes
            )
        return replace(record, **changes)

    def _some(self, count: int) -> list[int]:
        """Different cells, a few of them much asked for."""
        chosen: dict[int, None] = {}
        while len(chosen) < min(count, len(self._cells)):
            chosen[int(len(self._cells) * self._random.random() ** 2)] = None
        return list(chosen)

    def _write(self, number: int) -> Write:
        if self._chance(self._mix.deletes):
            return Write(self._cells[number], 0)
        return Write(self._cells[number], 2 if self._chance(0.05) else 1)

    def _read(self, number: int) -> Read:
        return Read(self._cells[number], self._newest[number][1])

    def _scan(self, record: TransactionRecord, writes: tuple[Write, ...]) -> ScanRead:
        first = self._random.randrange(len(self._cells))
        numbers = range(first, min(first + 20, len(self._cells)))
        low, high = self._cells[first].row, b"%06d" % numbers.stop
        own = tuple(write for write in writes if low <= write.cell.row < high) if self._chance(0.5) else ()
        marks = {self._cells[number]: self._newest[number][1] for number in numbers}
        marks |= {cell: record.mark(write) if write else None for cell, write in own}
        seen = tuple(Read(cell, mark) for cell, mark in marks.items() if mark is not None)
        return ScanRead(TABLE, low, high, (COLUMN,) if self._chance(0.5) else None, seen, own)

    def _end(self, record: TransactionRecord) -> None:
        outcome: Outcome = "unknown" if record.writes and self._chance(self._mix.unknown) else "ok"
        start_ts = record.start_ts or self._start_blindly()
        commit_ts = None
        numbers = [int(cell.row) for cell, _ in record.writes]
        if self._chance(self._mix.given_up) or any(self._newest[number][0] > start_ts for number in numbers):
            outcome = "fail" if outcome == "ok" else outcome
        elif record.writes:
            commit_ts = self._commit(record, start_ts)
        returned: int | None = self._tick()
        if outcome == "unknown":
            # One whose process was killed, or one that was told that the outcome is not known.
            returned = None if self._chance(0.5) else returned
            commit_ts = None
            start_ts = 0 if record.blind else start_ts
        self.history.add(
            replace(
                record, returned=returned, start_ts=start_ts or None, commit_ts=commit_ts, outcome=outcome
            )
        )

    def _start_blindly(self) -> int:
        """A start timestamp for a transaction that only writes: a spare from a while ago, or a fresh one."""
        if self._spares and self._chance(0.5):
            return self._spares.pop(self._random.randrange(len(self._spares)))
        if self._chance(0.5):
            self._spares = [*self._spares[-20:], self._next_timestamp()]
        return self._next_timestamp()

    def _commit(self, record: TransactionRecord, start_ts: int) -> int:
        commit_ts = self._next_timestamp()
        pack = self._final.processes.pack
        for cell, write in record.writes:
            mark = record.mark(write) if write else None
            self._newest[int(cell.row)] = (commit_ts, mark)
            self._versions.setdefault(cell, Versions()).append(commit_ts, start_ts, pack(mark))
        return commit_ts
