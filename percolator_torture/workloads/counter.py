"""Counters: the value of each is the sum of its committed increments."""

from __future__ import annotations

import random
from collections import Counter as Tally
from collections.abc import Iterator
from typing import ClassVar

from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import FAIL, OK, CellKey, History
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.workloads.workload import TABLE, State, Workload

COUNTERS = 128
_COLUMN = "count"
_PAIRS = 0.5
_READS = 0.1


def _row(number: int) -> bytes:
    return b"counter%03d" % number


class Counter(Workload):
    """Increments one counter, or two at once."""

    name: ClassVar[str] = "counter"

    def prepare(self, recorder: Recorder) -> None:
        """Counters begin at 0, so nothing is written."""

    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:  # noqa: ARG002
        """Count up, or read twice: no counter decreases."""
        chosen = dice.sample(range(COUNTERS), 2 if dice.random() < _PAIRS else 1)
        cells = [(TABLE, _row(which), _COLUMN) for which in chosen]
        if dice.random() < _READS:
            first, second = (recorder.run(lambda t: _values(t, cells)) for _ in range(2))
            if any(later < earlier for earlier, later in zip(first, second, strict=True)):
                yield f"{[row.decode() for _, row, _ in cells]} counted down, from {first} to {second}"
            return

        def increment(t: RecordedTransaction) -> None:
            for cell, value in zip(cells, _values(t, cells), strict=True):
                t.set(*cell, b"%d" % (value + 1))

        recorder.run(increment)

    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:
        """Check that each value lies between acknowledged and attempted increments, and fits its versions."""
        sure: Tally[bytes] = Tally()
        tried: Tally[bytes] = Tally()
        for owner, cell in zip(history.write_owner, history.write_cell, strict=True):
            row, outcome = history.cells[cell].row, history.outcome[owner]
            sure[row] += outcome == OK
            tried[row] += outcome != FAIL
        for row in tried.keys() | state.keys():
            value = int(state.get(row, {}).get(_COLUMN, b"0"))
            if not sure[row] <= value <= tried[row]:
                yield (
                    f"{row.decode()} is at {value}, with {sure[row]} increments acknowledged "
                    f"and {tried[row]} that may have committed"
                )
            versions = len(final.versions(CellKey(TABLE, row, _COLUMN)))
            if not final.safe_point and versions != value:
                yield f"{row.decode()} is at {value} after {versions} committed increments"


def _values(t: RecordedTransaction, cells: list[tuple[str, bytes, str]]) -> list[int]:
    return [int(value or b"0") for value in t.get_many(cells)]
