"""Cooperative concurrency: many straight-line functions share the round trips of one connection.

A `Task` is a greenlet that runs a function. When the function needs the store, the task parks its exchange
at the hub and another task runs. The hub sends the parked exchanges as one batch when the batch is large
enough, when half of all tasks wait, or when nothing else is under way. It resumes each task with its replies.
The paper got the same effect from thousands of threads and a small delay (section 2.5). In Python, greenlets
are cheap enough for this.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, TypeVar

import greenlet

from percolator_core.errors import of_another_process
from percolator_core.runtime import process
from percolator_core.store import python_gc
from percolator_core.store.connections import Connections
from percolator_core.store.request import Exchange
from percolator_core.store.retries import Retries, RetryPolicy
from percolator_core.store.send_queue import OVERHEAD, Gathering, SendQueue
from percolator_core.store.task import RESTING, Future, Task
from percolator_core.store.task_pool import TaskPool
from percolator_core.store.wakeup import Wakeup

T = TypeVar("T")

_NO_WAITING: Final = (
    "a signal handler or finalizer may not wait for the executor that it interrupts: use the database itself"
)


class Hub:
    """Runs tasks and sends their exchanges in batches. A hub belongs to the thread that made it.

    ``owner`` is the store whose exchanges the hub sends; at most ``width`` functions run at a time.
    """

    def __init__(
        self, owner: object, connections: Connections, retry_policy: RetryPolicy, width: int
    ) -> None:
        if width < 1:
            raise ValueError(f"width is 1 or more, not {width}")
        self.owner = owner
        self.connections = connections
        self.width = width
        self.loop = self._loop_again = greenlet.getcurrent()
        """The thread's own greenlet, which runs the loop. Two references keep it when the thread ends.

        With only one, `greenlet` looks for the holder of the reference, and frees this greenlet if it finds
        none. It finds none while the collector frees the hub: then a finalizer that uses the hub would crash.
        """
        self.thread = threading.get_ident()
        self.process = process.pid
        self.running: Task | None = None
        """The task that runs now; None while the hub itself runs."""
        self.interruption: BaseException | None = None
        """Ctrl-C or SystemExit that ended a function, to be raised from the loop."""
        self._tasks = TaskPool(self, width)
        self._ready = self._tasks.ready
        self._queue = SendQueue(connections, self._tasks.active)
        self._retries = Retries(self, self._queue, retry_policy)
        self._asleep: list[tuple[float, int, Task]] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._at_work = False
        """True while the loop runs."""
        self._closed = False
        self._raised: BaseException | None = None
        """The last ``interruption`` that the loop itself raised; it needs no `_recover`."""
        self._on_answer = self._answered
        self._on_loss = self._retries.repeat_if_lost
        python_gc.allow_for_tasks(width)
        process.call_after_fork(self)

    # Called by tasks, futures and retries.

    def exchange(self, exchanges: Sequence[Exchange]) -> None:
        """Park the current task until the exchanges are answered."""
        task = self._current()
        ticket: object = exchanges[0]
        caller: object = task
        if len(exchanges) > 1:
            ticket = caller = Gathering(task, exchanges)
        try:
            task.awaiting = ticket
            size = 0
            for exchange in exchanges:
                exchange.on_done = self._on_answer
                exchange.caller = caller
                size += OVERHEAD
                for command in exchange.packed:
                    size += len(command)
            self._queue.parked += exchanges
            self._queue.load += size
            self.loop.switch()
        finally:
            task.awaiting = None

    def defer(self, exchanges: Sequence[Exchange]) -> None:
        """Send the exchanges with the next batch, and again if they get lost; no task waits for them."""
        for exchange in exchanges:
            exchange.on_done = self._on_loss
        self._queue.parked += exchanges

    def sleep(self, seconds: float) -> None:
        """Park the current task for a time."""
        task, ticket = self._current(), next(self._tasks.tickets)
        try:
            task.awaiting = ticket
            heapq.heappush(self._asleep, (time.monotonic() + seconds, ticket, task))
            self.loop.switch()
        finally:
            task.awaiting = None

    def wait_for(self, future: Future[Any]) -> None:
        """Return when a pending future is done: park the current task, or run the hub outside a task.

        A task that waits for another task gives up its place, because the other task may need a place.
        """
        if self.running is not None and greenlet.getcurrent() is self.running:
            self._check_thread()
            task = self._current()
            if task.awaiting is not None or python_gc.is_collecting():
                raise RuntimeError(_NO_WAITING)
            self._tasks.blocked += 1
            try:
                task.awaiting = future
                future._waiters.append(task)  # noqa: SLF001 - the two make one mechanism
                if not future.done():  # a signal handler may have waited in this task before
                    self._tasks.fill()
                    self.loop.switch()
            finally:
                task.awaiting = None
                self._tasks.blocked -= 1
        else:
            self.run(future.done)
            if not future.done():
                raise RuntimeError("the executor is closed: nothing will complete this future")

    def do_next(self, call: Callable[[], None]) -> None:
        """Run ``call`` outside all tasks, before anything else."""
        self._calls.append(call)

    def begin(self, call: Callable[[Exchange], None], repeats: Exchange) -> None:
        """Run ``call`` as a task that sends the exchange ``repeats`` again."""
        self._tasks.start((call, (repeats,), Future(self))).repeats = repeats

    def make_ready(self, task: Task, ticket: object = None) -> None:
        """Let a task begin, or go on if it is parked for ``ticket``."""
        self._ready.append((task, ticket))

    # Called by the owner.

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T]:
        """Have ``fn(*args)`` run as a task; at most ``width`` tasks run at a time."""
        self._check_thread()
        future: Future[T] = Future(self)
        self._tasks.waiting.append((fn, args, future))
        self._tasks.fill()
        return future

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have the hub's thread run ``call``; the one method that other threads may use."""
        self._calls.append(call)
        self._wakeup.wake()

    def run(self, until: Callable[[], bool]) -> None:
        """Run tasks until the condition holds, or no task can ever go on."""
        self._check_thread()
        if greenlet.getcurrent() is not self.loop:
            raise RuntimeError(
                "only the code that made an executor, or a function running in it, may wait for it"
            )
        if python_gc.is_collecting() or ((self._at_work or self._tasks.filling) and self._is_interrupted()):
            raise RuntimeError(_NO_WAITING)
        try:
            self._at_work = True
            while not until():
                self._run_ready()
                if until():
                    return
                if not self._send_or_receive():
                    if not self._asleep and not self._tasks.active and not self._calls:
                        return
                    self._check_progress()
                    self.idle(None)
        except BaseException as stop:
            self._recover(stop)
            raise
        finally:
            self._at_work = False

    def turn(self) -> bool:
        """Run the ready tasks, then send a batch or take in an answer; return False if nothing was done."""
        try:
            self._at_work = True
            ran = self._run_ready()
            return self._send_or_receive() or ran
        except BaseException as stop:
            self._recover(stop)
            raise
        finally:
            self._at_work = False

    def idle(self, seconds: float | None, *sockets: Any) -> None:
        """Wait until a task is due, another thread calls, a socket is readable, or ``seconds`` are over."""
        limits = [seconds] if seconds is not None else []
        if self._asleep:
            limits.append(self._asleep[0][0] - time.monotonic())
        if not self.busy:
            self._wakeup.wait(max(0.0, min(limits)) if limits else None, *sockets)

    @property
    def active(self) -> int:
        """How many tasks have started and not ended, or wait for a place."""
        return len(self._tasks.active) + len(self._tasks.waiting)

    @property
    def busy(self) -> bool:
        """True if anything can run, be sent or be taken in before the next wait."""
        return bool(self._ready or self._queue.parked or self._calls or self.connections.in_flight())

    def finish_only(self, future: Future[Any]) -> None:
        """End all tasks except the one that runs the future's function, and run that one to its end."""
        self._queue.drop_unsent(self._tasks.end_active(self._tasks.needed_for(future)))
        self.run(future.done)

    def close(self) -> None:
        """End all tasks, which discards their transactions, and take in the replies that are still due."""
        if not self._closed:
            self._closed = True
            python_gc.allow_for_tasks(-self.width)
        try:
            # Ending a task switches greenlets, which must not happen while the collector runs.
            here = self.process == process.pid and greenlet.getcurrent() is self.loop
            if here and not python_gc.is_collecting():
                self._queue.drop_unsent(self._tasks.end_active())
                while self._queue.parked or self.connections.in_flight():
                    self._send_or_receive()
                self._tasks.end_resting()
        finally:
            self.connections.close()
            self._wakeup.close()

    def after_fork(self) -> None:
        """Let no task go on in a forked child, because tasks and connections are the parent's.

        In the child, the task that forked runs to its end outside the hub. Then each wait for the hub raises.
        """
        self.interruption = of_another_process("executor")
        for task in self._tasks.active:
            task.awaiting = RESTING
        self._wakeup.close()

    # The loop.

    def _current(self) -> Task:
        """Return the running task, which is about to be parked; raise if its deadline has passed."""
        task = self.running
        assert task is not None, "only a task can be parked"
        if task.deadline is not None and time.monotonic() > task.deadline.at:
            raise task.deadline.error()
        return task

    def _switch(self, task: Task, ticket: object) -> None:
        if task.dead or task.awaiting is not ticket:
            return
        self.running = task
        try:
            task.switch()
        finally:
            self.running = None

    def _answered(self, exchange: Exchange) -> None:
        """Resume the task that waits for the exchange, once all exchanges that it waits for are answered."""
        task: Any = exchange.caller
        gathering = None
        if type(task) is Gathering:
            gathering, task = task, task.task
        # A task that was interrupted before it was parked does not wait for this exchange.
        if task.awaiting is not (gathering or exchange):
            return
        if exchange.trouble is not None and self._retries.repeats(exchange):
            return
        if gathering is not None:
            gathering.left -= 1
            if gathering.left:
                return
        self.running = task
        try:
            task.switch()
        finally:
            self.running = None

    def _run_ready(self) -> bool:
        ran = bool(self._ready or self._calls)
        for _ in range(len(self._calls)):  # a call may add itself again, until a parked task goes on
            try:
                self._calls[0]()
            finally:
                self._calls.popleft()
        if self._asleep:
            now = time.monotonic()
            while self._asleep and self._asleep[0][0] <= now:
                _, ticket, task = heapq.heappop(self._asleep)
                self._ready.append((task, ticket))
        while self._ready and not self._queue.is_worth_sending():
            self._switch(*self._ready.popleft())
            if self.interruption is not None:
                break
        if self.interruption is not None:
            self._raise_interruption()
        return ran

    def _send_or_receive(self) -> bool:
        """Send the parked exchanges, or take in one answer and resume its task; return False if neither.

        A batch goes out when it is worth sending or nothing else is under way, so that the server works on
        one batch while the tasks of the previous batch run.
        """
        wake_at = self._asleep[0][0] if self._asleep else None
        in_flight = self.connections.in_flight()
        if self._queue.parked and (not in_flight or self._queue.is_worth_sending()):
            self._queue.send(self.connections.send)
        elif not in_flight or not self._queue.receive(wake_at):
            return False
        self.connections.receive_buffered(self._has_time)
        if self.interruption is not None:
            self._raise_interruption()
        return True

    def _has_time(self) -> bool:
        """Return True if nothing is more urgent than to take in answers."""
        return not (self._ready or self._calls or self._queue.is_worth_sending() or self.interruption)

    def _raise_interruption(self) -> None:
        """Raise the interruption of a task, once every caller of the current batch has its outcome."""
        assert self.interruption is not None
        stop = self._raised = self.interruption
        self.interruption = None
        raise stop

    def _recover(self, stop: BaseException) -> None:
        """Restore the hub after an exception that interrupted the loop itself, so that no task waits forever.

        Ctrl-C may come when something has left one queue and is not yet in the next one. So all connections
        are closed, unanswered exchanges are sent again, and tasks with nothing left to wait for go on.
        """
        if stop is self._raised:
            return
        self._tasks.put_back()
        lost = [*self._retries.forget(), *self.connections.abandon()]
        lost += self._tasks.resume({ticket for _, ticket, _ in self._asleep})
        self._queue.park_again(lost)
        self._tasks.fill()

    def _check_progress(self) -> None:
        """Raise if every task waits for another one, unless a call of another thread is still to run."""
        tasks = self._tasks
        if not self.busy and not self._asleep and tasks.blocked and tasks.blocked == len(tasks.active):
            raise RuntimeError("every function waits for another one of this executor")

    def _is_interrupted(self) -> bool:
        """Return True if the running code was called in the middle of the loop, as a signal handler is."""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, in spite of its name
        while frame is not None:
            if frame.f_code in _LOOP and frame.f_locals.get("self") in (self, self._tasks):
                return True
            frame = frame.f_back
        return False

    def _check_thread(self) -> None:
        if process.pid != self.process:
            raise of_another_process("executor")
        if threading.get_ident() != self.thread:
            raise RuntimeError("a hub belongs to the thread that made it; use call_soon from another thread")


# One of these functions is on the stack while the loop runs.
_LOOP: Final = (Hub.run.__code__, Hub.turn.__code__, TaskPool.fill.__code__)


def is_being_ended() -> bool:
    """Return True if the running code is a task that its hub is ending: it may send, but not wait."""
    return (hub := current_hub()) is not None and hub.running is not greenlet.getcurrent()


def current_hub() -> Hub | None:
    """Return the hub whose task the running code is; None outside a task, or if it may not park the task."""
    task = greenlet.getcurrent()
    return task.hub_to_wait_in() if isinstance(task, Task) else None
