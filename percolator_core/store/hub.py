"""Cooperative concurrency: many straight-line functions share the round trips of one connection.

A `Task` is a greenlet that runs a function. When the function needs the store, the task parks its exchange
at the hub and another task runs; when none can, the hub sends everything parked in one batch and resumes each
task with its replies. The paper got the same effect from thousands of threads and a small delay (section
3.1's batching); in Python greenlets are what is cheap enough.

A hub belongs to the thread that made it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import greenlet

from percolator_core.errors import PercolatorError
from percolator_core.store import collector
from percolator_core.store.exchange import Exchange
from percolator_core.store.lines import Lines
from percolator_core.store.wire import IDLE

T = TypeVar("T")

BURST: Final = 32
"""Exchanges that make a batch worth sending while the server still works on others."""


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


class Task(greenlet.greenlet):
    """A function running under a hub."""

    hub: Hub
    awaiting: object = None
    """What the task is parked for. Nothing else wakes it: no answer to what it gave up when interrupted."""
    repeats: Exchange | None = None
    """The exchange that this task sends again; None for a task that somebody submitted."""
    deadline: Any = None
    """When the task must be over, as the watchdog has it: ``at``, in monotonic seconds, and ``error()``."""

    def __init__(self, hub: Hub, fn: Callable[..., Any], args: tuple[Any, ...], future: Future[Any]) -> None:
        super().__init__(self._run_function, hub.loop)
        self.hub = hub
        self._call = (fn, args, future)

    def _run_function(self, *_: Any) -> None:
        fn, args, future = self._call
        try:
            value = fn(*args)
        except greenlet.GreenletExit:
            self.cancel()
        except (KeyboardInterrupt, SystemExit) as stop:
            future.settle(None, stop)
            self.hub.interruption = stop
        except BaseException as error:  # noqa: BLE001 - the future carries it to whoever asks
            future.settle(None, error)
        else:
            future.settle(value, None)
        finally:
            self.hub.ended(self)

    def is_behind(self, future: Future[Any]) -> bool:
        """Whether the future is this task's."""
        return self._call[2] is future

    def cancel(self) -> None:
        """Tell who waits for the function that it will not return."""
        self._call[2].settle(None, RuntimeError("the executor was closed before the function ended"))


class _Gathering:
    """What a task is parked for that has exchanges under way to several slots."""

    __slots__ = ("left", "task")

    def __init__(self, task: Task, left: int) -> None:
        self.task = task
        self.left = left


class Hub:
    """Runs tasks and batches their exchanges.

    ``owner`` is the store whose exchanges it carries; ``repair`` mends the cause of trouble before a
    repetition.
    """

    def __init__(
        self, owner: object, lines: Lines, patience: float, repair: Callable[[Exchange], None], width: int
    ) -> None:
        if width < 1:
            raise ValueError(f"width is 1 or more, not {width}")
        self.owner = owner
        self.lines = lines
        self.width = width
        self.loop = greenlet.getcurrent()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        self.running: Task | None = None
        """The task that runs right now; None while the hub itself does."""
        self.interruption: BaseException | None = None
        self._patience = patience
        self._repair = repair
        self._ready: deque[tuple[Task, object]] = deque()
        self._waiting: deque[Task] = deque()
        self._active: set[Task] = set()
        self._blocked = 0
        self._parked: list[Exchange] = []
        self._forgotten: list[Exchange] = []
        self._asleep: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._calls: deque[Callable[[], None]] = deque()
        self._bell_out, self._bell_in = socket.socketpair()
        self._bell_out.setblocking(False)
        self._bell_in.setblocking(False)
        self._closed = False
        collector.expect(width)

    # What tasks call.

    def exchange(self, exchanges: Sequence[Exchange]) -> None:
        """Park the current task until the exchanges are answered."""
        task = self._current()
        ticket: object = exchanges[0]
        caller: object = task
        if len(exchanges) > 1:
            ticket = caller = _Gathering(task, len(exchanges))
        for exchange in exchanges:
            exchange.on_done = self._answered
            exchange.caller = caller
        self._parked += exchanges
        self._park(task, ticket)

    def defer(self, exchanges: Sequence[Exchange]) -> None:
        """Send the exchanges with the next batch, and again if they get lost; nobody waits for them."""
        for exchange in exchanges:
            exchange.on_done = self._repeat_if_lost
        self._parked += exchanges

    def sleep(self, seconds: float) -> None:
        """Park the current task for a time."""
        task, ticket = self._current(), next(self._order)
        heapq.heappush(self._asleep, (time.monotonic() + seconds, ticket, task))
        self._park(task, ticket)

    def wait_for(self, future: Future[Any]) -> None:
        """Return when the future is settled: by parking, inside a task, else by running the hub.

        A task that waits for another gives up its place meanwhile, else the other might never get one.
        """
        if future.done():
            return
        if self.running is not None and greenlet.getcurrent() is self.running:
            task = self._current()
            future._waiters.append(task)  # noqa: SLF001 - the two make one mechanism
            self._blocked += 1
            try:
                self._fill()
                self._park(task, future)
            finally:
                self._blocked -= 1
        else:
            self.run(future.done)
            if not future.done():
                raise RuntimeError("the executor is closed: nothing will settle this future")

    # What the owner calls.

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T]:
        """Have ``fn(*args)`` run as a task; at most ``width`` tasks run at a time."""
        self._check_thread()
        future: Future[T] = Future(self)
        self._waiting.append(Task(self, fn, args, future))
        self._fill()
        return future

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have the hub's thread run ``call``; the one method that other threads may use."""
        self._calls.append(call)
        try:
            self._bell_in.send(b"!")
        except (BlockingIOError, OSError):
            pass  # a full pipe rings as well; a closed one belongs to a hub that has ended

    def run(self, until: Callable[[], bool]) -> None:
        """Run tasks until the condition holds, or no task can ever go on."""
        self._check_thread()
        if greenlet.getcurrent() is not self.loop:
            raise RuntimeError(
                "only the code that made an executor, or a function running in it, may wait for it"
            )
        while not until():
            self._run_ready()
            if until():
                return
            if not self._converse():
                if not self._asleep and not self._active:
                    return
                self.idle(None)

    def turn(self) -> bool:
        """Run what can run and take one step of the conversation; False when there was nothing to do."""
        ran = self._run_ready()
        return self._converse() or ran

    def idle(self, seconds: float | None, *sockets: Any) -> None:
        """Wait until a sleeper is due, another thread calls, a socket is readable or the time is over."""
        limits = [seconds] if seconds is not None else []
        if self._asleep:
            limits.append(self._asleep[0][0] - time.monotonic())
        if self.busy:
            return
        poll = select.poll()
        for waited_for in (self._bell_out, *sockets):
            poll.register(waited_for, select.POLLIN)
        ready = poll.poll(max(0.0, min(limits)) * 1000 if limits else None)
        if any(descriptor == self._bell_out.fileno() for descriptor, _ in ready):
            try:
                while self._bell_out.recv(4096):
                    pass
            except BlockingIOError:
                pass

    @property
    def active(self) -> int:
        """Tasks started and not ended, and those that wait for a place."""
        return len(self._active) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether anything can run or be sent without waiting."""
        return bool(self._ready or self._parked or self._calls or self.lines.in_flight)

    def finish_only(self, future: Future[Any]) -> None:
        """End all tasks but the one behind the future, and run that to its end."""
        kept = {task for task in self._active if task.is_behind(future)}
        # What broke off with the connection is sent again by a task of its own: the one kept waits for that.
        kept |= {
            task
            for task in self._active
            if task.repeats is not None and (task.repeats.caller is None or _task_of(task.repeats) in kept)
        }
        self._active -= kept
        self._end_tasks()
        self._active |= kept
        self.run(future.done)

    def close(self) -> None:
        """End tasks that are still there (their transactions are discarded) and collect what is owed."""
        if not self._closed:
            self._closed = True
            collector.expect(-self.width)
        if self.process == os.getpid():
            self._end_tasks()
            while self._parked or self.lines.in_flight:
                self._converse()
        self.lines.close()
        self._bell_out.close()
        self._bell_in.close()

    # Inside.

    def make_ready(self, task: Task, ticket: object = None) -> None:
        """Let a task begin, or go on if it is parked for ``ticket``."""
        self._ready.append((task, ticket))

    def ended(self, task: Task) -> None:
        """A task is over; the next one takes its place."""
        self._active.discard(task)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._active) - self._blocked < self.width:
            self._start(self._waiting.popleft())

    def _start(self, task: Task) -> None:
        self._active.add(task)
        self._ready.append((task, None))

    def _current(self) -> Task:
        """The running task, about to be parked; the place where one that is past its deadline ends."""
        task = self.running
        assert task is not None, "only a task can be parked"
        if task.deadline is not None and time.monotonic() > task.deadline.at:
            raise task.deadline.error()
        return task

    def _park(self, task: Task, ticket: object) -> None:
        task.awaiting = ticket
        try:
            self.loop.switch()
        finally:
            task.awaiting = None

    def _switch(self, task: Task, ticket: object) -> None:
        if task.dead or task.awaiting is not ticket:
            return
        before, self.running = self.running, task
        try:
            task.switch()
        finally:
            self.running = before

    def _check_thread(self) -> None:
        if threading.get_ident() != self.thread or _process != self.process:
            raise RuntimeError("a hub belongs to the thread that made it; use call_soon from another thread")

    def _end_tasks(self) -> None:
        """End all tasks. What they do on their way out may be sent, but not be waited for."""
        while self._waiting:
            self._waiting.popleft().cancel()
        while self._active:
            task = self._active.pop()
            task.cancel()  # one that has not begun would not tell its future
            task.throw(greenlet.GreenletExit)
            while self._waiting:
                self._waiting.popleft().cancel()

    def _run_ready(self) -> bool:
        ran = bool(self._ready or self._calls)
        while self._calls:
            self._calls.popleft()()
        if self._asleep:
            now = time.monotonic()
            while self._asleep and self._asleep[0][0] <= now:
                _, ticket, task = heapq.heappop(self._asleep)
                self._ready.append((task, ticket))
        while self._ready:
            self._switch(*self._ready.popleft())
            if self.interruption is not None:
                break
        self._raise_interruption()
        return ran

    def _converse(self) -> bool:
        """One step: send what is parked, or take in one answer and resume its task.

        A batch goes out when enough is parked or nothing else is under way, so that the server works on one
        batch while the tasks of the one before run.
        """
        if self._parked and (len(self._parked) >= BURST or not self.lines.in_flight):
            self._send(self.lines.send)
        elif not self.lines.in_flight or not self._take_in():
            return False
        self._raise_interruption()
        return True

    def _take_in(self) -> bool:
        """Take in an answer. A server that is slow, or was stopped, must not hold up those who use others."""
        if self._parked and self.lines.several:
            if self.lines.receive(0):
                return True
            count = len(self._parked)
            self._send(self.lines.send_to_the_idle)
            if len(self._parked) < count:
                return True
        if not self._asleep:
            return self.lines.receive()
        return self.lines.receive(min(max(0.0, self._asleep[0][0] - time.monotonic()), IDLE))

    def _send(self, send: Callable[[Sequence[Exchange]], Sequence[Exchange]]) -> None:
        """Send what is parked; ``send`` returns what stays. Whenever Ctrl-C comes, nobody is forgotten."""
        batch = self._parked
        for exchange in batch:
            exchange.under_way = True
        try:
            self._parked = []
            self._parked += send(batch)
        except BaseException:
            parked = set(map(id, self._parked))
            self._parked += [
                exchange
                for exchange in batch
                if exchange.under_way and id(exchange) not in parked and not self.lines.holds(exchange)
            ]
            raise

    def _raise_interruption(self) -> None:
        """Let Ctrl-C out of the hub, once every caller of the batch at hand has been told its outcome."""
        if self.interruption is not None:
            stop, self.interruption = self.interruption, None
            raise stop

    def _answered(self, exchange: Exchange) -> None:
        caller: Any = exchange.caller
        task, ticket = (caller.task, caller) if type(caller) is _Gathering else (caller, exchange)
        # A task that was interrupted on its way to the hub does not wait for this any more.
        if task.awaiting is not ticket:
            return
        if exchange.trouble is not None and not exchange.done and not exchange.must_give_up(self._patience):
            self._repeat(exchange)
            return
        if type(caller) is _Gathering:
            caller.left -= 1
            if caller.left:
                return
        self._switch(task, ticket)

    def _repeat_if_lost(self, exchange: Exchange) -> None:
        if exchange.trouble is not None and not exchange.done and not exchange.must_give_up(self._patience):
            self._repeat(exchange)

    def _repeat(self, exchange: Exchange) -> None:
        if exchange.missing_script:
            # Loading the scripts once serves all that missed one.
            if not self._forgotten:
                self._calls.append(self._repair_forgotten)
            self._forgotten.append(exchange)
        elif exchange.may_go_on_at_once():
            self._calls.append(partial(self._mend, exchange))
        else:
            task = Task(self, self._repeat_later, (exchange,), Future(self))
            task.repeats = exchange
            self._start(task)

    def _repair_forgotten(self) -> None:
        # Parked first, here and below: Ctrl-C may end the repair.
        exchanges, self._forgotten = self._forgotten, []
        self._parked += exchanges
        # Once for each server.
        for exchange in {id(exchange.wire): exchange for exchange in exchanges}.values():
            self._repair(exchange)

    def _repeat_later(self, exchange: Exchange) -> None:
        try:
            self.sleep(0.05)
        finally:
            # Not from here: only the hub itself may resume tasks, and mending may end the wait of many.
            self._calls.append(partial(self._mend, exchange))

    def _mend(self, exchange: Exchange) -> None:
        self._parked.append(exchange)
        try:
            self._repair(exchange)
        except PercolatorError as error:
            self._parked.remove(exchange)
            exchange.fail(error)


def _task_of(exchange: Exchange) -> Any:
    """The task that waits for an exchange, alone or with others."""
    caller = exchange.caller
    return caller.task if type(caller) is _Gathering else caller


_process = os.getpid()


def _note_fork() -> None:
    global _process  # noqa: PLW0603 - asking the system every time would be dear
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


def current_hub() -> Hub | None:
    """The hub that the running code is a task of, or None."""
    hub: Hub | None = getattr(greenlet.getcurrent(), "hub", None)
    if hub is not None and (hub.thread != threading.get_ident() or hub.process != _process):
        return None
    return hub


def current_task() -> Task | None:
    """The task that the running code belongs to, or None."""
    task = greenlet.getcurrent()
    return task if isinstance(task, Task) else None
