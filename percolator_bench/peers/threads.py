"""Threads with a connection each: the way to have several operations in flight with a blocking client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Generic, Self, TypeAlias, TypeVar

C = TypeVar("C")

_Job: TypeAlias = tuple[Callable[[C], None], SimpleQueue[BaseException | None]]
"""A function to call with the thread's connection, and the queue for the outcome."""


class Threads(Generic[C]):
    """One thread for each connection; with a single connection the caller's thread does the work.

    A context manager that ends its threads; the caller closes the connections. Not an executor of
    `concurrent.futures`: an interrupt can leave one of its locks held, and then a thread waits forever.
    `SimpleQueue` has no lock that is written in Python.
    """

    def __init__(self, connections: Sequence[C]) -> None:
        """``connections`` are 1 or more."""
        self.connections = tuple(connections)
        self._jobs: list[SimpleQueue[_Job[C] | None]] = []
        self._threads: list[Thread] = []

    def run(self, one: Callable[[C, int], None], first: int, count: int) -> None:
        """Call ``one(connection, number)`` for ``count`` numbers from ``first``; threads take them in turn.

        Raises the error of a failed operation, after all operations under way have ended.
        """
        # Threads can share the iterator: the interpreter takes an item of a range in one step.
        numbers = iter(range(first, first + count))

        def work(connection: C) -> None:
            for number in numbers:
                one(connection, number)

        if len(self.connections) == 1:
            work(self.connections[0])
            return
        outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        try:
            for jobs in self._jobs:
                jobs.put((work, outcomes))
            for _ in self._jobs:
                failure = outcomes.get()
                if failure is not None:
                    raise failure
        finally:
            # After a failure or Ctrl-C no thread begins another operation.
            deque(numbers, maxlen=0)

    def __enter__(self) -> Self:
        if len(self.connections) > 1:
            for connection in self.connections:
                jobs: SimpleQueue[_Job[C] | None] = SimpleQueue()
                self._jobs.append(jobs)
                self._threads.append(Thread(target=_serve, args=(connection, jobs), daemon=True))
                self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()


def _serve(connection: C, jobs: SimpleQueue[_Job[C] | None]) -> None:
    while (job := jobs.get()) is not None:
        work, outcomes = job
        failure: BaseException | None = None
        try:
            work(connection)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one
            failure = error
        outcomes.put(failure)
