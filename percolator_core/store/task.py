"""Tasks are greenlets that run functions under a hub. Futures are the outcomes of the functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import greenlet

from percolator_core.store import python_gc
from percolator_core.store.request import Exchange

if TYPE_CHECKING:
    from percolator_core.store.hub import Hub
    from percolator_core.store.task_pool import TaskPool

T = TypeVar("T")


class Future(Generic[T]):
    """The outcome of a submitted function, as in `concurrent.futures`."""

    __slots__ = ("_done", "_error", "_hub", "_value", "_waiters")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[Task] = []

    def done(self) -> bool:
        """Return True if the function has returned or raised."""
        return self._done

    def result(self) -> T:
        """Wait for the function, and return its value or raise its exception. Outside tasks, run the hub."""
        if not self._done:
            self._hub.wait_for(self)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def exception(self) -> BaseException | None:
        """Wait for the function, and return its exception or None."""
        if not self._done:
            self._hub.wait_for(self)
        return self._error

    def settle(self, value: T | None, error: BaseException | None) -> None:
        """Store the outcome and wake the tasks that wait for it. Only the first call has an effect."""
        if self._done:
            return
        self._value, self._error, self._done = value, error, True
        for waiter in self._waiters:
            self._hub.make_ready(waiter, self)
        self._waiters.clear()


Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Future[Any]]
"""A function that was submitted, its arguments, and the future for its outcome."""

RESTING: Final = object()
"""The value of ``awaiting`` in a task that has no function or must not go on. No ticket equals this value, so
no ticket wakes the task."""


class Task(greenlet.greenlet):
    """A greenlet that runs functions under a hub, one after another.

    A task is used again, because to make a greenlet takes longer than most functions run.
    """

    # Slots, because the interpreter finds an attribute in the dict of a greenlet only slowly.
    __slots__ = ("_job", "_pool", "awaiting", "deadline", "hub", "repeats")

    hub: Hub
    awaiting: object
    """The ticket for which the task is parked, or about to be parked; None while it runs.

    Only this ticket wakes the task. The answer to an interrupted exchange does not wake it. While the
    ticket is set, a signal handler or finalizer works without the hub (`hub_to_wait_in`), because it must
    not park the task for something else.
    """
    repeats: Exchange | None
    """The exchange that this task sends again; None if the task runs a submitted function."""
    deadline: Any
    """The watchdog's time limit: ``at`` (monotonic seconds), and ``error()``, which makes the exception."""

    def __init__(self, hub: Hub, pool: TaskPool) -> None:
        super().__init__(self._work, hub.loop)
        self.hub = hub
        self.awaiting = self.repeats = self.deadline = None
        self._pool = pool
        self._job: Job | None = None

    def take(self, job: Job, ticket: object) -> None:
        """Run this function next, when woken for ``ticket``. The task must be new or resting."""
        self._job = job
        # This is set before the function runs. The task may still be on its way to rest: if a signal handler
        # found None at that moment, it would park the task.
        self.awaiting = ticket
        self.repeats = self.deadline = None
        if self.gr_context is not None:
            self.gr_context = None  # the next function does not see this one's context variables

    def hub_to_wait_in(self) -> Hub | None:
        """Return the hub, or None if the code that runs in this task may not park the task.

        None of these may park it: code in a forked child, a signal handler while the task is on its way to be
        parked, and a finalizer of the collector.
        """
        return None if self.awaiting is not None or python_gc.is_collecting() else self.hub

    def _work(self, *_: Any) -> None:
        try:
            while self._run():
                self._job = None
                # Set before the call: the pool may give the task its next function at once.
                self.awaiting = RESTING
                self._pool.ended(self, rests=True)
                self.hub.loop.switch()
        finally:
            # This runs also when Ctrl-C comes between two functions: otherwise the pool would lose a place.
            self.awaiting = RESTING
            self.cancel()
            self._pool.ended(self, rests=False)

    def _run(self) -> bool:
        """Run the function; return True if the task can be given another one."""
        assert self._job is not None
        self.awaiting = None
        fn, args, future = self._job
        try:
            value = fn(*args)
        except greenlet.GreenletExit:
            self.cancel()
            return False
        except (KeyboardInterrupt, SystemExit) as stop:
            future.settle(None, stop)
            self.hub.interruption = stop
        except BaseException as error:  # noqa: BLE001 - the future raises it
            future.settle(None, error)
        else:
            future.settle(value, None)
        return True

    def is_behind(self, future: Future[Any]) -> bool:
        """Return True if the future is the outcome of the task's function."""
        return self._job is not None and self._job[2] is future

    def cancel(self) -> None:
        """Give the future of the task's function an error as its outcome, if the task has a function."""
        if self._job is not None:
            cancel(self._job)


def current_task() -> Task | None:
    """Return the task that the running code belongs to, or None."""
    task = greenlet.getcurrent()
    return task if isinstance(task, Task) else None


def cancel(job: Job) -> None:
    """Give the future of a stopped function an error as its outcome."""
    ended = "the executor was closed before the function ended: its requests may have been executed"
    job[2].settle(None, RuntimeError(ended))
