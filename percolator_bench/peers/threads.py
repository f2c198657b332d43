"""Threads with a connection each: how users of a blocking client have several operations in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType
from typing import Generic, Self, TypeVar

C = TypeVar("C")


class Threads(Generic[C]):
    """One thread for each connection; with a single one the caller's thread does the work.

    A context manager that ends its threads; the connections are closed by whoever opened them.
    """

    def __init__(self, connections: Sequence[C]) -> None:
        """``connections`` are 1 or more."""
        self.connections = tuple(connections)
        self._threads = ThreadPoolExecutor(len(self.connections))

    def run(self, one: Callable[[C, int], None], first: int, count: int) -> None:
        """``one(connection, number)`` for ``count`` numbers from ``first``: each thread takes the next one.

        Raises what the first failing operation raised, after all that had begun have ended.
        """
        # Threads may share it: taking an item of a range is one step of the interpreter.
        numbers = iter(range(first, first + count))

        def work(connection: C) -> None:
            for number in numbers:
                one(connection, number)

        if len(self.connections) == 1:
            work(self.connections[0])
            return
        working = [self._threads.submit(work, connection) for connection in self.connections]
        try:
            for future in working:
                future.result()
        except BaseException:
            # No numbers, no more work: Ctrl-C need not wait for all of it.
            deque(numbers, maxlen=0)
            wait(working)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
