"""A randomized attack: actors that read, write and change tables, each in a thread of its own.

An `Attack` has what all of them share. After the last step the records of all go to the judge, and
`Attack.conclude` raises AssertionError with the seed, the step and the facts that disagree.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self

import percolator_core as percolator
from percolator_core import (
    Database,
)
from percolator_torture.histories.history import TransactionRecord
from tests.attack.actor import Actor
from tests.attack.judge import Judge, explained
from tests.attack.ledger import Ledger, Shape
from tests.attack.session import WITNESS
from tests.servers.plain import some_namespace

STALL: Final = 20.0
"""Seconds after which an actor that makes no step hangs, where the servers are well."""

DISTURBED_STALL: Final = 90.0
"""The same, where servers fail over."""


class Attack:
    """The state that the actors share."""

    def __init__(self, url: str, seed: int, *, disturbed: bool = False, **settings: Any) -> None:
        """``disturbed``: servers fail over, so calls may fail. ``settings`` are of `connect`."""
        self.url = url
        self.seed = seed
        self.disturbed = disturbed
        self.namespace = some_namespace()
        self.ledger = Ledger()
        self.records: list[TransactionRecord] = []
        self.complaints: list[str] = []
        self.steps: dict[str, str] = {}
        """Which step began a transaction, by its id."""
        self.latest: deque[str] = deque(maxlen=25)
        self.tokens: list[int] = []
        """Timestamps that nobody has begun at so far."""
        self.collected_at: float | None = None
        """When garbage was collected first, in monotonic seconds."""
        self.moved: Callable[[], object] = lambda: None
        """Called with each step, for a watchdog."""
        self._settings = {"lock_ttl": 2.0, "lock_wait": 10.0, **settings}
        self._drawing = threading.Lock()
        self._stack = ExitStack()
        self.db = self.connect()
        witness = Shape(WITNESS, typed=False, columns={"by": "by"}, tablets=4)
        made = self.ledger.begin(WITNESS, "create", witness, self.db.timestamp())
        self.db.create_table(WITNESS, tablets=4)
        self.ledger.end(made, self.db.timestamp())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def connect(self) -> Database:
        """Another client; closed with the attack."""
        return self._stack.enter_context(percolator.connect(self.url, self.namespace, **self._settings))

    def actor(self, name: str, clients: int = 1, **limits: Any) -> Actor:
        """An actor with clients of its own."""
        return Actor(self, name, [self.connect() for _ in range(clients)], **limits)

    def token(self, dice: random.Random) -> int:
        """A noted timestamp, often one of the newest, for one caller alone; 0 if fewer than two are left."""
        with self._drawing:
            number = dice.choice([dice.randrange(1000), 1])
            return self.tokens.pop(-1 - number % len(self.tokens)) if len(self.tokens) > 1 else 0

    def run(self, actors: Sequence[Actor], steps: int, beside: Callable[[], object] | None = None) -> None:
        """Each actor makes so many steps, or more while ``beside`` happens, in a thread of its own."""
        over = threading.Event()
        if beside is None:
            over.set()
        arguments = (steps, over.is_set)
        threads = [threading.Thread(target=actor.run, args=arguments, daemon=True) for actor in actors]
        for thread in threads:
            thread.start()
        try:
            if beside is not None:
                beside()
        finally:
            over.set()
        stall = DISTURBED_STALL if self.disturbed else STALL
        for actor, thread in zip(actors, threads, strict=True):
            while thread.is_alive():
                thread.join(0.5)
                if thread.is_alive() and time.monotonic() - actor.moved_at > stall:
                    stack = "".join(traceback.format_stack(sys._current_frames()[thread.ident or 0])[-8:])
                    raise AssertionError(f"seed {self.seed}, {actor.at}: it hangs for {stall:g} s\n{stack}")

    def conclude(self) -> str:
        """Judge; returns what was done, or raises AssertionError."""
        judge = Judge(self.ledger, self.db, WITNESS)
        wrong = [*self.complaints, *explained(judge.verdict(self.records), self.steps)]
        done = f"{len(self.records)} transactions, {sum(self.counts().values())} committed"
        assert not wrong, "\n".join([
            f"seed {self.seed}: {len(wrong)} facts disagree",
            *wrong[:8],
            "the last steps:",
            *self.latest,
        ])  # fmt: skip
        for definition in self.db.tables():
            if not definition.index_of:
                self.db.drop_table(definition.name)
        return done

    def counts(self) -> dict[str, int]:
        """How many transactions of each process committed."""
        counts: dict[str, int] = {}
        for record in self.records:
            if record.outcome == "ok" and record.writes:
                counts[record.process] = counts.get(record.process, 0) + 1
        return counts
