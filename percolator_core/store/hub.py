"""Cooperative concurrency: many straight-line functions share the round trips of one connection.

A `Task` is a greenlet that runs a function. When the function needs the store, the task parks its exchange
at the hub and another task runs. The hub sends what is parked as one batch when that is large enough, when
half of all tasks wait, or when nothing else is under way, and resumes each task with its replies. The paper
got the same effect from thousands of threads and a small delay (section 2.5); in Python greenlets are what is
cheap enough.

A hub belongs to the thread that made it.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
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
from percolator_core.store.pipeline import IDLE
from percolator_core.store.request import Exchange
from percolator_core.store.retries import Retries, RetryPolicy
from percolator_core.store.task import RESTING, Future, Job, Task, cancel

T = TypeVar("T")

BURST: Final = 3000
"""Bytes that make a batch worth sending while the server still works on others: eight commits of one cell, or
thirty reads. With smaller batches the system takes too much of the time; with larger ones the server has
nothing to do until the next one comes."""

_OVERHEAD: Final = 40
"""What an exchange adds to a batch beside its commands, in bytes: such as its share of a timestamp."""


_NO_WAITING: Final = (
    "a signal handler or finalizer may not wait for the executor that it interrupts: use the database itself"
)


class _Gathering:
    """What a task is parked for that has exchanges under way to several slots."""

    __slots__ = ("exchanges", "left", "task")

    def __init__(self, task: Task, exchanges: Sequence[Exchange]) -> None:
        self.task = task
        self.exchanges = exchanges
        self.left = len(exchanges)


class Hub:
    """Runs tasks and batches their exchanges.

    ``owner`` is the store whose exchanges it carries; at most ``width`` functions run at a time.
    """

    def __init__(
        self,
        owner: object,
        connections: Connections,
        retry_policy: RetryPolicy,
        width: int,
    ) -> None:
        if width < 1:
            raise ValueError(f"width is 1 or more, not {width}")
        self.owner = owner
        self.connections = connections
        self.width = width
        self.loop = self._loop_again = greenlet.getcurrent()
        """The thread's own greenlet, which runs the loop. It is held twice.

        When a thread ends, greenlet looks for the holder of a last reference to it, and frees it if it finds
        none. It finds none while the collector has a hub among its garbage, although a finalizer of the same
        garbage may yet run, or keep the hub: the process then crashes. It does not look if there are two.
        """
        self.thread = threading.get_ident()
        self.process = process.pid
        self.running: Task | None = None
        """The task that runs right now; None while the hub itself does."""
        self.interruption: BaseException | None = None
        self._retries = Retries(self, retry_policy)
        self._ready: deque[tuple[Task, object]] = deque()
        self._waiting: deque[Job] = deque()
        self._starting: Job | None = None
        """Taken out of those that wait, and of no task yet."""
        self._filling = False
        self._at_work = False
        """Whether the loop runs; left behind perhaps by Ctrl-C."""
        self._active: set[Task] = set()
        self._resting: list[Task] = []
        self._blocked = 0
        self._parked: list[Exchange] = []
        self._load = 0
        """About how many bytes tasks have parked since the last batch; not what is deferred or sent again."""
        self._asleep: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._calls: deque[Callable[[], None]] = deque()
        self._bell_out, self._bell_in = socket.socketpair()
        self._bell_out.setblocking(False)
        self._bell_in.setblocking(False)
        self._closed = False
        self._told: BaseException | None = None
        """The interruption of a task that was raised last: the hub itself was at rest then."""
        self._on_answer = self._answered
        self._on_loss = self._retries.repeat_if_lost
        python_gc.allow_for_tasks(width)
        process.tell_of_forks(self)

    # What tasks call.

    def exchange(self, exchanges: Sequence[Exchange]) -> None:
        """Park the current task until the exchanges are answered."""
        task = self._current()
        ticket: object = exchanges[0]
        caller: object = task
        if len(exchanges) > 1:
            ticket = caller = _Gathering(task, exchanges)
        try:
            task.awaiting = ticket
            for exchange in exchanges:
                exchange.on_done = self._on_answer
                exchange.caller = caller
            self._parked += exchanges
            for exchange in exchanges:
                self._load += _OVERHEAD + sum(map(len, exchange.packed))
            self.loop.switch()
        finally:
            task.awaiting = None

    def defer(self, exchanges: Sequence[Exchange]) -> None:
        """Send the exchanges with the next batch, and again if they get lost; nobody waits for them."""
        for exchange in exchanges:
            exchange.on_done = self._on_loss
        self._parked += exchanges

    def sleep(self, seconds: float) -> None:
        """Park the current task for a time."""
        task, ticket = self._current(), next(self._order)
        try:
            task.awaiting = ticket
            heapq.heappush(self._asleep, (time.monotonic() + seconds, ticket, task))
            self.loop.switch()
        finally:
            task.awaiting = None

    def wait_for(self, future: Future[Any]) -> None:
        """Return when the future is settled: by parking, inside a task, else by running the hub.

        A task that waits for another gives up its place meanwhile, else the other might never get one.
        """
        if future.done():
            return
        self._check_thread()
        if self.running is not None and greenlet.getcurrent() is self.running:
            task = self._current()
            if task.awaiting is not None or python_gc.collecting:
                raise RuntimeError(_NO_WAITING)
            self._blocked += 1
            try:
                task.awaiting = future
                future._waiters.append(task)  # noqa: SLF001 - the two make one mechanism
                self._fill()
                self.loop.switch()
            finally:
                task.awaiting = None
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
        self._waiting.append((fn, args, future))
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
        if python_gc.collecting or ((self._at_work or self._filling) and self._is_interrupted()):
            raise RuntimeError(_NO_WAITING)
        try:
            self._at_work = True
            while not until():
                self._run_ready()
                if until():
                    return
                if not self._converse():
                    if not self._asleep and not self._active and not self._calls:
                        return
                    self._check_progress()
                    self.idle(None)
        except BaseException as stop:
            self._take_stock(stop)
            raise
        finally:
            self._at_work = False

    def turn(self) -> bool:
        """Run what can run and take one step of the conversation; False when there was nothing to do."""
        try:
            self._at_work = True
            ran = self._run_ready()
            return self._converse() or ran
        except BaseException as stop:
            self._take_stock(stop)
            raise
        finally:
            self._at_work = False

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
        return bool(self._ready or self._parked or self._calls or self.connections.in_flight)

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
            python_gc.allow_for_tasks(-self.width)
        try:
            # Tasks switch to the loop. In a generator that is being collected they are left alone.
            here = self.process == process.pid and greenlet.getcurrent() is self.loop
            if here and not python_gc.collecting:
                self._end_tasks()
                while self._parked or self.connections.in_flight:
                    self._converse()
                while self._resting:
                    self._resting.pop().throw(greenlet.GreenletExit)
        finally:
            self.connections.close()
            self._bell_out.close()
            self._bell_in.close()

    def after_fork(self) -> None:
        """In a forked child no task goes on: they are the parent's, and so are the connections.

        If a task forked, it goes on to its end, outside the hub. Then, as when the hub forked, the code that
        waits for the hub is told.
        """
        self.interruption = of_another_process("executor")
        for task in self._active:
            task.awaiting = RESTING
        self._bell_out.close()
        self._bell_in.close()

    # What retries call.

    def park(self, exchanges: Sequence[Exchange]) -> None:
        """Send them with the next batch."""
        self._parked += exchanges

    def withdraw(self, exchanges: Sequence[Exchange]) -> None:
        """Do not send them: they are parked."""
        for exchange in exchanges:
            self._parked.remove(exchange)

    def do_next(self, call: Callable[[], None]) -> None:
        """Run ``call`` outside all tasks, before anything else."""
        self._calls.append(call)

    def begin(self, call: Callable[[Exchange], None], repeats: Exchange) -> None:
        """Run ``call`` as a task that sends the exchange ``repeats`` again."""
        self._start((call, (repeats,), Future(self))).repeats = repeats

    # What tasks call at their ends.

    def make_ready(self, task: Task, ticket: object = None) -> None:
        """Let a task begin, or go on if it is parked for ``ticket``."""
        self._ready.append((task, ticket))

    def ended(self, task: Task, *, rests: bool) -> None:
        """A task's function is over; the next one takes its place."""
        self._active.discard(task)
        if rests:
            self._resting.append(task)
        elif task in self._resting:
            self._resting.remove(task)
        self._fill()

    # Inside.

    def _fill(self) -> None:
        if self._filling:
            self._calls.append(self._fill)  # a signal handler submits something
            return
        try:
            self._filling = True
            while self._waiting and len(self._active) - self._blocked < self.width:
                self._starting = self._waiting[0]
                self._start(self._waiting.popleft())
                self._starting = None
        finally:
            self._filling = False

    def _start(self, job: Job) -> Task:
        task = self._resting.pop() if self._resting else Task(self)
        ticket = next(self._order)
        task.take(job, ticket)
        self._active.add(task)
        self._ready.append((task, ticket))
        return task

    def _current(self) -> Task:
        """The running task, about to be parked; the place where one that is past its deadline ends."""
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

    def _is_interrupted(self) -> bool:
        """Whether the running code was called in the middle of the loop, as a signal handler is."""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, in spite of its name
        while frame is not None:
            if frame.f_code in _LOOP and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _check_thread(self) -> None:
        if process.pid != self.process:
            raise of_another_process("executor")
        if threading.get_ident() != self.thread:
            raise RuntimeError("a hub belongs to the thread that made it; use call_soon from another thread")

    def _end_tasks(self) -> None:
        """End all tasks. What they do on their way out may be sent, but not be waited for.

        What they had parked and nobody has sent yet, such as their commits, is not sent any more.
        """
        self._cancel_waiting()
        ended = set()
        while self._active:
            task = self._active.pop()
            ended.add(task)
            task.cancel()  # one that has not begun would not tell its future
            task.throw(greenlet.GreenletExit)
            self._cancel_waiting()
        self._parked = [one for one in self._parked if one.pipeline is not None or _task_of(one) not in ended]

    def _cancel_waiting(self) -> None:
        while self._waiting:
            cancel(self._waiting.popleft())

    def _run_ready(self) -> bool:
        ran = bool(self._ready or self._calls)
        while self._calls:
            try:
                self._calls[0]()
            finally:
                self._calls.popleft()
        if self._asleep:
            now = time.monotonic()
            while self._asleep and self._asleep[0][0] <= now:
                _, ticket, task = heapq.heappop(self._asleep)
                self._ready.append((task, ticket))
        while self._ready and not self._is_worth_sending():
            self._switch(*self._ready.popleft())
            if self.interruption is not None:
                break
        self._raise_interruption()
        return ran

    def _converse(self) -> bool:
        """One step: send what is parked, or take in one answer and resume its task.

        A batch goes out when it is worth it or nothing else is under way, so that the server works on one
        batch while the tasks of the one before run.
        """
        if self._parked and (self._is_worth_sending() or not self.connections.in_flight):
            self._send(self.connections.send)
        elif not self.connections.in_flight or not self._take_in():
            return False
        self.connections.receive_buffered(self._has_time)
        self._raise_interruption()
        return True

    def _is_worth_sending(self) -> bool:
        """Whether what is parked makes a batch, also if the server still works on others.

        By its size, or because half of all tasks wait: a few tasks would else all wait at the same time. An
        exchange counts as a task here. Only the moment of sending depends on it.
        """
        parked = len(self._parked)
        return parked > 0 and (self._load >= BURST or 2 * parked >= len(self._active) > 0)

    def _has_time(self) -> bool:
        """Whether taking in answers is the most urgent thing to do."""
        return not (self._ready or self._calls or self._is_worth_sending() or self.interruption)

    def _take_in(self) -> bool:
        """Take in an answer. A server that is slow, or was stopped, must not hold up those who use others."""
        if self._parked and self.connections.several:
            if self.connections.receive(0):
                return True
            count = len(self._parked)
            self._send(self.connections.send_to_the_idle)
            if len(self._parked) < count:
                return True
        if not self._asleep:
            return self.connections.receive()
        return self.connections.receive(min(max(0.0, self._asleep[0][0] - time.monotonic()), IDLE))

    def _send(self, send: Callable[[Sequence[Exchange]], Sequence[Exchange]]) -> None:
        """Send what is parked; ``send`` returns what stays. Whenever Ctrl-C comes, nobody is forgotten."""
        batch = self._parked
        for exchange in batch:
            exchange.under_way = True
        try:
            self._parked, self._load = [], 0
            self._parked += send(batch)
        except BaseException:
            parked = set(map(id, self._parked))
            self._parked += [
                exchange
                for exchange in batch
                if exchange.under_way and id(exchange) not in parked and not self.connections.holds(exchange)
            ]
            raise

    def _raise_interruption(self) -> None:
        """Let Ctrl-C out of the hub, once every caller of the batch at hand has been told its outcome."""
        if self.interruption is not None:
            stop = self._told = self.interruption
            self.interruption = None
            raise stop

    def _take_stock(self, stop: BaseException) -> None:
        """See that nobody is forgotten after an exception that struck the hub itself.

        Ctrl-C comes between any two steps, when something has just been taken out of one queue and is in no
        other yet. So the connections are hung up; what was under way, or a task waits for, is sent again; and
        whoever waits for what has happened meanwhile goes on.
        """
        if stop is self._told:
            return
        starting, self._starting = self._starting, None
        if starting is not None and not any(task.is_behind(starting[2]) for task in self._active):
            self._waiting.appendleft(starting)
        lost = [*self._retries.forget(), *self.connections.abandon()]
        asleep = {ticket for _, ticket, _ in self._asleep}
        for task in self._active:
            ticket = task.awaiting
            if isinstance(ticket, Exchange | _Gathering):
                exchanges = ticket.exchanges if isinstance(ticket, _Gathering) else (ticket,)
                left = [exchange for exchange in exchanges if not exchange.done]
                lost += left
                if isinstance(ticket, _Gathering):
                    ticket.left = len(left)
                happened = not left
            elif isinstance(ticket, Future):
                happened = ticket.done()
            else:
                happened = ticket not in asleep  # that of one that has not begun, too
            if happened:
                self._ready.append((task, ticket))  # one entry too many is ignored
        parked = set(map(id, self._parked))
        for exchange in lost:
            if id(exchange) not in parked and not exchange.done:
                parked.add(id(exchange))
                exchange.interrupt()
                self._parked.append(exchange)
        self._fill()

    def _check_progress(self) -> None:
        """Raise if every task waits for another one: none of them would ever go on.

        Another thread may settle nothing here, but it may call: what it has the hub do can be anything.
        """
        if not self.busy and not self._asleep and self._blocked and self._blocked == len(self._active):
            raise RuntimeError("every function waits for another one of this executor")

    def _answered(self, exchange: Exchange) -> None:
        caller: Any = exchange.caller
        task, ticket = (caller.task, caller) if type(caller) is _Gathering else (caller, exchange)
        # A task that was interrupted on its way to the hub does not wait for this any more.
        if task.awaiting is not ticket:
            return
        if exchange.trouble is not None and self._retries.repeats(exchange):
            return
        if type(caller) is _Gathering:
            caller.left -= 1
            if caller.left:
                return
        self.running = task
        try:
            task.switch()
        finally:
            self.running = None


_LOOP: Final = (Hub.run.__code__, Hub.turn.__code__, Hub._fill.__code__)  # noqa: SLF001
"""What is on the stack while the hub is at work."""


def _task_of(exchange: Exchange) -> Any:
    """The task that waits for an exchange, alone or with others."""
    caller = exchange.caller
    return caller.task if type(caller) is _Gathering else caller


def is_being_ended() -> bool:
    """Whether the running code is a task's that its hub is ending: it may send, but not wait."""
    hub = current_hub()
    return hub is not None and hub.running is not greenlet.getcurrent()


def current_hub() -> Hub | None:
    """The hub that the running code is a task of, or None.

    None as well for a signal handler or finalizer that runs while the task is on its way to be parked, or
    Python collects garbage: they must not park it, so they do without the hub. So does a forked child.
    """
    task: Any = greenlet.getcurrent()
    hub: Hub | None = getattr(task, "hub", None)
    return None if hub is None or task.awaiting is not None or python_gc.collecting else hub
