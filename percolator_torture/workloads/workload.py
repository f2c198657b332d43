"""The interface of a workload."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from percolator_core.database import Database
from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import History
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.histories.settling import read_state

TABLE = "torture"
"""The table of every workload."""

_TABLETS: Final = 16

State = dict[bytes, dict[str, bytes]]
"""The payloads of the table's cells, by row and column."""


class Workload(ABC):
    """Transactions whose outcome has a property that the workload checks, in addition to the checker.

    A step depends only on its dice, its number, and its reads.
    """

    name: ClassVar[str]
    keepers: ClassVar[Sequence[str]] = ()
    """The roles of the processes beside the clients (`keeper_process`); empty if no table has a base."""

    def __init__(self, clients: int) -> None:
        """``clients`` is the number of processes."""
        self.clients = clients

    def create(self, db: Database, folder: Path) -> None:  # noqa: ARG002
        """Create the tables; their files are below ``folder``."""
        db.create_table(TABLE, tablets=_TABLETS)

    @abstractmethod
    def prepare(self, recorder: Recorder) -> None:
        """Write the first data; no other transaction runs."""

    @abstractmethod
    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:
        """Run a transaction, or a few that belong together; yield a sentence for each violation.

        ``number`` counts, from 0, the steps of a client and of the processes that replaced it.
        """

    def conclude(self, db: Database) -> Iterator[str]:  # noqa: ARG002
        """Check the database after the last process has ended; yield a sentence for each violation."""
        yield from ()

    def final(self, db: Database, lock_ttl: float) -> FinalState:
        """Read the final state for the checker."""
        return read_state(db, TABLE, lock_ttl)

    @abstractmethod
    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:
        """Check the final state; yield a sentence for each violation."""

    @staticmethod
    def read_all(recorder: Recorder) -> State:
        """Read the whole table, from one snapshot."""

        def read(t: RecordedTransaction) -> State:
            return dict(t.scan(TABLE))

        return recorder.run(read)
