"""Threads with a connection each: the way to have several operations in flight with a blocking client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType
from typing import Generic, Self, TypeVar

C = TypeVar("C")


class Threads(Generic[C]):
    """One thread for each connection; with a single connection the caller's thread does the work.

    A context manager that ends its threads; the caller closes the connections.
    """

    def __init__(self, connections: Sequence[C]) -> None:
        """``connections`` are 1 or more."""
        self.connections = tuple(connections)
        self._threads = ThreadPoolExecutor(len(self.connections))

    def run(self, one: Callable[[C, int], None], first: int, count: int) -> None:
        """Call ``one(connection, number)`` for ``count`` numbers from ``first``; threads take them in turn.

        Raises the error of the first failed operation, after all operations under way have ended.
        """
        # Threads may share it: the interpreter takes an item of a range in one step.
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
            # Without numbers the work ends: Ctrl-C need not wait for all of it.
            deque(numbers, maxlen=0)
            wait(working)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
