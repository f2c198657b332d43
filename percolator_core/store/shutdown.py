"""How the server of an embedded store is shut down in order, and the watcher that ends it for killed users.

The watcher is this file, run as a process of its own. It imports only a few modules of Python, so that it is
small and goes on when the package is replaced. It waits on a connection to the server, which ends with the
server, and looks every few seconds for users. It finds users by their locks, not by clocks or process ids,
and ends the server only under the mutex that every user takes to join. Clients of ``unix://`` hold no lock,
so it looks at the time of their last command, and looks twice: the computer may have slept.
A watcher that was killed is replaced by the next process that joins.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import time
from enum import Enum
from pathlib import Path

MUTEX, USERS, SERVER, WATCHER = "redis.mutex", "redis.users", "redis.server", "redis.watcher"
"""The files that are locked, see `percolator_core.store.embedded`."""

ASK_LIMIT = 1.0
STOP_LIMIT = 30.0
_SPOKE_LATELY = 30
"""Seconds. A connection that was used since then belongs to a client that lives."""
_WATCHER_NAME = "percolator-watcher"
"""How watchers name their connections: they are no clients."""
_PAUSE = 0.001
_RETRY = 0.1

_ENDED = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError)
"""How a socket says that no server listens there any more."""

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


class Connection:
    """A connection to the server for a few commands. Every failure is an OSError."""

    def __init__(self, path: str, limit: float) -> None:
        """``limit`` is how many seconds an answer may take."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(limit)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        self._replies = self._socket.makefile("rb")

    def ask(self, command: str) -> bytes:
        """The reply to a command: a string, or the line of a status or an error as it is."""
        self._socket.sendall(command.encode() + b"\r\n")
        line = self._replies.readline()
        if not line.startswith(b"$"):
            if not line.endswith(b"\r\n"):
                raise ConnectionError("it broke off in the middle of an answer")
            return line[:-2]
        try:
            length = int(line[1:])
        except ValueError:
            raise ConnectionError("it does not speak the protocol of Redis") from None
        reply = self._replies.read(length + 2)
        if len(reply) < length + 2:
            raise ConnectionError("it broke off in the middle of an answer")
        return reply[:-2]

    def stays_quiet(self, seconds: float) -> bool:
        """Wait, while nothing is under way; False as soon as the server hangs up."""
        return not select.select([self._socket], [], [], seconds)[0]

    def close(self) -> None:
        """Hang up."""
        self._replies.close()
        self._socket.close()

    def __enter__(self) -> Connection:  # noqa: PYI034 - to import typing takes the watcher more memory
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def field(info: bytes, name: str) -> str:
    """The value of a field in a reply to INFO; "" where there is none."""
    value = (b"\n" + info).partition(b"\n%b:" % name.encode())[2].partition(b"\r\n")[0]
    return value.decode(errors="replace")


def pid_in_file(folder: Path) -> int | None:
    """The process that the folder's server said it is when it started."""
    try:
        return int((folder / "redis.pid").read_text())
    except (OSError, ValueError):
        return None


# The history of a folder's server: a name that goes on over every stop that lost nothing.

_CONF = "redis.history-{}.conf"
_NOTE = "redis.in-order"


def conf_of(history: str) -> str:
    """The name of the settings of a server with that history, by which the server tells it in INFO."""
    return _CONF.format(history)


def history_of(info: bytes) -> str:
    """The history of the server that answered INFO so; "" of a server that is not embedded."""
    before, after = (part.encode() for part in ("/" + _CONF).split("{}"))
    name, found, _ = info.rpartition(before)[2].partition(after + b"\r\n")
    return name.decode() if found and name.isalnum() else ""


def unbroken_history(folder: Path) -> str:
    """The history that the folder's last server had, if all of it is in the log; "" if that is not known."""
    try:
        noted = (folder / _NOTE).read_bytes()
    except FileNotFoundError:
        return ""
    history = noted.partition(b"\n")[0].decode(errors="replace")
    return history if history.isalnum() and noted == _note(folder, history) else ""


def has_log(folder: Path) -> bool:
    """Whether a server has written in the folder before."""
    return bool(_logs(folder))


def note_order(folder: Path, history: str) -> None:
    """Note that the server with that history has ended, with all of it in the log."""
    try:
        (folder / _NOTE).write_bytes(_note(folder, history))
    except OSError:
        pass  # without the note, or with half of it, the next start only knows less than it could


def forget_order(folder: Path) -> None:
    """Take the note away, also from the disk: after a power cut it must not speak for what came since."""
    try:
        (folder / _NOTE).unlink()
    except FileNotFoundError:
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _logs(folder: Path) -> list[Path]:
    return sorted([*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*")])


def _note(folder: Path, history: str) -> bytes:
    # With the sizes of the log: what somebody else writes there, or cuts off, is not spoken for.
    lines = [f"{path.name} {path.stat().st_size}\n" for path in _logs(folder)]
    return "".join([history + "\n", *lines]).encode()


# The end.


class Ending(Enum):
    """How a stop turned out."""

    IN_ORDER = "all that was written is in the log, on disk"
    NOT_IN_ORDER = "it ended, and what was written last may not be in the log"
    DEAD_BEFORE = "no server lived"
    CANNOT_WRITE = "it cannot write its log, and was left alone for that"
    NOT_OURS = "another program's server answers, and was left alone"
    STILL_LIVES = "it does not stop"


def cannot_write(info: bytes) -> bool:
    """Whether the server that answered INFO so has failed to write its log, the last time that it tried."""
    return field(info, "aof_last_write_status") == "err"


def stop(
    folder: Path,
    socket_path: str,
    *,
    keep_unwritten: bool = False,
    limit: float = STOP_LIMIT,
    ask_limit: float = ASK_LIMIT,
) -> Ending:
    """Shut the folder's server down and wait for its end. The caller holds the mutex, and nobody uses it.

    With ``keep_unwritten`` a server that cannot write its log goes on. The note of a stop in order is made
    here, and nowhere else: a server that others end, say with SIGTERM, may fail to write its log in silence.
    """
    until = time.monotonic() + limit
    attempt = _Attempt(folder, socket_path, ask_limit, keep_unwritten=keep_unwritten)
    while (lock := no_server(folder)) is None:
        refused = attempt.ask()
        if refused is not None:
            return refused
        if time.monotonic() > until:
            return Ending.STILL_LIVES
        time.sleep(_PAUSE)
    try:
        return attempt.conclude()
    finally:
        lock.close()


class _Attempt:
    """One stop: what the server was told, until it obeys."""

    def __init__(self, folder: Path, socket_path: str, ask_limit: float, *, keep_unwritten: bool) -> None:
        self._folder = folder
        self._socket_path = socket_path
        self._limit = ask_limit
        self._keep_unwritten = keep_unwritten
        self._begun = self._obeyed = self._breaks_off = False
        self._history = ""

    def ask(self) -> Ending | None:
        """Tell the server to end, unless it has heard; why it is left alone, if it is."""
        if self._obeyed:
            return None
        try:
            with Connection(self._socket_path, self._limit) as connection:
                info = connection.ask("INFO")
                pid = field(info, "process_id")
                if not pid:
                    return None  # it is busy, for a while
                if int(pid) != pid_in_file(self._folder):
                    return Ending.NOT_OURS
                if self._keep_unwritten and cannot_write(info):
                    return Ending.CANNOT_WRITE
                self._begun, self._history = True, history_of(info)
                self._breaks_off, self._obeyed = _shut_down(connection)
        except OSError:
            pass  # it ended while we spoke, or is slow
        return None

    def conclude(self) -> Ending:
        """How the server ended, which it has; the note of a stop in order is made."""
        if not self._begun:
            return Ending.DEAD_BEFORE
        # It removes its pid file last of all.
        if not self._breaks_off or (self._folder / "redis.pid").exists():
            return Ending.NOT_IN_ORDER
        if self._history:
            note_order(self._folder, self._history)
        return Ending.IN_ORDER


def no_server(folder: Path) -> Lock | None:
    """The server's lock, held, if no server lives. The caller holds the mutex."""
    lock = Lock(folder / SERVER)
    if lock.take(fcntl.LOCK_EX):
        return lock
    lock.close(release=False)
    return None


def _shut_down(connection: Connection) -> tuple[bool, bool]:
    """Tell the server to end: whether it breaks off where it cannot write its log, and whether it obeys.

    With ``everysec`` it would end in order, and without a word, also when the rest of its log does not fit on
    the disk. With ``always`` it breaks off then. NOSAVE is about snapshots: the log is written all the same.
    """
    breaks_off = connection.ask("CONFIG SET appendfsync always") == b"+OK"
    try:
        return breaks_off, not connection.ask("SHUTDOWN NOSAVE").startswith(b"-")
    except OSError:
        return breaks_off, True  # it ended while we spoke, or works on it


# The watcher.


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
        except _ENDED:
            pass  # the folder was removed: nobody can join
        if not users.take(fcntl.LOCK_EX):
            return False
        try:
            if _others_speak(connection):
                return False
            if end and users.is_file(folder / USERS):
                stop(folder, socket_path, keep_unwritten=True)
            elif end:
                _shut_down(connection)  # the socket was removed with the folder
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
        except _ENDED:
            if not _lives(folder):
                return None
        except OSError:
            pass
        time.sleep(min(period, _RETRY))  # a server lives, and is full, starting or ending


def _lives(folder: Path) -> bool:
    """Whether a server holds the folder's lock."""
    try:
        lock = Lock(folder / SERVER, create=False)
    except _ENDED:
        return False
    lives = not lock.take(fcntl.LOCK_SH)
    lock.close()
    return lives


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
