"""Interrupts observers that run longer than their timeout.

While a task waits at the hub, the hub stops it at the deadline. Other code has to be interrupted from
outside, so a thread watches the clock. If the hub runs in the main thread, the watching thread sends SIGURG,
and the signal handler raises in the overdue code, also in a blocking call such as ``time.sleep``. In other
threads the interpreter can raise only between two bytecodes, so a blocking call there runs to its end.

By default a process ignores SIGURG, so a late signal does no harm.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final, Self, TypeVar

from percolator_core import store
from percolator_core.runtime import process
from percolator_core.store import Hub, current_task
from percolator_core.store.pipeline import Stream

F = TypeVar("F", bound=Callable[..., Any])

_TICK: Final = 0.02

_AGAIN: Final = 0.5
"""Seconds between two exceptions raised in a thread: the code may suppress the first, or take time to end."""

_BOOKKEEPING: Final[set[CodeType]] = set()
"""The functions that are `uninterrupted`."""

_WAIT: Final = Stream._receive.__code__  # noqa: SLF001 - the one place of the store that may be interrupted
"""The function that waits for a reply. An interruption in it closes the connection."""

_LIBRARY: Final = f"{store.__name__.partition('.')[0]}."
_STORE: Final = f"{store.__name__}."
_LOCKS: Final = process.__name__
_CONVERSATION: Final = f"{__name__.rpartition('.')[0]}.offload."
"""The modules through which a worker and its child process exchange messages."""


def uninterrupted(function: F) -> F:
    """Mark a function: no timeout of an observer is raised while it runs."""
    _BOOKKEEPING.add(function.__code__)
    return function


class ObserverTimeout(BaseException):
    """The observer ran longer than its timeout. ``except Exception`` in the observer does not catch it."""


class Deadline:
    """The time at which a run must have ended, and the thread of a run that is not a task of a hub."""

    __slots__ = ("at", "interrupt_at", "seconds", "thread")

    def __init__(self, seconds: float, thread: int | None = None) -> None:
        self.seconds = seconds
        self.at = self.interrupt_at = time.monotonic() + seconds
        self.thread = thread

    def error(self) -> ObserverTimeout:
        """Return the exception to raise after the deadline."""
        return ObserverTimeout(f"ran for more than its timeout of {self.seconds:g} s")


class Watchdog:
    """Watches the hub, if any, and the threads of one worker. Enter its context in the hub's thread."""

    def __init__(self, hub: Hub | None) -> None:
        self._hub = hub
        self._stop = threading.Event()
        self._threads: set[Deadline] = set()
        self._watching = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="percolator-watchdog", daemon=True)
        self._in_main = hub is not None and threading.current_thread() is threading.main_thread()
        self._before: Any = None

    def __enter__(self) -> Self:
        if self._in_main:
            self._before = signal.signal(signal.SIGURG, self._interrupt)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._in_main:
            # None means that the earlier handler was not set from Python.
            signal.signal(signal.SIGURG, signal.SIG_DFL if self._before is None else self._before)

    @uninterrupted
    def guard(self, deadline: Deadline) -> None:
        """Watch a run in a thread."""
        self._threads.add(deadline)

    @uninterrupted
    def release(self, deadline: Deadline) -> None:
        """Stop watching a run: its commit, for example, must not be interrupted."""
        with self._watching:
            self._threads.discard(deadline)

    def _watch(self) -> None:
        while not self._stop.wait(_TICK):
            now = time.monotonic()
            overdue = self._overdue(now)
            if overdue is not None and self._hub is not None:
                if self._in_main:
                    signal.pthread_kill(self._hub.thread, signal.SIGURG)
                else:
                    _raise_in(self._hub.thread, overdue)
            with self._watching:
                for deadline in list(self._threads):
                    if now > deadline.at and deadline.thread is not None:
                        _raise_in(deadline.thread, deadline)

    def _overdue(self, now: float) -> Deadline | None:
        task = None if self._hub is None else self._hub.running
        deadline: Deadline | None = task.deadline if task is not None else None
        return deadline if deadline is not None and now > deadline.at else None

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        # Runs in the hub's thread between two bytecodes. The overdue task may have ended since the signal.
        deadline = self._overdue(time.monotonic())
        mine = self._hub is not None and current_task() is self._hub.running
        if deadline is not None and mine and may_be_interrupted(frame):
            raise deadline.error()


def _raise_in(thread: int, deadline: Deadline) -> None:
    """Raise `ObserverTimeout` in a thread, unless it was raised just before, or raising is unsafe now."""
    now = time.monotonic()
    frames = sys._current_frames()  # noqa: SLF001 - documented, in spite of its name
    if now > deadline.interrupt_at and may_be_interrupted(frames.get(thread)):
        deadline.interrupt_at = now + _AGAIN
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(ObserverTimeout))


def may_be_interrupted(frame: FrameType | None) -> bool:
    """Return True if a timeout may be raised in the code that ``frame`` runs.

    A timeout may be raised in the observer and in most functions that it calls, except in three places:

    - where the store changes its bookkeeping: replies would reach the wrong callers;
    - where a thread holds a lock of Python: the lock would stay locked;
    - where a time limit begins or ends: the deadline would remain set, and interrupt later runs.

    If interrupting is unsafe now, the next tick tries again, or the hub ends the run.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if frame.f_code in _BOOKKEEPING or module.startswith(_CONVERSATION):
            return False
        if module.startswith(_STORE) or module == _LOCKS:
            return frame.f_code is _WAIT
        if module.startswith(_LIBRARY):
            return True
        frame = frame.f_back
    return False


@contextmanager
@uninterrupted
def limited(seconds: float, watchdog: Watchdog) -> Iterator[None]:
    """Limit the time of a block. The watchdog enforces the limit; in a task, the hub enforces it, too."""
    task = current_task()
    deadline = Deadline(seconds, None if task is not None else threading.get_ident())
    if task is not None:
        task.deadline = deadline
    else:
        watchdog.guard(deadline)
    try:
        yield
        if time.monotonic() > deadline.at:
            raise deadline.error()  # the code could not be interrupted, but its time is over
    except ObserverTimeout as late:
        # In a thread the interpreter raises the class, without arguments.
        late.args = deadline.error().args
        raise
    finally:
        if task is not None:
            task.deadline = None
        else:
            watchdog.release(deadline)
