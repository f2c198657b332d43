"""Ends the server of an embedded store after all its users were killed.

This file runs as a process of its own. It imports few modules, so that the process is small, and all of them
at its start, so that it goes on when the package is replaced. It waits on a connection to the server, which
ends with the server, and looks for users every few seconds. It finds users by their locks, not by clocks or
process ids, and ends the server only under the mutex that every user takes to join. A client of ``unix://``
holds no lock: the watcher looks at the time of its last command, and looks twice, since the computer may have
slept. The next process that joins replaces a watcher that was killed.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # Run by its path: only this small package is imported, not percolator_core with all its dependencies.
    sys.path.append(str(Path(__file__).parent.parent))
    __package__ = "embedded"

from .locks import MUTEX, NO_SERVER, USERS, WATCHER, Lock, lives  # noqa: TID252
from .shutdown import ASK_LIMIT, Connection, order_shutdown, stop  # noqa: TID252

_SPOKE_LATELY = 30
"""Seconds. A connection that was used since then belongs to a client that lives."""
_WATCHER_NAME = "percolator-watcher"
"""How watchers name their connections: they are no clients."""
_RETRY = 0.1


def watch(folder: Path, socket_path: str, lock: Lock, period: float) -> None:
    """Wait until the folder's server ends, or has no user any more: then end it, when all is written.

    ``lock`` is the watcher's own, held; ``period`` is how many seconds pass between two looks.
    """
    while True:
        # Opened anew for each server: the next one may belong to another store. Not created here: a folder
        # that somebody has removed must stay empty.
        users = Lock(folder / USERS, create=False)
        connection = _reach(folder, socket_path, period)
        if connection is None:
            # A process that has started a server then tries to take this lock. If it finds the lock held, the
            # watcher has not reached this line, and finds the new server just below.
            lock.close()
            connection = _reach(folder, socket_path, period)
            if connection is None:
                return
            lock = Lock(folder / WATCHER, create=False)
            if not lock.take(fcntl.LOCK_EX):
                return
        with connection:
            unused = False
            while connection.stays_quiet(period):
                try:
                    unused = _look(folder, socket_path, users, connection, end=unused)
                except OSError:
                    break
        users.close()


def _look(folder: Path, socket_path: str, users: Lock, connection: Connection, *, end: bool) -> bool:
    """Whether nobody uses the server; if so, ``end`` it. OSError where that cannot be learned now.

    It takes two looks: a connection that was silent for long may be of a client that slept with its computer.
    """
    mutex: Lock | None = None
    try:
        try:
            mutex = Lock(folder / MUTEX, create=False)
            if not mutex.take(fcntl.LOCK_EX):
                return False  # somebody joins or leaves
        except NO_SERVER:
            pass  # the folder was removed: nobody can join
        if not users.take(fcntl.LOCK_EX):
            return False
        try:
            if _others_speak(connection):
                return False
            if end and users.is_file(folder / USERS):
                stop(folder, socket_path, keep_unwritten=True)
            elif end:
                order_shutdown(connection)  # the socket was removed with the folder
            return True
        finally:
            users.release()
    finally:
        if mutex is not None:
            mutex.close()


def _others_speak(connection: Connection) -> bool:
    """Whether a client that came by ``unix://``, and so holds no lock, has said something lately."""
    mine = connection.ask("CLIENT ID")[1:].decode()
    found = connection.ask("CLIENT LIST").decode(errors="replace")
    if found.startswith("-"):
        return True  # it is busy, for somebody
    for line in found.splitlines():
        client = dict(part.partition("=")[::2] for part in line.split(" "))
        is_other = client.get("id") != mine and client.get("name") != _WATCHER_NAME
        if is_other and int(client.get("idle", 0)) < _SPOKE_LATELY:
            return True
    return False


def _reach(folder: Path, socket_path: str, period: float) -> Connection | None:
    """Connect to the server, also to one that does not listen yet; None if no server lives."""
    while True:
        try:
            connection = Connection(socket_path, ASK_LIMIT)
            if not connection.ask(f"CLIENT SETNAME {_WATCHER_NAME}").startswith(b"-ERR"):
                return connection  # also to one that is loading, or busy
            connection.close()
        except NO_SERVER:
            if not lives(folder):
                return None
        except OSError:
            pass
        time.sleep(min(period, _RETRY))  # a server lives, and is full, starting or ending


if __name__ == "__main__":
    try:
        watch(
            Path(sys.argv[1]),
            sys.argv[2],
            Lock(Path(sys.argv[1], WATCHER), inherited=int(sys.argv[3])),
            float(sys.argv[4]),
        )
    except OSError:
        pass  # the folder cannot be used any more, and there is nobody to tell
    os._exit(0)
