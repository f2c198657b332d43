"""Append to lists: each ends up with the entries of committed transactions, once, in the order of commits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import FAIL, OK, CellKey, History
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.workloads.workload import TABLE, State, Workload

_COLUMN = "entries"
_ACTIVE = 128
"""The number of lists that grow at the same time."""
_LENGTH = 24
"""A list of about this many entries is full. Lists stay short, because each new entry rewrites its list."""
_MOST = 3
_READS = 0.2


class Append(Workload):
    """An entry is the start timestamp of the transaction that appended it."""

    name: ClassVar[str] = "append"

    def prepare(self, recorder: Recorder) -> None:
        """Lists begin empty, so nothing is written."""

    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:
        """Append to up to three lists at once, or read some."""
        generation = number * self.clients * 2 // (_ACTIVE * _LENGTH)
        rows = [
            b"list%06d/%03d" % (generation, which)
            for which in dice.sample(range(_ACTIVE), dice.randint(1, _MOST))
        ]
        cells = [(TABLE, row, _COLUMN) for row in rows]
        reads_only = dice.random() < _READS

        def append(t: RecordedTransaction) -> list[bytes | None]:
            found = t.get_many(cells)
            if not reads_only:
                entry = b"%d" % t.start_timestamp
                for cell, before in zip(cells, found, strict=True):
                    t.set(*cell, entry if before is None else before + b"," + entry)
            return found

        for row, seen in zip(rows, recorder.run(append), strict=True):
            entries = _entries(seen)
            if len(set(entries)) < len(entries):
                yield f"the list {row.decode()} was read with an entry twice: {seen!r}"

    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:
        """Check that each list has one entry for each version, in order, and fits its writers' outcomes."""
        lists = {row: _entries(cells.get(_COLUMN)) for row, cells in state.items()}
        for row, entries in lists.items():
            cell = CellKey(TABLE, row, _COLUMN)
            versions = [version.start_ts for version in final.versions(cell)]
            # Garbage collection may have removed the older versions.
            if not versions or entries[-len(versions) :] != versions:
                yield f"the list {row.decode()} does not have the entries of its writers in their order"
        yield from self._compare(lists, history)

    @staticmethod
    def _compare(lists: dict[bytes, list[int]], history: History) -> Iterator[str]:
        counted = {row: Counter(entries) for row, entries in lists.items()}
        committed: dict[int, set[bool]] = {}
        for owner, cell in zip(history.write_owner, history.write_cell, strict=True):
            row = history.cells[cell].row
            times = counted.get(row, Counter())[history.start_ts[owner]]
            name = history.id_of(owner)
            outcome = history.outcome[owner]
            if outcome == OK and not times:
                yield f"lost: the commit of {name} succeeded, but the list {row.decode()} lacks its entry"
            if outcome == FAIL and times:
                yield f"the commit of {name} failed, but the list {row.decode()} has its entry"
            if times > 1:
                yield f"doubled: the list {row.decode()} has the entry of {name} {times} times"
            if outcome not in (OK, FAIL):
                committed.setdefault(owner, set()).add(bool(times))
        for owner, found in committed.items():
            if len(found) > 1:
                yield f"torn: of {history.id_of(owner)} some lists have the entry, and others do not"


def _entries(payload: bytes | None) -> list[int]:
    return [int(entry) for entry in payload.split(b",")] if payload else []
