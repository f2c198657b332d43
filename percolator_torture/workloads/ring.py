"""A token moves round a ring of cells: there is exactly one at all times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import FAIL, OK, History
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.workloads.workload import TABLE, State, Workload

RINGS = 96
PLACES = 8
_COLUMN = "token"
_FARTHEST = 3


def _prefix(ring: int) -> bytes:
    return b"ring%02d/" % ring


def _row(ring: int, place: int) -> bytes:
    return _prefix(ring) + b"%d" % place


class Ring(Workload):
    """A step deletes the token at its place and sets it some places further, with a count of its moves."""

    name: ClassVar[str] = "ring"

    def prepare(self, recorder: Recorder) -> None:
        """Put the tokens on their first places."""

        def put(t: RecordedTransaction) -> None:
            for ring in range(RINGS):
                t.set(TABLE, _row(ring, 0), _COLUMN, b"0")

        recorder.run(put)

    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:  # noqa: ARG002
        """Find the token of a ring, by a scan, and move it."""
        ring, distance = dice.randrange(RINGS), dice.randint(1, _FARTHEST)

        def move(t: RecordedTransaction) -> tuple[int, int]:
            held = [(row, cells[_COLUMN]) for row, cells in t.scan(TABLE, prefix=_prefix(ring)) if cells]
            if len(held) == 1:
                row, moves = held[0]
                place = int(row.rpartition(b"/")[2])
                t.delete(TABLE, row, _COLUMN)
                t.set(TABLE, _row(ring, (place + distance) % PLACES), _COLUMN, b"%d" % (int(moves) + 1))
            return t.start_timestamp, len(held)

        at, tokens = recorder.run(move)
        if tokens != 1:
            yield f"the snapshot at {at} has {tokens} tokens in ring {ring}"

    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:  # noqa: ARG002
        """Check that each ring has one token, which has moved as often as transactions committed."""
        sure: Counter[bytes] = Counter()
        tried: Counter[bytes] = Counter()
        for owner, cell, mark in zip(
            history.write_owner, history.write_cell, history.write_mark, strict=True
        ):
            # Of the two writes of a move, the deletion does not count; nor do the tokens' first places.
            if mark > 0 and not history.blind[owner]:
                prefix = history.cells[cell].row.rpartition(b"/")[0] + b"/"
                sure[prefix] += history.outcome[owner] == OK
                tried[prefix] += history.outcome[owner] != FAIL
        for ring in range(RINGS):
            prefix = _prefix(ring)
            tokens = [int(cells[_COLUMN]) for row, cells in state.items() if row.startswith(prefix) and cells]
            if len(tokens) != 1:
                yield f"ring {ring} is left with {len(tokens)} tokens"
            elif not sure[prefix] <= tokens[0] <= tried[prefix]:
                yield (
                    f"the token of ring {ring} counts {tokens[0]} moves, with {sure[prefix]} acknowledged "
                    f"and {tried[prefix]} that may have committed"
                )
