"""The orderly shutdown of an embedded server, and a note of it, which the next start reads.

The watcher imports this module too (`percolator_core.store.embedded.watcher`), so it has few imports.
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
        """Return the reply to a command: a string, or the unchanged line of a status or an error."""
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
        """Wait for ``seconds``, with no reply due; return False as soon as the connection is closed."""
        return not select.select([self._socket], [], [], seconds)[0]

    def close(self) -> None:
        """Close the connection."""
        self._replies.close()
        self._socket.close()

    def __enter__(self) -> Connection:  # noqa: PYI034 - to import typing takes the watcher more memory
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def field(info: bytes, name: str) -> str:
    """Return the value of a field in a reply to INFO; "" if there is none."""
    value = (b"\n" + info).partition(b"\n%b:" % name.encode())[2].partition(b"\r\n")[0]
    return value.decode(errors="replace")


def pid_in_file(folder: Path) -> int | None:
    """Return the process id that the folder's server wrote at its start; None if there is none."""
    try:
        return int((folder / "redis.pid").read_text())
    except (OSError, ValueError):
        return None


# A folder's server has a history with a random name. The folder's next server continues the history, and
# keeps its name, unless the stop may have lost writes.

_CONF = "redis.history-{}.conf"
_NOTE = "redis.in-order"


def conf_of(history: str) -> str:
    """Return the name of the settings file of a server with that history; INFO has the name."""
    return _CONF.format(history)


def history_of(info: bytes) -> str:
    """Return the name of a server's history from its reply to INFO; "" if the server is not embedded."""
    before, after = (part.encode() for part in ("/" + _CONF).split("{}"))
    name, found, _ = info.rpartition(before)[2].partition(after + b"\r\n")
    return name.decode() if found and name.isalnum() else ""


def unbroken_history(folder: Path) -> str:
    """Return the name of the previous server's history; "" unless that server surely left a complete log."""
    try:
        noted = (folder / _NOTE).read_bytes()
    except FileNotFoundError:
        return ""
    history = noted.partition(b"\n")[0].decode(errors="replace")
    return history if history.isalnum() and noted == _note(folder, history) else ""


def has_log(folder: Path) -> bool:
    """Return True if a server has written in the folder before."""
    return bool(_logs(folder))


def note_order(folder: Path, history: str) -> None:
    """Record that the server with that history has ended with a complete log."""
    try:
        (folder / _NOTE).write_bytes(_note(folder, history))
    except OSError:
        pass  # if the note is missing or incomplete, the next start begins a new history


def forget_order(folder: Path) -> None:
    """Remove the note, also from the disk: after a power failure it must not be valid for later writes."""
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
    # The note has the sizes of the log files, so it is invalid after another program has changed a size.
    lines = [f"{path.name} {path.stat().st_size}\n" for path in _logs(folder)]
    return "".join([history + "\n", *lines]).encode()


# The shutdown.


class Ending(Enum):
    """The result of a stop."""

    IN_ORDER = "all that was written is in the log, on disk"
    NOT_IN_ORDER = "it ended, and what was written last may not be in the log"
    DEAD_BEFORE = "no server lived"
    CANNOT_WRITE = "it cannot write its log, so it was not stopped"
    NOT_OURS = "another program's server answers, and was not stopped"
    STILL_LIVES = "it does not stop"


def cannot_write(info: bytes) -> bool:
    """Return True if the reply to INFO says that the newest attempt to write the log failed."""
    return field(info, "aof_last_write_status") == "err"


def stop(folder: Path, socket_path: str, *, keep_unwritten: bool = False) -> Ending:
    """Shut the folder's server down and wait for its end. The caller holds the mutex; no client is left.

    With ``keep_unwritten`` a server that cannot write its log is not stopped. Only this function notes an
    orderly stop: a server that ends in another way, say by SIGTERM, may silently fail to write its log.
    """
    until = time.monotonic() + STOP_LIMIT
    attempt = _Attempt(folder, socket_path, keep_unwritten=keep_unwritten)
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
    """One attempt to stop a server: it repeats the command SHUTDOWN until the server accepts it."""

    def __init__(self, folder: Path, socket_path: str, *, keep_unwritten: bool) -> None:
        self._folder = folder
        self._socket_path = socket_path
        self._keep_unwritten = keep_unwritten
        self._begun = self._obeyed = self._breaks_off = False
        self._history = ""

    def ask(self) -> Ending | None:
        """Order the shutdown, unless the server obeys already. Return why it must not be stopped, or None."""
        if self._obeyed:
            return None
        try:
            with Connection(self._socket_path, ASK_LIMIT) as connection:
                info = connection.ask("INFO")
                pid = field(info, "process_id")
                if not pid:
                    return None  # it is busy for a while
                if int(pid) != pid_in_file(self._folder):
                    return Ending.NOT_OURS
                if self._keep_unwritten and cannot_write(info):
                    return Ending.CANNOT_WRITE
                self._begun, self._history = True, history_of(info)
                self._breaks_off, self._obeyed = order_shutdown(connection)
        except OSError:
            pass  # it has ended, or is slow
        return None

    def conclude(self) -> Ending:
        """Return how the server has ended, and record an orderly end."""
        if not self._begun:
            return Ending.DEAD_BEFORE
        # The server removes its pid file at the very end.
        if not self._breaks_off or (self._folder / "redis.pid").exists():
            return Ending.NOT_IN_ORDER
        if self._history:
            note_order(self._folder, self._history)
        return Ending.IN_ORDER


def order_shutdown(connection: Connection) -> tuple[bool, bool]:
    """Order the server to shut down. Return two flags.

    The first is True if a failed write of the log stops the shutdown. The second is True if the server obeys.

    With ``everysec`` the server would end normally even if the rest of its log did not fit on the disk. With
    ``always`` it goes on running in that case. NOSAVE concerns only snapshots: the log is still written.
    """
    breaks_off = connection.ask("CONFIG SET appendfsync always") == b"+OK"
    try:
        return breaks_off, not connection.ask("SHUTDOWN NOSAVE").startswith(b"-")
    except OSError:
        return breaks_off, True  # it has ended, or is about to
