"""Long-running child processes. Each has its own session, so that all its descendants can be ended.

Ctrl-C in a terminal reaches only the command, which can then end its children properly. Descendants of a
child may leave its process group, as Airflow's tasks do, but they stay in its session. Sessions are read from
``/proc``; without ``/proc``, only the child's process group is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_PROC: Final = Path("/proc")
_ENDED: Final = frozenset({"Z", "X"})
_LOOK: Final = 0.05
_LAST_BYTES: Final = 4000
_LONGEST: Final = 300
"""An error quotes at most this many characters of a log line."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process of this run, or of an earlier run (then ``process`` is None).

    ``born`` is the start time, "" if unknown. A later process with the same id has another start time.
    """

    name: str
    pid: int
    born: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls, name: str, command: Sequence[str | Path], log: Path, *, env: Mapping[str, str], cwd: Path
    ) -> Self:
        """Start a process; its output replaces the contents of ``log``."""
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        return cls(name, process.pid, _born(process.pid), log, process)

    @classmethod
    def left_behind(cls, name: str, pid: int, born: str, log: Path) -> Self | None:
        """Return the child of an earlier run; None if it has ended, or if its start time is unknown."""
        return cls(name, pid, born, log) if born and _born(pid) == born else None

    @property
    def code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return None if self.process is None else self.process.poll()

    def lives(self) -> bool:
        """Return True while a process of its session runs."""
        if self.process is not None and self.process.poll() is None:
            return True
        return bool(_members(self.pid))

    def send_signal(self, number: int) -> None:
        """Send the signal to the process itself."""
        if self.process is not None:
            self.process.send_signal(number)
        elif _born(self.pid) == self.born:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send the signal to the process group, which Airflow's tasks have left."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # the group has no process; macOS raises PermissionError then

    def kill(self) -> None:
        """Kill every process of the session."""
        for _ in range(100):
            self.signal_group(signal.SIGKILL)
            for pid in _members(self.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not self.lives():
                return
            time.sleep(_LOOK)

    def last_log_line(self) -> str:
        """Return the last error line that the process printed; without one, the last line."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _LAST_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        printed = [line.strip() for line in lines if line.strip()]
        errors = [line for line in printed if line.startswith("error: ")]
        return (errors or printed or ["it printed nothing"])[-1][:_LONGEST]


def await_end(children: Sequence[Child], seconds: float) -> bool:
    """Wait until the sessions of all children have ended; return False after ``seconds``."""
    until = time.monotonic() + seconds
    while any(child.lives() for child in children):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK)
    return True


def _members(session: int) -> list[int]:
    """Return the running processes of the session, without zombies."""
    if not _PROC.is_dir():
        return []
    processes = [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdecimal()]
    running = ((pid, _fields(pid)) for pid in processes)
    return [
        pid for pid, fields in running if fields and int(fields[3]) == session and fields[0] not in _ENDED
    ]


def _fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name: see proc(5)."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []  # the process has just ended


def _born(pid: int) -> str:
    """Return the start time of the process, in clock ticks since boot."""
    fields = _fields(pid)
    return fields[19] if fields and fields[0] not in _ENDED else ""
