"""Which process this is, what a fork means for what it has, and on how many cores it runs.

A fork copies everything but the other threads. So in the child a lock may be held by a thread that is not
there, and a connection is one of two ends that would take each other's replies.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar

T = TypeVar("T")

pid = os.getpid()
"""This process's id, right also in a forked child. To ask the system each time takes a call of its own."""


class Living(Generic[T]):
    """A set of weak references, for all threads, signal handlers and finalizers.

    Each step is a single one of the interpreter's, so it needs no lock, as a `weakref.WeakSet` would.
    """

    def __init__(self) -> None:
        self._refs: set[weakref.ref[T]] = set()

    def add(self, one: T) -> None:
        """Add an object; it leaves when it is collected."""
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
    """Something that cannot stay as it is in a forked child."""

    def after_fork(self) -> None:
        """In the child, before anything else runs there."""


_forked: Living[Forked] = Living()


def tell_of_forks(one: Forked) -> None:
    """Have ``one.after_fork()`` called in every forked child, as long as it lives."""
    _forked.add(one)


class Lock:
    """A lock that keeps out other threads, and nobody else.

    A signal handler or finalizer comes in although the code that it interrupts holds the lock: else the
    thread would wait for itself. So whatever the lock guards has to be sound, for them, at each moment. And
    in a forked child it is free, although in the parent another thread may have held it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        tell_of_forks(self)

    def acquire(self, timeout: float = -1) -> bool:
        """Take it, within so many seconds (-1: however long that takes); whether it was taken."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Give it back; once for each time that it was taken."""
        self._lock.release()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Free it, unless the code that forked holds it itself."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


def _note_fork() -> None:
    global pid  # noqa: PLW0603 - what a module knows of its process
    pid = os.getpid()
    for one in _forked:
        one.after_fork()


os.register_at_fork(after_in_child=_note_fork)


def usable_cores() -> int:
    """The cores that this process may use; 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
