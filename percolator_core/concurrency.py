"""`db.concurrency()`: an executor whose functions share round trips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from percolator_core.store import Future, Hub, Store

T = TypeVar("T")


class Concurrency:
    """Runs straight-line functions concurrently in the calling thread.

    Use it in a ``with`` statement: the end of the block waits for all submitted functions.
    """

    def __init__(self, store: Store, width: int) -> None:
        self._store = store
        self._width = width
        self._hub: Hub | None = None

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T]:
        """Schedule ``fn(*args)``. It runs when the thread waits for a result.

        At most ``width`` functions run at a time.
        """
        return self._running().submit(fn, *args)

    def map(self, fn: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
        """Yield ``fn(item)`` in the items' order. Items are read step by step, so they may be endless."""
        hub = self._running()
        pending: list[Future[T]] = []
        for item in items:
            pending.append(hub.submit(fn, item))
            if len(pending) >= 2 * hub.width:
                # The other half stays in flight while results of the first half are taken.
                ready, pending = pending[: hub.width], pending[hub.width :]
                for future in ready:
                    yield future.result()
        for future in pending:
            yield future.result()

    def __enter__(self) -> Self:
        if self._hub is not None:
            raise RuntimeError("this executor is open already: `db.concurrency()` makes another one")
        self._hub = self._store.hub(self._width)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hub = self._running()
        try:
            if kind is None:
                hub.run(lambda: not hub.active)
        finally:
            self._hub = None
            hub.close()

    def _running(self) -> Hub:
        if self._hub is None:
            raise RuntimeError("use `with db.concurrency() as executor:`")
        return self._hub
