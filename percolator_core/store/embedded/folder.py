"""The folder of an embedded store: its mode, and the settings and the socket of the server."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from percolator_core.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOCKET_PATH_LIMIT = 103
"""Bytes. The limit of Linux is 107, that of macOS 103."""

COMPACT: Final = {
    "hash-max-ziplist-entries": 512,
    "hash-max-ziplist-value": 1024,
    "zset-max-ziplist-value": 512,
}
"""Settings of the server that keep rows and older versions compact in memory.

Redis 7 and Valkey accept these names of 6.2 as aliases of their listpack settings.
"""

_SETTINGS = """\
# Written anew at each start. The server was started by percolator for embedded:{folder}
port 0
unixsocket redis.sock
unixsocketperm 700
daemonize yes
dir {folder}
pidfile redis.pid
logfile redis.log
appendonly yes
appendfsync everysec
aof-load-truncated yes
save ""
maxmemory-policy noeviction
lua-time-limit 5000
"""
"""The names of the server's files are relative to its folder. So after the folder was moved or removed, the
server never writes to the files of another store at the old path.
"""
_OURS = ("redis.", "appendonly", "temp-", "dump.rdb")
"""Prefixes of the files that a server or this package creates in the folder."""


def settings(folder: Path) -> bytes:
    """Return the server's configuration file. Any name of a folder works, even one with newlines."""
    quoted = "".join(
        chr(byte) if 0x20 < byte < 0x7F and byte not in b"\"'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(folder)
    )
    compact = "".join(f"{name} {value}\n" for name, value in COMPACT.items())
    return (_SETTINGS.format(folder=f'"{quoted}"') + compact).encode()


def prepare(folder: Path) -> None:
    """Create the folder, for this user only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    if not mode & 0o077:
        return
    if all(path.name.startswith(_OURS) for path in folder.iterdir()):
        folder.chmod(0o700)
    elif mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"others may write in {folder}: name a folder for the store alone, say {folder}/state"
        )
    # A folder with other files in it, for example a project, keeps its mode: only our files are private.


def known_socket_path(folder: Path) -> str:
    """Return the path by which clients reach the folder's server.

    It is the path of the socket or, if that is too long, of a symbolic link to the socket in a private folder
    under ``TMPDIR``. A missing link is created here.
    """
    socket = folder / "redis.sock"
    if len(os.fsencode(socket)) <= _SOCKET_PATH_LIMIT:
        return str(socket)
    private = Path(tempfile.gettempdir(), f"percolator-{os.getuid()}")
    with suppress(FileExistsError):
        private.mkdir(mode=0o700)
    if not _is_private(private):
        raise ConfigurationError(f"{private} is not this user's alone: remove it, or set another TMPDIR")
    link = private / (hashlib.sha256(os.fsencode(folder)).hexdigest()[:24] + ".link")
    if len(os.fsencode(link)) > _SOCKET_PATH_LIMIT:
        raise ConfigurationError(f"{link} is too long for a socket: set TMPDIR to a shorter folder")
    with suppress(FileExistsError):
        link.symlink_to(socket)
    return str(link)


def write(path: Path, content: bytes) -> None:
    """Write a file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into errors of the library."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise ConfigurationError(
            f"{folder} is no folder, or a part of its path is a file: name another in embedded:"
        ) from None
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise ConfigurationError(
                f"this user cannot write in {folder} ({error.strerror}): "
                "name another folder in embedded:, or change its owner or mode"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreUnavailable(f"no space is left in {folder} ({error.strerror}): free some") from error
        raise StoreUnavailable(
            f"{folder} cannot be used ({error}): repair that, or name another folder"
        ) from error
