"""The tasks of a hub: functions start in the order of submission, and a limited number runs at a time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import greenlet

from percolator_core.store.request import Exchange
from percolator_core.store.send_queue import Gathering, task_of
from percolator_core.store.task import Future, Job, Task, cancel

if TYPE_CHECKING:
    from percolator_core.store.hub import Hub


class TaskPool:
    """Starts functions as tasks. When a task's function has ended, the task rests until it gets a new one."""

    __slots__ = (
        "_hub",
        "_resting",
        "_starting",
        "_width",
        "active",
        "blocked",
        "filling",
        "ready",
        "tickets",
        "waiting",
    )

    def __init__(self, hub: Hub, width: int) -> None:
        self._hub = hub
        self._width = width
        self._resting: list[Task] = []
        self._starting: Job | None = None
        """The function that has left `waiting`, but is not begun by a task yet; None if there is none."""
        self.waiting: deque[Job] = deque()
        """Functions that wait for a place."""
        self.active: set[Task] = set()
        """Tasks that have started and not ended; always the same set object."""
        self.ready: deque[tuple[Task, object]] = deque()
        """Tasks that can begin or go on, each with its ticket."""
        self.blocked = 0
        """How many active tasks wait for a future and so take up no place."""
        self.filling = False
        """True while `fill` runs."""
        self.tickets = itertools.count()

    def fill(self) -> None:
        """Start waiting functions while there are places."""
        if self.filling:
            self._hub.do_next(self.fill)  # the caller is a signal handler that submits a function
            return
        try:
            self.filling = True
            while self.waiting and len(self.active) - self.blocked < self._width:
                self._starting = self.waiting[0]
                self.start(self.waiting.popleft())
                self._starting = None
        finally:
            self.filling = False

    def start(self, job: Job) -> Task:
        """Start a function now, whether or not there is a place."""
        task = self._resting.pop() if self._resting else Task(self._hub, self)
        ticket = next(self.tickets)
        task.take(job, ticket)
        self.active.add(task)
        self.ready.append((task, ticket))
        return task

    def ended(self, task: Task, *, rests: bool) -> None:
        """Record that the task's function has ended, and give its place to the next function.

        ``rests`` is True if the task can be given another function, and False if it ends.
        """
        self.active.discard(task)
        if rests:
            self._resting.append(task)
        elif task in self._resting:
            self._resting.remove(task)
        self.fill()

    def put_back(self) -> None:
        """Put a function back in front of the waiting ones if its start was interrupted."""
        starting, self._starting = self._starting, None
        if starting is not None and not any(task.is_behind(starting[2]) for task in self.active):
            self.waiting.appendleft(starting)

    def resume(self, asleep: Collection[object]) -> list[Exchange]:
        """After an interruption, make an active task ready if the event that it waits for has happened.

        ``asleep`` has the tickets of tasks that sleep. Return the exchanges that tasks still wait for.
        """
        unanswered: list[Exchange] = []
        for task in self.active:
            ticket = task.awaiting
            if isinstance(ticket, Exchange | Gathering):
                exchanges = ticket.exchanges if isinstance(ticket, Gathering) else (ticket,)
                left = [exchange for exchange in exchanges if not exchange.done]
                unanswered += left
                if isinstance(ticket, Gathering):
                    ticket.left = len(left)
                happened = not left
            elif isinstance(ticket, Future):
                happened = ticket.done()
            else:
                happened = ticket not in asleep  # also the ticket of a task that has not begun
            if happened:
                self.ready.append((task, ticket))  # the hub ignores a surplus entry
        return unanswered

    def needed_for(self, future: Future[Any]) -> set[Task]:
        """Return the task that runs the future's function, and the tasks that send its exchanges again.

        The result also has the tasks that send unawaited exchanges again.
        """
        behind = {task for task in self.active if task.is_behind(future)}
        return behind | {
            task
            for task in self.active
            if task.repeats is not None and (task.repeats.caller is None or task_of(task.repeats) in behind)
        }

    def end_active(self, kept: AbstractSet[Task] = frozenset()) -> set[Task]:
        """End the active tasks except those in ``kept``, and return the ended ones. Cancel waiting functions.

        While a task ends, it may send exchanges, but not wait for answers.
        """
        self.active -= kept
        self._cancel_waiting()
        ended = set()
        while self.active:
            task = self.active.pop()
            ended.add(task)
            task.cancel()  # a task that has not begun would never settle its future
            task.throw(greenlet.GreenletExit)
            self._cancel_waiting()
        self.active |= kept
        return ended

    def end_resting(self) -> None:
        """End the tasks that have no function."""
        while self._resting:
            self._resting.pop().throw(greenlet.GreenletExit)

    def _cancel_waiting(self) -> None:
        while self.waiting:
            cancel(self.waiting.popleft())
