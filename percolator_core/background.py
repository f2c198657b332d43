"""A thread that runs functions for coroutines: `Database.to_thread`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

import greenlet

from percolator_core.errors import PercolatorError
from percolator_core.runtime.process import Lock, call_after_fork
from percolator_core.store import Hub, Store

T = TypeVar("T")

WIDTH: Final = 1000
"""At most this many functions run at a time, because each takes about 10 KiB, and its transaction more."""

_CLOSED: Final = "the database was closed before the function ended: its requests may have been executed"


class Background:
    """Runs functions as tasks of a hub that has a thread of its own, so that they share round trips.

    The thread starts with the first function, and ends with `close`. All threads may use this object.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self.after_fork()
        call_after_fork(self)

    def after_fork(self) -> None:
        """Forget the thread, which does not exist in a forked child."""
        self._thread: threading.Thread | None = None
        self._hub: Hub | None = None
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._pending: set[Future[Any]] = set()
        self._closing = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have the thread run ``call`` with a copy of the caller's context variables. This does not wait."""
        future: Future[T] = Future()
        with self._lock:
            if self._closing:
                raise PercolatorError("the database is closed: connect again")
            self._pending.add(future)
            future.add_done_callback(self._pending.discard)
            self._jobs.append((partial(copy_context().run, call), future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="percolator-coroutines", daemon=True)
                self._thread.start()
        self._wake()
        return future

    def close(self) -> None:
        """End the thread. Futures of functions that have not ended raise PercolatorError. Idempotent."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake(self) -> None:
        # The thread looks for new jobs after it has set its hub, so none is missed while there is no hub.
        hub = self._hub
        if hub is not None:
            hub.call_soon(lambda: None)

    def _work(self) -> None:
        error: BaseException = PercolatorError(_CLOSED)
        try:
            hub = self._store.hub(WIDTH)
            try:
                self._hub = hub
                while not self._closing:
                    while self._jobs:
                        hub.submit(_run, *self._jobs.popleft())
                    if not hub.turn():
                        hub.idle(None)
            finally:
                self._hub = None
                hub.close()
        except BaseException as raised:  # noqa: BLE001 - the callers' futures raise it
            error = raised
        finally:
            with self._lock:
                self._thread = None
                self._jobs.clear()
                left = list(self._pending)
            for future in left:
                _settle(future, error=error)


def _run(call: Callable[[], Any], future: Future[Any]) -> None:
    """Run a function as a task, and give its outcome to the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = call()
    except greenlet.GreenletExit:
        _settle(future, error=PercolatorError(_CLOSED))
        raise
    except StopIteration as error:
        # asyncio never ends a future that raises StopIteration, which `next` does at the end of an iterator.
        _settle(future, error=RuntimeError(f"the function raised {error!r}: give next() a default"))
    except BaseException as error:  # noqa: BLE001 - the caller's future raises it
        _settle(future, error=error)
    else:
        _settle(future, value)


def _settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    with suppress(InvalidStateError):  # it was cancelled, or is done already
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
