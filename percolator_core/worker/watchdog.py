"""Ends observers that run past their time.

A task that parks at the hub is stopped there, by its deadline. Code that never parks (an endless loop, a
blocking call) has to be interrupted from outside: a thread watches the clock and, when the hub runs in the
main thread, sends it SIGURG, whose handler raises in the middle of the overdue code; a blocking call such as
``time.sleep`` returns for it. In other threads the interpreter can only raise between two bytecodes, so a
blocking call there ends when it ends.

SIGURG is the signal whose default is to be ignored, so that one that comes late does no harm.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, Self, TypeVar

from percolator_core import store
from percolator_core.runtime import process
from percolator_core.store import Hub, current_task
from percolator_core.store.stream import Stream

F = TypeVar("F", bound=Callable[..., Any])

_TICK: Final = 0.02

_AGAIN: Final = 0.5
"""Seconds between two exceptions raised in a thread: it needs a moment for one, and may have swallowed it."""


_BOOKKEEPING: Final[set[CodeType]] = set()
"""The functions that begin and end the time limit of a run (`uninterrupted`)."""

_WAIT: Final = Stream._receive.__code__  # noqa: SLF001 - the one place of the store that may be interrupted
"""Waits for a reply. An interruption there closes the connection."""

_LIBRARY: Final = f"{store.__name__.partition('.')[0]}."
_STORE: Final = f"{store.__name__}."
_LOCKS: Final = process.__name__
_CONVERSATION: Final = f"{__name__.rpartition('.')[0]}.offload."
"""Modules by which a child process and its worker talk."""


def uninterrupted(function: F) -> F:
    """Mark a function in whose frames, and in those that it calls, no observer's timeout is raised."""
    _BOOKKEEPING.add(function.__code__)
    return function


class ObserverTimeout(BaseException):
    """Raised inside an observer that has run past its declared timeout.

    Not an Exception, so that an observer's own ``except Exception`` does not swallow it.
    """


class Deadline:
    """The time at which one run must be over, and the thread it blocks while it runs outside a hub."""

    __slots__ = ("at", "interrupt_at", "seconds", "thread")

    def __init__(self, seconds: float, thread: int | None = None) -> None:
        self.seconds = seconds
        self.at = self.interrupt_at = time.monotonic() + seconds
        self.thread = thread

    @classmethod
    def of_this_thread(cls, seconds: float) -> Deadline:
        """A deadline of code that runs in the calling thread."""
        return cls(seconds, threading.get_ident())

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.at

    def error(self) -> ObserverTimeout:
        """The exception to raise when it has passed."""
        return ObserverTimeout(f"ran for more than its timeout of {self.seconds:g} s")


class Watchdog:
    """Watches the hub of one worker, and its threads. A context manager; enter it in the hub's thread.

    Without a hub it watches runs in threads alone, of which one may be the main thread.
    """

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
            # None: a handler that was not set from Python.
            signal.signal(signal.SIGURG, signal.SIG_DFL if self._before is None else self._before)

    @uninterrupted
    def guard(self, deadline: Deadline) -> None:
        """Watch a run in a thread of its own."""
        self._threads.add(deadline)

    @uninterrupted
    def release(self, deadline: Deadline) -> None:
        """The run is over: what follows in its thread, such as its commit, is not interrupted any more."""
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
        # Runs in the hub's thread between two bytecodes of whatever runs there: of the overdue task, or not
        # any more.
        deadline = self._overdue(time.monotonic())
        mine = self._hub is not None and current_task() is self._hub.running
        if deadline is not None and mine and _may_be_interrupted(frame):
            raise deadline.error()


def _raise_in(thread: int, deadline: Deadline) -> None:
    """Have `ObserverTimeout` raised in a thread, unless it was lately, or would do harm where that is now."""
    now = time.monotonic()
    frames = sys._current_frames()  # noqa: SLF001 - documented, in spite of its name
    if now > deadline.interrupt_at and _may_be_interrupted(frames.get(thread)):
        deadline.interrupt_at = now + _AGAIN
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(ObserverTimeout))


def _may_be_interrupted(frame: FrameType | None) -> bool:
    """Return True if a timeout may be raised in the code that ``frame`` runs.

    It may in the observer and in most of what the observer calls. It may not while the store changes its
    bookkeeping, for replies would then reach the wrong callers; nor in a lock, which would stay locked; nor
    in what begins and ends a time limit, for a deadline that nobody takes back would strike later runs. If
    interrupting is unsafe now, the next tick tries again, or the hub ends the run.
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
