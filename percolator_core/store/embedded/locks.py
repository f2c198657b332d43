"""The locks in the folder of an embedded store (see `percolator_core.store.embedded.server`)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

MUTEX, USERS, SERVER, WATCHER = "redis.mutex", "redis.users", "redis.server", "redis.watcher"
"""The files that are locked, see `percolator_core.store.embedded.server`."""

NO_SERVER = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError)
"""The errors of a socket, or a folder, that no server uses any more."""

_open_here: set[int] = set()
"""Descriptors of locks, which a forked child must not keep."""


def _close_in_child() -> None:
    """After a fork: drop the child's copies, else it would count as a user for as long as it lives.

    Closing a copy does not free the parent's lock.
    """
    while _open_here:
        os.close(_open_here.pop())


os.register_at_fork(after_in_child=_close_in_child)


class Lock:
    """A file to flock. Each has an open file description of its own, so threads exclude each other too."""

    def __init__(self, path: Path, *, create: bool = True, inherited: int | None = None) -> None:
        """Open the file, and make it if ``create``; ``inherited`` is its descriptor, opened by the parent."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        self.fd = os.open(path, flags, 0o600) if inherited is None else inherited
        _open_here.add(self.fd)
        self._file = os.fstat(self.fd)

    def take(self, how: int) -> bool:
        """Take the lock (``LOCK_SH`` or ``LOCK_EX``) if nobody is in the way."""
        try:
            fcntl.flock(self.fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Give the lock up and keep the file open."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self, *, release: bool = True) -> None:
        """Close the descriptor. Without ``release`` the lock stays with a child that inherited it."""
        if release:
            # Said aloud, because a process that is just being spawned may hold a copy for a moment.
            self.release()
        _open_here.discard(self.fd)
        os.close(self.fd)

    def is_file(self, path: Path) -> bool:
        """Whether ``path`` still names the file that was opened; also asked in a forked child."""
        try:
            return os.path.samestat(self._file, path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False


def no_server(folder: Path) -> Lock | None:
    """The server's lock, held, if no server lives. The caller holds the mutex."""
    lock = Lock(folder / SERVER)
    if lock.take(fcntl.LOCK_EX):
        return lock
    lock.close(release=False)
    return None


def lives(folder: Path) -> bool:
    """Whether a server holds the folder's lock."""
    try:
        lock = Lock(folder / SERVER, create=False)
    except NO_SERVER:
        return False
    lives = not lock.take(fcntl.LOCK_SH)
    lock.close()
    return lives
