"""The id of this process, objects that must change in a forked child, and the number of usable cores.

A fork copies everything except the other threads. So in the child, a lock may be held by a thread that does
not exist. A connection has two users, parent and child, which would read each other's replies.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

T = TypeVar("T")

pid = os.getpid()
"""The id of this process, also correct in a forked child; faster to read than ``os.getpid()``."""


class Living(Generic[T]):
    """A set of weak references that all threads, signal handlers and finalizers may use.

    It needs no lock, unlike a `weakref.WeakSet`, because the interpreter does each operation in one step.
    """

    def __init__(self) -> None:
        self._refs: set[weakref.ref[T]] = set()

    def add(self, one: T) -> None:
        """Add an object, which leaves the set when Python frees it."""
        self._refs.add(weakref.ref(one, self._refs.discard))

    def discard(self, one: T) -> None:
        """Remove an object."""
        self._refs.discard(weakref.ref(one))

    def __iter__(self) -> Iterator[T]:
        for ref in self._refs.copy():
            one = ref()
            if one is not None:
                yield one


class Forked(Protocol):
    """An object that must change in a forked child."""

    def after_fork(self) -> None:
        """Change the object; called in the child before other code runs there."""


_forked: Living[Forked] = Living()


def call_after_fork(one: Forked) -> None:
    """Call ``one.after_fork()`` in every forked child, as long as the object exists."""
    _forked.add(one)


class Lock:
    """A reentrant lock that is free in a forked child.

    A signal handler or finalizer gets the lock even if the interrupted code holds it: otherwise the thread
    would wait for itself. So the guarded data must be consistent at every moment.

    A ``with`` statement calls the methods of the inner lock, which are written in C: in a method that is
    written in Python, Ctrl-C between two steps would leave the lock held.
    """

    __slots__ = ("__enter__", "__exit__", "__weakref__", "_lock")

    if TYPE_CHECKING:

        def __enter__(self) -> bool: ...

        def __exit__(self, *_: object) -> None: ...

    def __init__(self) -> None:
        self._renew()
        call_after_fork(self)

    def after_fork(self) -> None:
        """Free the lock, unless the thread that called ``fork`` holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._renew()

    def _renew(self) -> None:
        self._lock = threading.RLock()
        self.__enter__ = self._lock.__enter__  # type: ignore[method-assign]
        self.__exit__ = self._lock.__exit__  # type: ignore[method-assign,assignment]


def _note_fork() -> None:
    global pid  # noqa: PLW0603 - a module has one process
    pid = os.getpid()
    for one in _forked:
        one.after_fork()


os.register_at_fork(after_in_child=_note_fork)


def usable_cores() -> int:
    """Return how many cores this process may use; 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
