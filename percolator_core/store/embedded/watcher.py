"""Ends the server of an embedded store after all its users were killed.

This file runs as a separate process. It imports few modules, so that the process is small, and imports them
at its start, so that it still works after the package is replaced. It keeps a connection to the server. This
connection closes when the server ends. Every few seconds the watcher checks if the server still has users. A
user is found by its lock. The server is ended only under the mutex that every user takes to join. A client of
``unix://`` has no lock: the watcher checks the time of its newest command. If the watcher was killed, the
next process that joins the server starts another watcher.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # The file is run by its path, so it imports only this small package, not all of percolator_core.
    sys.path.append(str(Path(__file__).parent.parent))
    __package__ = "embedded"

from .locks import MUTEX, NO_SERVER, USERS, WATCHER, Lock, lives  # noqa: TID252
from .shutdown import ASK_LIMIT, Connection, order_shutdown, stop  # noqa: TID252

_SPOKE_LATELY = 30
"""Seconds. If a connection sent its newest command less than this long ago, its client is alive."""
_WATCHER_NAME = "percolator-watcher"
"""The name of a watcher's connection. Such a connection does not count as a client."""
_RETRY = 0.1


def watch(folder: Path, socket_path: str, lock: Lock, period: float) -> None:
    """Wait until the folder's server ends. If the server has no user, end it, unless it cannot write its log.

    ``lock`` is the watcher's lock, already held. ``period`` is the time between two checks, in seconds.
    """
    while True:
        # The file of the users' lock is opened again for each server, because the next server may belong to
        # another store. The file is not created, because a folder that was removed must not reappear.
        users = Lock(folder / USERS, create=False)
        connection = reach(folder, socket_path, period)
        if connection is None:
            # A process that starts a server starts no watcher while this lock is held. So this watcher
            # looks for a new server once more after it has released the lock.
            lock.close()
            connection = reach(folder, socket_path, period)
            if connection is None:
                return
            lock = Lock(folder / WATCHER, create=False)
            if not lock.take(fcntl.LOCK_EX):
                return
        with connection:
            unused = False
            while connection.stays_quiet(period):
                try:
                    unused = look(folder, socket_path, users, connection, end=unused)
                except OSError:
                    break
        users.close()


def look(folder: Path, socket_path: str, users: Lock, connection: Connection, *, end: bool) -> bool:
    """Return True if the server has no user; with ``end``, end it then. Raise OSError if it does not answer.

    Pass ``end`` only if the previous check returned True: a connection without recent commands may belong to
    a client whose computer was asleep.
    """
    mutex: Lock | None = None
    try:
        try:
            mutex = Lock(folder / MUTEX, create=False)
            if not mutex.take(fcntl.LOCK_EX):
                return False  # a user joins or leaves
        except NO_SERVER:
            pass  # the folder was removed: no user can join
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
    """Return True if a client of ``unix://``, which has no lock, has sent a command recently."""
    mine = connection.ask("CLIENT ID")[1:].decode()
    found = connection.ask("CLIENT LIST").decode(errors="replace")
    if found.startswith("-"):
        return True  # the server is busy with a command
    for line in found.splitlines():
        client = dict(part.partition("=")[::2] for part in line.split(" "))
        is_other = client.get("id") != mine and client.get("name") != _WATCHER_NAME
        if is_other and int(client.get("idle", 0)) < _SPOKE_LATELY:
            return True
    return False


def reach(folder: Path, socket_path: str, period: float) -> Connection | None:
    """Wait until the server listens, and connect to it; return None if no server lives."""
    while True:
        try:
            connection = Connection(socket_path, ASK_LIMIT)
            if not connection.ask(f"CLIENT SETNAME {_WATCHER_NAME}").startswith(b"-ERR"):
                return connection  # also if the server is loading data, or busy
            connection.close()
        except NO_SERVER:
            if not lives(folder):
                return None
        except OSError:
            pass
        time.sleep(min(period, _RETRY))  # a server lives, and is starting, ending, or has too many clients


if __name__ == "__main__":
    try:
        watch(
            Path(sys.argv[1]),
            sys.argv[2],
            Lock(Path(sys.argv[1], WATCHER), inherited=int(sys.argv[3])),
            float(sys.argv[4]),
        )
    except OSError:
        pass  # the folder cannot be used any more, and there is no caller to report to
    os._exit(0)
