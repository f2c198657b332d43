"""The last log lines of a worker that runs on this machine.

A worker logs to its standard error. If that is a file, Linux names it by the process. So neither a request
nor a record in the store can choose the file: the record only has the number of a process, which must be a
worker's. The file must be readable for the user of the pages.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")

_RECORD: Final = re.compile(r"process (\d+) on (.+)")
"""The place of a worker, as `percolator_core.worker` registers it."""

_PROGRAMS: Final = frozenset({"percolator", "percolator_core"})
_COMMANDS: Final = frozenset({"worker", "drain"})
_MEMBER: Final = "percolator_core.crew.member"
"""A process of ``percolator worker --processes``, whose lines its parent logs."""

_BYTES: Final = 1 << 16
"""At most this many bytes of the end of a file are read."""


def last_lines(where: str, most: int) -> list[str] | None:
    """Return the last ``most`` lines of a worker's log; None if they are not in a file that can be read here.

    ``where`` is the worker's place, as `LiveWorker.where` has it.
    """
    found = _RECORD.fullmatch(where)
    if found is None or found[2] != socket.gethostname():
        return None
    try:
        return _tail(_logger(int(found[1])), most)
    except (OSError, ValueError):
        return None  # there is no such process, it belongs to another user, or the system has no /proc


def _logger(process: int) -> int:
    """Return the process that logs for a worker. Raises ValueError if it is no worker."""
    arguments = _arguments(process)
    if _MEMBER in arguments:
        process = int(
            (_PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        )
        arguments = _arguments(process)
    if not any(Path(one).name in _PROGRAMS for one in arguments) or _COMMANDS.isdisjoint(arguments):
        raise ValueError(f"process {process} is no worker")
    return process


def _arguments(process: int) -> list[str]:
    return (_PROC / str(process) / "cmdline").read_bytes().decode(errors="replace").split("\0")


def _tail(process: int, most: int) -> list[str] | None:
    place = _PROC / str(process) / "fd" / "2"
    # A terminal or a pipe is not opened: that could wait, or take the lines from another reader.
    if not stat.S_ISREG(place.stat().st_mode):
        return None
    with place.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _BYTES))
        lines = file.read(_BYTES).decode(errors="replace").splitlines()
    # The first line may have lost its beginning, and with it the form in which a secret is recognised.
    return lines[1 if size > _BYTES else 0 :][-most:]
