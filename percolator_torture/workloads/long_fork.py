"""Blind writes to single cells, read in groups: all readers agree on the order of the writes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from operator import le
from typing import ClassVar

from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import CellKey, History
from percolator_torture.histories.marks import ABSENT
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.workloads.workload import TABLE, State, Workload

GROUPS = 24
MEMBERS = 4
_COLUMN = "seen"
_READS = 0.5


def _cells(group: int) -> list[tuple[str, bytes, str]]:
    return [(TABLE, b"group%02d/%d" % (group, member), _COLUMN) for member in range(MEMBERS)]


class LongFork(Workload):
    """Checks that no two readers see two independent writes in different orders."""

    name: ClassVar[str] = "long-fork"

    def prepare(self, recorder: Recorder) -> None:
        """The cells begin absent."""

    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:
        """Write one cell of a group without a read, or read the group."""
        cells = _cells(dice.randrange(GROUPS))
        if dice.random() < _READS:
            recorder.run(lambda t: t.get_many(cells))
            return
        cell = dice.choice(cells)

        def write(t: RecordedTransaction) -> None:
            t.set(*cell, b"%d" % number)

        recorder.run(write)
        yield from ()

    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:  # noqa: ARG002
        """Check that the reads of a group are a chain: of any two reads, one saw all that the other saw.

        The check compares no timestamps of different cells; only the order of each cell's own versions
        counts.
        """
        if final.safe_point:
            return  # collected versions have no place in the order any more
        seen = self._readings(history, final)
        for group in range(GROUPS):
            ordered = sorted(seen[group], key=lambda reading: sum(reading[0]))
            for (earlier, one), (later, other) in pairwise(ordered):
                if not all(map(le, earlier, later)):
                    names = history.id_of(one), history.id_of(other)
                    yield (
                        f"long fork in group {group}: {names[0]} saw versions {earlier} of its cells and "
                        f"{names[1]} {later}"
                    )

    @staticmethod
    def _readings(history: History, final: FinalState) -> dict[int, list[tuple[tuple[int, ...], int]]]:
        """The reads of each group: for each cell the number of the version read (0: none); and the reader."""
        places: dict[tuple[int, int], int] = {}
        group_of: dict[int, int] = {}
        for group in range(GROUPS):
            for table, row, column in _cells(group):
                cell = CellKey(table, row, column)
                index = history.cell_index(cell)
                group_of[index] = group
                places[index, ABSENT] = 0
                for place, version in enumerate(final.versions(cell), 1):
                    places[index, history.processes.pack(version.mark)] = place
        readings: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for owner, index, mark in zip(history.read_owner, history.read_cell, history.read_mark, strict=True):
            readings[owner].append((index, places.get((index, mark), 0)))
        found: dict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        for owner, cells in readings.items():
            if len(cells) == MEMBERS:
                found[group_of[cells[0][0]]].append((tuple(place for _, place in sorted(cells)), owner))
        return found
