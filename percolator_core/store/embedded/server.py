"""The private redis-server behind ``embedded:FOLDER``.

The server belongs to the folder, not to a process. The first user starts the server, later users join it,
and the user that leaves last stops it; the data stays. The server listens on a Unix socket only. Four locks
(``flock``) in the folder coordinate this. The kernel releases the locks of a process that ends, so a SIGKILL
leaves nothing to clean up::

    redis.mutex    held while the server is started or stopped
    redis.users    shared by all users; a user that gets the lock exclusively is the only one left
    redis.server   inherited by the server and held by it alone: while the lock is free, no server lives
    redis.watcher  inherited and held by the watcher, which ends the server after all users were killed

The folder must be on a local disk: network file systems support neither Unix sockets nor inherited locks.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.runtime import process
from percolator_core.store.embedded import shutdown
from percolator_core.store.embedded.folder import explained, known_socket_path, prepare
from percolator_core.store.embedded.locks import MUTEX, USERS, WATCHER, Lock, no_server
from percolator_core.store.embedded.shutdown import Connection, Ending
from percolator_core.store.embedded.start import died, start, start_watcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

# Limits in seconds. A server that reports that it loads data or runs a long script gets more time.
QUIET_LIMIT = 30.0
_LOADING_LIMIT = 600.0
_MUTEX_LIMIT = _LOADING_LIMIT + QUIET_LIMIT + shutdown.STOP_LIMIT
_PAUSE, _LONGEST_PAUSE = 0.001, 0.02
_WATCHER_LIMIT = 1.0

_log = logging.getLogger(__name__)

_starting: set[tuple[int, int, Path]] = set()
"""The process, thread and folder of each server that is being started or stopped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a server: ``ready``, ``working`` (it lives, but cannot serve yet), or neither."""

    ready: bool = False
    working: bool = False
    pid: int | None = None
    version: str = ""
    words: str = "it does not answer"


class EmbeddedServer:
    """One user of the server of a folder. `join` makes the user, and `leave` ends it.

    ``socket_path``, ``pid`` and ``version`` (the version of Redis whose commands the server knows) describe
    the server that this user has joined; `ensure_running` updates them. A process that dies without `leave`
    is no user any more. After the death of all users, the watcher process stops the server within about ten
    seconds (`percolator_core.store.embedded.watcher`).

    A forked child is no user: the server does not wait for it, and its `leave` does nothing. A child that
    uses the store calls `ensure_running`, which makes the child a user.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket_path = ""
        self.pid = 0
        self.version = ""
        self._users: Lock | None = None
        self._process = 0

    @classmethod
    def join(cls, folder: Path) -> Self:
        """Start the server kept in ``folder``, or join it, and wait until it is ready.

        A missing folder is created. All paths of a folder (relative, through a symlink) mean the same store.

        Raises:
            ConfigurationError: the folder or the redis-server here cannot be used.
            StoreUnavailable: the server does not start, or does not answer.
        """
        server = cls(Path(os.path.realpath(folder)))
        with explained(server.folder):
            prepare(server.folder)
            server._enter()
        return server

    def ensure_running(self) -> None:
        """Start the server again if it has died, and wait until it is ready. For use after a lost connection.

        Raises as `join`, and StoreUnavailable if this user has left or the folder belongs to another store.
        """
        if self._users is None:
            raise StoreUnavailable(f"the embedded store in {self.folder} was closed: connect again")
        with explained(self.folder):
            if self._process != process.pid:
                self._enter()
                return
            with self._mutex():
                self.check_folder()
                self.serve()

    def check_folder(self) -> None:
        """Raise StoreUnavailable if the folder was replaced by another store since this user has joined."""
        if self._users is not None and not self._users.is_file(self.folder / USERS):
            raise StoreUnavailable(
                f"{self.folder} was replaced by another store since this one was connected: connect again"
            )

    def leave(self) -> None:
        """Stop the server if this was its last user; its state stays. Idempotent.

        Raises:
            StoreUnavailable: the server may have ended before its log was on disk, so acknowledged commits
                may be lost. Or the server cannot write its log, so these commits will be lost unless space on
                the disk is freed soon. In each case, this user has left.
        """
        if self._users is None or self._process != process.pid:
            return
        problem = ""
        try:
            with self._mutex():
                problem = self._depart()
        except (OSError, PercolatorError) as error:
            _log.warning("could not leave the embedded store in %s: %s", self.folder, error)
        finally:
            # Leave also if the mutex was not taken, for example because the folder was removed.
            users, self._users = self._users, None
            if users is not None:
                users.close()
        if problem:
            _log.error("%s", problem)
            raise StoreUnavailable(problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with own_error_first(error):
            self.leave()

    def __repr__(self) -> str:
        return f"EmbeddedServer({str(self.folder)!r}, pid={self.pid}, version={self.version!r})"

    @contextmanager
    def _mutex(self) -> Iterator[None]:
        here = process.pid, threading.get_ident(), self.folder
        if here in _starting:
            # This call is in a signal handler or finalizer, and would wait for the call that it interrupts.
            raise StoreUnavailable(
                f"the server in {self.folder} is being started or stopped by the call that this call "
                "interrupts: try again later"
            )
        lock = Lock(self.folder / MUTEX)
        try:
            _starting.add(here)
            until = time.monotonic() + _MUTEX_LIMIT
            while not lock.take(fcntl.LOCK_EX):
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        f"another process has been starting or stopping the server in {self.folder} "
                        f"for {_MUTEX_LIMIT:.0f} s: end it and try again"
                    )
                time.sleep(_PAUSE)
            yield
        finally:
            _starting.discard(here)
            lock.close()

    def _enter(self) -> None:
        """Become a user first, so that no other user stops the server, then start or find it."""
        with self._mutex():
            self.check_folder()
            users = Lock(self.folder / USERS)
            if not users.take(fcntl.LOCK_SH):
                users.close()
                raise StoreUnavailable(f"{self.folder}/redis.users is locked: end the program that locks it")
            self._users, self._process = users, process.pid
            try:
                self.serve()
            except BaseException:
                # Leave no server without a user, also after Ctrl-C while a large state loads.
                if problem := self._depart():
                    _log.error("%s", problem)
                raise

    def _depart(self) -> str:
        """Stop being a user; the last one stops the server. The caller holds the mutex.

        Return a message if the state is at risk, else "".
        """
        users, self._users = self._users, None
        if users is None:
            return ""
        try:
            if not users.is_file(self.folder / USERS):
                _log.warning("%s was removed while its redis-server, process %d, ran", self.folder, self.pid)
                return ""
            return self._stop() if users.take(fcntl.LOCK_EX) else self._risk()
        finally:
            users.close()

    def serve(self) -> None:
        """Wait until the server answers; start it if none lives. The caller holds the mutex."""
        self.socket_path = known_socket_path(self.folder)
        started, logged, pause = False, 0, _PAUSE
        now = time.monotonic()
        loading_until, quiet_until = now + _LOADING_LIMIT, now + QUIET_LIMIT
        while not (answer := ask(self.socket_path)).ready:
            now = time.monotonic()
            if answer.working:
                quiet_until = now + QUIET_LIMIT
            elif (lock := no_server(self.folder)) is not None:
                # Only the lock proves that no server lives: two servers on one state would destroy it.
                try:
                    if started:
                        raise died(self.folder, logged)
                    logged = start(self.folder, lock)
                    # Do not wait for a ready server: it may load for long, and this user may be killed first.
                    start_watcher(self.folder, self.socket_path)
                finally:
                    lock.close(release=False)
                started = True
            if now > min(loading_until, quiet_until):
                raise StoreUnavailable(
                    f"the redis-server of {self.folder} lives but is not ready ({answer.words}): "
                    f"see {self.folder}/redis.log, and end it if it hangs"
                )
            time.sleep(pause)
            pause = min(pause * 1.2, _LONGEST_PAUSE)
        self.pid, self.version = answer.pid or 0, answer.version
        start_watcher(self.folder, self.socket_path)

    def _stop(self) -> str:
        """Shut the server down and wait for its end. The caller holds the mutex and is the last user.

        Return a message if the state is at risk, else "".
        """
        self.socket_path = known_socket_path(self.folder)
        ending = shutdown.stop(self.folder, self.socket_path)
        if ending is Ending.NOT_OURS:
            _log.warning("the process at %s is not ours and goes on", self.socket_path)
        elif ending is Ending.STILL_LIVES:
            _log.warning("the redis-server of %s, process %d, does not stop", self.folder, self.pid)
        else:
            self._await_watcher()
            Path(self.socket_path).unlink(missing_ok=True)  # the link, or the socket of a killed server
        if ending is not Ending.NOT_IN_ORDER:
            return ""
        return (
            f"the redis-server of {self.folder} may have ended before its log was on disk: then the commits "
            "that were acknowledged last are lost. See redis.log, free space if the disk is full, connect "
            "again, and repeat what is missing"
        )

    def _await_watcher(self) -> None:
        """Wait for the end of the watcher, so that no process of this library has the folder open."""
        until = time.monotonic() + _WATCHER_LIMIT
        with suppress(OSError):  # the folder was removed, or cannot be written in
            lock = Lock(self.folder / WATCHER)
            while not lock.take(fcntl.LOCK_EX) and time.monotonic() < until:
                time.sleep(_PAUSE)
            lock.close()

    def _risk(self) -> str:
        """Return a message if the server, which other users keep running, cannot write its log; else ""."""
        try:
            with Connection(known_socket_path(self.folder), shutdown.ASK_LIMIT) as connection:
                if not shutdown.cannot_write(connection.ask("INFO")):
                    return ""
        except OSError:
            return ""  # the other users find out
        return (
            f"the redis-server of {self.folder} cannot write its log, so the commits that were acknowledged "
            "last are only in memory: free disk space before its other users end"
        )


@contextmanager
def own_error_first(error: BaseException | None) -> Iterator[None]:
    """For a block that closes a store: suppress StoreUnavailable if ``error`` is already being raised.

    `EmbeddedServer.leave` has logged the suppressed error.
    """
    try:
        yield
    except StoreUnavailable:
        if error is None:
            raise


def ask(path: str) -> Answer:
    """Ask the server at a socket for its state."""
    try:
        with Connection(path, shutdown.ASK_LIMIT) as connection:
            pong, info = connection.ask("PING"), connection.ask("INFO")
    except OSError as error:
        return Answer(words=f"it does not answer: {error}")
    pid = shutdown.field(info, "process_id")
    return Answer(
        ready=pong == b"+PONG" and pid.isdecimal(),
        working=pong.startswith((b"-LOADING", b"-BUSY")),
        pid=int(pid) if pid.isdecimal() else None,
        version=shutdown.field(info, "redis_version"),
        words=f"it answers {pong.decode(errors='replace')}",
    )
