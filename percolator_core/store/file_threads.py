"""A call that waits for a file runs in a separate thread, so that the other tasks of a hub can run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from percolator_core.runtime import process
from percolator_core.store.hub import current_hub

T = TypeVar("T")

_THREADS: Final = 4
"""Threads do not hold Python's lock while they read files and decode columns, so a few keep a disk busy."""


class FileThreads:
    """Threads that are started at the first use. A forked child starts its own threads."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        process.call_after_fork(self)

    def after_fork(self) -> None:
        """Forget the threads, which do not exist in this child."""
        self._pool = None

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call. A task of a hub is parked, and a thread runs ``call`` for it.

        ``call`` must not use the store: its thread has no task.
        """
        hub = current_hub()
        if hub is None:
            return call()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="percolator-files")
        # Raises if the task's deadline has passed. Requests check this too, but a scan of a base may send
        # none for long.
        task: Any = hub._current()  # noqa: SLF001 - the two make one mechanism
        ticket = object()
        job = self._pool.submit(call)
        try:
            task.awaiting = ticket
            # The task has to wait for the ticket first: the hub ignores a ticket for which no task waits.
            job.add_done_callback(lambda _: hub.call_soon(lambda: hub.make_ready(task, ticket)))
            hub.loop.switch()
        finally:
            task.awaiting = None
        # After an interruption of the hub, the task may go on before the call has ended: then it waits here.
        return job.result()


file_threads: Final = FileThreads()
