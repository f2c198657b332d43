"""The file locks in the folder of an embedded store (see `percolator_core.store.embedded.server`)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

MUTEX, USERS, SERVER, WATCHER = "redis.mutex", "redis.users", "redis.server", "redis.watcher"
"""The names of the files that are locked."""

NO_SERVER = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError)
"""The errors which show that a socket or a folder has no server."""

_open_here: set[int] = set()
"""Descriptors of locks; a forked child must not keep them."""


def _close_in_child() -> None:
    """Close the copies of the locks in a forked child, because with a copy the child would count as a user.

    This does not release the locks of the parent.
    """
    while _open_here:
        os.close(_open_here.pop())


os.register_at_fork(after_in_child=_close_in_child)


class Lock:
    """A file to flock. Each object opens the file itself, so threads exclude each other too."""

    def __init__(self, path: Path, *, create: bool = True, inherited: int | None = None) -> None:
        """Open the file. With ``create``, create a missing file.

        ``inherited`` is a descriptor of the file that the parent process has opened.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        self.fd = os.open(path, flags, 0o600) if inherited is None else inherited
        _open_here.add(self.fd)
        self._file = os.fstat(self.fd)

    def take(self, how: int) -> bool:
        """Take the lock (``LOCK_SH`` or ``LOCK_EX``); return False if another holder prevents that."""
        try:
            fcntl.flock(self.fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release the lock and keep the file open."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self, *, release: bool = True) -> None:
        """Close the descriptor. Without ``release`` the lock stays with a child that inherited it."""
        if release:
            # Release the lock explicitly: a process that is being spawned may hold a copy of the descriptor
            # for a short time.
            self.release()
        _open_here.discard(self.fd)
        os.close(self.fd)

    def is_file(self, path: Path) -> bool:
        """Return True if ``path`` is still the file that was opened; works in a forked child, too."""
        try:
            return os.path.samestat(self._file, path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False


def no_server(folder: Path) -> Lock | None:
    """Take and return the server's lock; return None if a server lives. The caller holds the mutex."""
    lock = Lock(folder / SERVER)
    if lock.take(fcntl.LOCK_EX):
        return lock
    lock.close(release=False)
    return None


def lives(folder: Path) -> bool:
    """Return True if a server holds the folder's lock."""
    try:
        lock = Lock(folder / SERVER, create=False)
    except NO_SERVER:
        return False
    lives = not lock.take(fcntl.LOCK_SH)
    lock.close()
    return lives
