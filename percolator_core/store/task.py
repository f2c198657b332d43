"""Functions that run as greenlets under a hub, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import greenlet

from percolator_core.store.request import Exchange

T = TypeVar("T")


class Scheduler(Protocol):
    """What tasks need of the hub that runs them."""

    loop: greenlet.greenlet
    interruption: BaseException | None

    def wait_for(self, future: Future[Any]) -> None:
        """Return when the future is settled."""

    def make_ready(self, task: Task, ticket: object = None) -> None:
        """Let a task go on that is parked for ``ticket``."""

    def ended(self, task: Task, *, rests: bool) -> None:
        """A task's function is over; the task ``rests``, and may be given another, or ends with it."""


class Future(Generic[T]):
    """The outcome of a submitted function, as in `concurrent.futures`."""

    __slots__ = ("_done", "_error", "_hub", "_value", "_waiters")

    def __init__(self, hub: Scheduler) -> None:
        self._hub = hub
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[Task] = []

    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return self._done

    def result(self) -> T:
        """What the function returned; waits for it, running the hub; raises what the function raised."""
        self._hub.wait_for(self)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def exception(self) -> BaseException | None:
        """What the function raised, or None; waits for it."""
        self._hub.wait_for(self)
        return self._error

    def settle(self, value: T | None, error: BaseException | None) -> None:
        """Store the outcome and wake whoever waits for it. The first outcome counts."""
        if self._done:
            return
        self._value, self._error, self._done = value, error, True
        for waiter in self._waiters:
            self._hub.make_ready(waiter, self)
        self._waiters.clear()


Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Future[Any]]
"""A function that was submitted, its arguments, and the future for its outcome."""

RESTING: Final = object()
"""What a task waits for that is to run no more, or has no function; no ticket equals it."""


class Task(greenlet.greenlet):
    """A greenlet that runs functions under a hub, one after another.

    To make one takes longer than most functions run.
    """

    hub: Scheduler
    awaiting: object = None
    """What the task is parked for, or on its way to be. Nothing else wakes it: no answer to what it gave up
    when interrupted. Nor is it parked for anything else: what a signal handler or a finalizer asks for
    meanwhile goes another way (`current_hub`)."""
    repeats: Exchange | None = None
    """The exchange that this task sends again; None for a function that somebody submitted."""
    deadline: Any = None
    """When the function must be over, as the watchdog has it: ``at`` (monotonic seconds) and ``error()``."""

    def __init__(self, hub: Scheduler) -> None:
        super().__init__(self._work, hub.loop)
        self.hub = hub
        self._job: Job | None = None

    def take(self, job: Job, ticket: object) -> None:
        """Run this one next, when woken for ``ticket``; it must not be running any now."""
        self._job = job
        # Not None before it runs: it may be on its way to rest still, which a signal handler must not stop.
        self.awaiting = ticket
        self.repeats = self.deadline = None
        if self.gr_context is not None:
            self.gr_context = None  # what one function put into context variables is not the next one's

    def _work(self, *_: Any) -> None:
        try:
            while self._run():
                self._job = None
                # Resting before the hub is told: it may have the next one at once.
                self.awaiting = RESTING
                self.hub.ended(self, rests=True)
                self.hub.loop.switch()
        finally:
            # Also when Ctrl-C strikes between two functions: the place must not be lost.
            self.awaiting = RESTING
            self.cancel()
            self.hub.ended(self, rests=False)

    def _run(self) -> bool:
        """Run the function that was taken; whether another may follow."""
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
        except BaseException as error:  # noqa: BLE001 - the future carries it to whoever asks
            future.settle(None, error)
        else:
            future.settle(value, None)
        return True

    def is_behind(self, future: Future[Any]) -> bool:
        """Whether the future is that of the function it runs."""
        return self._job is not None and self._job[2] is future

    def cancel(self) -> None:
        """Tell who waits for the function that it will not return."""
        if self._job is not None:
            cancel(self._job)


def current_task() -> Task | None:
    """The task that the running code belongs to, or None."""
    task = greenlet.getcurrent()
    return task if isinstance(task, Task) else None


def cancel(job: Job) -> None:
    """Tell who waits for a function that it will not return."""
    ended = "the executor was closed before the function ended: what it had sent may have been executed"
    job[2].settle(None, RuntimeError(ended))
