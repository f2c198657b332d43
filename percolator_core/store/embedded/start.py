"""Starts the processes of an embedded store: the redis-server and its watcher."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.store.embedded import shutdown, watcher
from percolator_core.store.embedded.binary import OLDEST_SERVER, find_binary
from percolator_core.store.embedded.folder import settings, write
from percolator_core.store.embedded.locks import WATCHER, Lock

_WATCH_PERIOD = 5.0

_log = logging.getLogger(__name__)


def start(folder: Path, lock: Lock) -> int:
    """Start a server that inherits ``lock``; return the size of its log file before the start."""
    oldest, needed_by = OLDEST_SERVER, "an embedded store"
    if (folder / "appendonlydir").is_dir():
        # Redis 6.2 would ignore appendonlydir and start empty.
        oldest, needed_by = (7, 0), f"the state in {folder}, which Redis 7 or newer wrote,"
    binary = find_binary(oldest, needed_by)
    write(folder / "redis.conf", settings(folder))
    history = shutdown.unbroken_history(folder)
    if not history:
        if shutdown.has_log(folder):
            _log.warning(
                "the redis-server of %s was not shut down properly the last time: what it acknowledged last "
                "may be lost, and transactions that began before this start are refused",
                folder,
            )
        history = uuid.uuid4().hex
    # The name of the settings file contains the name of the history. INFO shows the file's name, so every
    # client can read the name of the history. The file is removed as soon as the server has read it, so that
    # no other server is started with this history.
    conf = folder / shutdown.conf_of(history)
    conf.unlink(missing_ok=True)
    conf.symlink_to("redis.conf")
    try:
        return _spawn(folder, [str(binary.path), str(conf)], lock)
    finally:
        conf.unlink(missing_ok=True)


def _spawn(folder: Path, command: list[str], lock: Lock) -> int:
    """Start the server's process, and wait until it has become a daemon. Return what `start` returns."""
    log = folder / "redis.log"
    logged = log.stat().st_size if log.exists() else 0
    # From now on the server may write, so the note of the previous stop is not valid any more.
    shutdown.forget_order(folder)
    # The server becomes a daemon, and its first process, which is started here, ends, so that no zombie
    # remains. The first process has a session of its own, so that Ctrl-C at the terminal does not reach it.
    first = subprocess.run(
        command,
        cwd=folder,
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
        raise died(folder, logged, first.stdout + first.stderr)
    return logged


def died(folder: Path, logged: int, printed: str = "") -> PercolatorError:
    """Return the error for a server that ended at its start, with the last line of its log or output."""
    log = folder / "redis.log"
    words = printed
    if log.exists():
        with log.open("rb") as file:
            file.seek(logged)
            words += file.read().decode(errors="replace")
    lines = [line for line in words.splitlines() if line.strip()] or ["it left no word in its log"]
    last = re.sub(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ . ", "", lines[-1]).rstrip(" .")
    if "RDB format version" in words:
        return ConfigurationError(
            f"the state in {folder} was written by a newer redis-server than the one here ({last}): "
            "install that version or name it in PERCOLATOR_REDIS_SERVER"
        )
    if os.strerror(errno.ENOSPC) in words:
        return StoreUnavailable(f"no space is left for the state in {folder} ({last}): free some")
    return StoreUnavailable(f"the redis-server of {folder} ended at its start ({last}): see {log}")


def start_watcher(folder: Path, socket_path: str) -> None:
    """Start the watcher unless it runs already. The watcher ends the server after all users were killed.

    Call it with the mutex held, and while the server lives.
    """
    try:
        lock = Lock(folder / WATCHER)
        try:
            if not sys.executable or not lock.take(fcntl.LOCK_EX):
                return
            command = [sys.executable, "-I", "-S", watcher.__file__]
            # A link to the socket may disappear with its TMPDIR. So the watcher runs in the server's folder,
            # and uses the socket itself.
            here = "/"
            if Path(socket_path).parent != folder:
                here, socket_path = str(folder), "redis.sock"
            arguments = [str(folder), socket_path, str(lock.fd), str(_WATCH_PERIOD)]
            # The shell ends at once, so that no process has the watcher as a child to wait for.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *command, *arguments],
                cwd=here,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock.fd,),
                start_new_session=True,
                check=False,
            )
        finally:
            lock.close(release=False)
    except OSError as error:
        _log.warning("the redis-server of %s runs on when this process is killed: %s", folder, error)
