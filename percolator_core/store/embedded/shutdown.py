"""The orderly shutdown of an embedded server, and the note of it by which the next start knows the history.

The watcher imports this module too (`percolator_core.store.embedded.watcher`), so the imports stay few.
"""

from __future__ import annotations

import os
import select
import socket
import time
from enum import Enum
from pathlib import Path

from .locks import no_server  # noqa: TID252 - the watcher imports this package under another name

ASK_LIMIT = 1.0
STOP_LIMIT = 30.0
_PAUSE = 0.001


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
                self._breaks_off, self._obeyed = order_shutdown(connection)
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


def order_shutdown(connection: Connection) -> tuple[bool, bool]:
    """Tell the server to end: whether it breaks off where it cannot write its log, and whether it obeys.

    With ``everysec`` it would end in order, and without a word, also when the rest of its log does not fit on
    the disk. With ``always`` it breaks off then. NOSAVE is about snapshots: the log is written all the same.
    """
    breaks_off = connection.ask("CONFIG SET appendfsync always") == b"+OK"
    try:
        return breaks_off, not connection.ask("SHUTDOWN NOSAVE").startswith(b"-")
    except OSError:
        return breaks_off, True  # it ended while we spoke, or works on it
