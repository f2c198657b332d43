"""What a workload is."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import History
from percolator_torture.histories.recorder import RecordedTransaction, Recorder

TABLE = "torture"
"""The table of every workload."""

State = dict[bytes, dict[str, bytes]]
"""The payloads of the table's cells, by row and column."""


class Workload(ABC):
    """Transactions whose outcome has a property of its own, which is looked at beside the checker's.

    What a step does depends on its dice and number alone, and on what it reads.
    """

    name: ClassVar[str]

    def __init__(self, clients: int) -> None:
        """``clients`` is how many processes take part."""
        self.clients = clients

    @abstractmethod
    def prepare(self, recorder: Recorder) -> None:
        """Write the first data; no other transaction runs."""

    @abstractmethod
    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:
        """Run a transaction, or a few that belong together; yields a sentence for each thing that is wrong.

        ``number`` counts the steps of a seat in the crew from 0.
        """

    @abstractmethod
    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:
        """Look at the state that is left; yields a sentence for each thing that is wrong."""

    @staticmethod
    def read_all(recorder: Recorder) -> State:
        """The whole table, from one snapshot."""

        def read(t: RecordedTransaction) -> State:
            return dict(t.scan(TABLE))

        return recorder.run(read)
