"""Transfers between accounts: every snapshot has the same sum."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import History
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.workloads.workload import TABLE, State, Workload

ACCOUNTS = 256
OPENING = 1000
_COLUMN = "balance"
_AUDITS = 0.04
_LARGEST = 50


def _row(number: int) -> bytes:
    return b"account%03d" % number


class Bank(Workload):
    """Moves money and counts it."""

    name: ClassVar[str] = "bank"

    def prepare(self, recorder: Recorder) -> None:
        """Open the accounts."""

        def open_all(t: RecordedTransaction) -> None:
            for number in range(ACCOUNTS):
                t.set(TABLE, _row(number), _COLUMN, b"%d" % OPENING)

        recorder.run(open_all)

    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:  # noqa: ARG002
        """Usually transfer; sometimes sum all accounts."""
        drawn = dice.random()
        if drawn < _AUDITS / 2:
            yield from self._audit(recorder, by_scan=True)
        elif drawn < _AUDITS:
            yield from self._audit(recorder, by_scan=False)
        else:
            giver, taker = dice.sample(range(ACCOUNTS), 2)
            self._transfer(recorder, giver, taker, dice.randint(1, _LARGEST))

    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:  # noqa: ARG002
        """Check that the sum is that of the beginning, and no balance is missing."""
        yield from _judge([cells.get(_COLUMN) for cells in state.values()], "the state that is left")

    @staticmethod
    def _transfer(recorder: Recorder, giver: int, taker: int, amount: int) -> None:
        cells = [(TABLE, _row(giver), _COLUMN), (TABLE, _row(taker), _COLUMN)]

        def move(t: RecordedTransaction) -> None:
            has, gets = (int(balance or b"0") for balance in t.get_many(cells))
            moved = min(amount, has)
            t.set(*cells[0], b"%d" % (has - moved))
            t.set(*cells[1], b"%d" % (gets + moved))

        recorder.run(move)

    @staticmethod
    def _audit(recorder: Recorder, *, by_scan: bool) -> Iterator[str]:
        def count(t: RecordedTransaction) -> tuple[int, list[bytes | None]]:
            if by_scan:
                return t.start_timestamp, [cells.get(_COLUMN) for _, cells in t.scan(TABLE)]
            return t.start_timestamp, t.get_many(
                [(TABLE, _row(number), _COLUMN) for number in range(ACCOUNTS)]
            )

        at, balances = recorder.run(count)
        yield from _judge(balances, f"the snapshot at {at}")


def _judge(balances: list[bytes | None], where: str) -> Iterator[str]:
    found = [int(balance) for balance in balances if balance is not None]
    if len(found) != ACCOUNTS:
        yield f"{where} has {len(found)} accounts of {ACCOUNTS}"
    elif sum(found) != ACCOUNTS * OPENING:
        yield f"{where} has {sum(found)} on all accounts together, not {ACCOUNTS * OPENING}"
