"""The private redis-server behind ``embedded:FOLDER``.

The server belongs to the folder, not to a process: the first user starts it, later ones join it, the last
one to leave stops it, and the state stays. It listens on a Unix socket only. Three locks (``flock``) in the
folder hold this together. The kernel frees them with their holder, so a SIGKILL leaves nothing to clean up::

    redis.mutex    held while the server is started or stopped
    redis.users    shared, by each user; whoever gets it for itself alone is the last
    redis.server   inherited by the server and held by it alone: free means that no server lives

The folder has to be on a local disk: network file systems have neither Unix sockets nor locks that a child
inherits.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from percolator_core import process
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.store.binary import OLDEST_SERVER, find_binary
from percolator_core.store.folder import (
    Lock,
    explained,
    known_socket_path,
    new_socket_path,
    pid_in_file,
    prepare,
    settings,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

# Limits in seconds. A server that loads a large state, or finishes a long script, says so: it gets longer.
_ASK_LIMIT = 1.0
_QUIET_LIMIT = 30.0
_LOADING_LIMIT = 600.0
_STOP_LIMIT = 30.0
_MUTEX_LIMIT = _LOADING_LIMIT + _QUIET_LIMIT + _STOP_LIMIT
_PAUSE, _LONGEST_PAUSE = 0.001, 0.02

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a server says of itself: ``ready``, ``working`` (it lives but serves nobody yet), or neither."""

    ready: bool = False
    working: bool = False
    pid: int | None = None
    version: str = ""
    words: str = "it does not answer"


CONF_AFTER_ORDER = "redis.after-order.conf"
"""The name of the settings of a server whose predecessor ended in good order.

The server tells this name to whoever asks for its facts: so every client knows that no timestamp was lost,
and the oracle need not jump.
"""


class EmbeddedServer:
    """One user's membership in the server of a folder; made by `join`, ended by `leave`.

    ``socket_path``, ``pid`` and ``version`` (the version of Redis whose commands it knows) are those of the
    server when it was last seen; `ensure_running` renews them. A user that dies without leaving is not
    counted any more, and the next one to leave stops the server.

    A forked child is no user: the server does not wait for it and its `leave` does nothing. A child that
    wants to go on with the store calls `ensure_running`, which joins on its own account.
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

        The folder is made if it is missing. Every spelling of it (relative, through a symlink) is the same.

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
        """Start the server again if it has died, and wait until it is ready.

        To be called after a lost connection; ``socket_path`` may be another afterwards.

        Raises:
            ConfigurationError: as `join`.
            StoreUnavailable: as `join`; or this user has left.
        """
        if self._users is None:
            raise StoreUnavailable(f"the embedded store in {self.folder} was closed: connect again")
        with explained(self.folder):
            if self._process != process.pid:
                self._enter()
                return
            with self._mutex():
                self._serve()

    def leave(self) -> None:
        """Stop the server if this was its last user; its state stays. Idempotent; raises nothing."""
        if self._users is None or self._process != process.pid:
            return
        try:
            with self._mutex():
                self._depart()
        except (OSError, PercolatorError) as error:
            _log.warning("could not leave the embedded store in %s: %s", self.folder, error)
        finally:
            # Without the mutex, say because the folder was removed, at least the lock goes.
            users, self._users = self._users, None
            if users is not None:
                users.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"EmbeddedServer({str(self.folder)!r}, pid={self.pid}, version={self.version!r})"

    @contextmanager
    def _mutex(self) -> Iterator[None]:
        lock = Lock(self.folder / "redis.mutex")
        try:
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
            lock.close()

    def _enter(self) -> None:
        """Become a user, first of all, so that nobody stops the server meanwhile."""
        with self._mutex():
            users = Lock(self.folder / "redis.users")
            if not users.take(fcntl.LOCK_SH):
                users.close()
                raise StoreUnavailable(f"{self.folder}/redis.users is locked by another program: end that")
            self._users, self._process = users, process.pid
            try:
                self._serve()
            except BaseException:
                # Ctrl-C while a large state loads, too: no server is left behind that nobody uses.
                self._depart()
                raise

    def _depart(self) -> None:
        """Cease to be a user, and stop the server if there is no other. The caller holds the mutex."""
        users, self._users = self._users, None
        if users is None:
            return
        try:
            if not users.is_file(self.folder / "redis.users"):
                _log.warning("%s was removed while its redis-server, process %d, ran", self.folder, self.pid)
            elif users.take(fcntl.LOCK_EX):
                self._stop()
        finally:
            users.close()

    def _serve(self) -> None:
        """Wait until the server answers; start it if none lives. The caller holds the mutex."""
        self.socket_path = known_socket_path(self.folder)
        started, logged, pause = False, 0, _PAUSE
        now = time.monotonic()
        loading_until, quiet_until = now + _LOADING_LIMIT, now + _QUIET_LIMIT
        while not (answer := _ask(self.socket_path)).ready:
            now = time.monotonic()
            if answer.working:
                quiet_until = now + _QUIET_LIMIT
            elif (lock := self._no_server()) is not None:
                # The lock, not the silence, tells that no server lives: two on one state would destroy it.
                try:
                    if started:
                        raise self._died(logged, "")
                    logged = self._start(lock)
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

    def _no_server(self) -> Lock | None:
        """The server's lock, held, if no server lives. The caller holds the mutex."""
        lock = Lock(self.folder / "redis.server")
        if lock.take(fcntl.LOCK_EX):
            return lock
        lock.close(release=False)
        return None

    def _start(self, lock: Lock) -> int:
        """Spawn a server that inherits ``lock``; returns where its words in the log begin."""
        oldest, needed_by = OLDEST_SERVER, "an embedded store"
        if (self.folder / "appendonlydir").is_dir():
            # Redis 6.2 would not look in there and would start empty.
            oldest, needed_by = (7, 0), f"the state in {self.folder}, which Redis 7 or newer wrote,"
        binary = find_binary(oldest, needed_by)
        self.socket_path = new_socket_path(self.folder)
        # Redis removes its pid file when it has ended in good order, with its log written out.
        in_order = not (self.folder / "redis.pid").exists()
        conf = self.folder / (CONF_AFTER_ORDER if in_order else "redis.conf")
        write(conf, settings(self.folder, self.socket_path))
        log = self.folder / "redis.log"
        logged = log.stat().st_size if log.exists() else 0
        # The server makes itself a daemon and this first process of it ends: no zombie is left to us. A
        # session of its own keeps the terminal's Ctrl-C away from the start.
        first = subprocess.run(
            [binary.path, conf],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            pass_fds=(lock.fd,),
            start_new_session=True,
            umask=0o077,
            check=False,
        )
        if first.returncode:
            raise self._died(logged, first.stdout + first.stderr)
        return logged

    def _died(self, logged: int, printed: str) -> PercolatorError:
        log = self.folder / "redis.log"
        words = printed
        if log.exists():
            with log.open("rb") as file:
                file.seek(logged)
                words += file.read().decode(errors="replace")
        lines = [line for line in words.splitlines() if line.strip()] or ["it left no word in its log"]
        last = re.sub(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ . ", "", lines[-1]).rstrip(" .")
        if "RDB format version" in words:
            return ConfigurationError(
                f"the state in {self.folder} was written by a newer redis-server than the one here ({last}): "
                "install that version or name it in PERCOLATOR_REDIS_SERVER"
            )
        if os.strerror(errno.ENOSPC) in words:
            return StoreUnavailable(f"no space is left for the state in {self.folder} ({last}): free some")
        return StoreUnavailable(f"the redis-server of {self.folder} ended at its start ({last}): see {log}")

    def _stop(self) -> None:
        """Shut the server down and wait for its end. The caller holds the mutex and is the last user."""
        self.socket_path = known_socket_path(self.folder)
        until = time.monotonic() + _STOP_LIMIT
        asked = False
        while (lock := self._no_server()) is None:
            answer = _ask(self.socket_path) if not asked else _Answer()
            if answer.pid is not None:
                if answer.pid != pid_in_file(self.folder):
                    _log.warning("process %d at %s is not ours and goes on", answer.pid, self.socket_path)
                    return
                asked = _shut_down(self.socket_path)
            if time.monotonic() > until:
                _log.warning("the redis-server of %s, process %d, does not stop", self.folder, self.pid)
                return
            time.sleep(_PAUSE)
        lock.close()


def _ask(path: str) -> _Answer:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ASK_LIMIT)
            connection.connect(path)
            connection.sendall(b"PING\r\nINFO server\r\n")
            with connection.makefile("rb") as replies:
                pong = replies.readline().strip()
                size = replies.readline()
                length = int(size[1:]) if size.startswith(b"$") else 0
                info = replies.read(length)
    except (OSError, ValueError) as error:
        return _Answer(words=f"it does not answer: {error}")
    if len(info) < length:
        return _Answer(words="it broke off in the middle of an answer")
    fields = dict(re.findall(r"(\w+):([^\r\n]*)", info.decode(errors="replace")))
    pid = int(fields["process_id"]) if "process_id" in fields else None
    return _Answer(
        ready=pong == b"+PONG" and pid is not None,
        working=pong.startswith((b"-LOADING", b"-BUSY")),
        pid=pid,
        version=fields.get("redis_version", ""),
        words=f"it answers {pong.decode(errors='replace')}",
    )


def _shut_down(path: str) -> bool:
    """Tell the server to end; False if it refuses.

    NOSAVE is about snapshots: the append-only log is written and synced all the same.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ASK_LIMIT)
            connection.connect(path)
            connection.sendall(b"SHUTDOWN NOSAVE\r\n")
            return not connection.recv(1).startswith(b"-")
    except OSError:
        return True  # it ended while we spoke, or works on it
