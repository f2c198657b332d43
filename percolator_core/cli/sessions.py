"""Long-running child processes, each in a session of its own, and how such a session ends as a whole.

Ctrl-C in a terminal is for the command, which then ends its children in order. What a child starts may leave
its process group, as Airflow's tasks do, but stays in its session. Sessions are looked up in ``/proc``; where
there is none, a child's process group stands for its session.
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
"""Characters of a line of a log that are repeated in an error."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started here, or by a predecessor that could not end it: then ``process`` is None.

    ``born`` tells it from a later process with the same id; "" where the system does not say.
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
        """Start it; what it prints goes to ``log``, which begins anew."""
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
        """The child of a predecessor, if it is certain that this is the process that lives there now."""
        return cls(name, pid, born, log) if born and _born(pid) == born else None

    @property
    def code(self) -> int | None:
        """How the process itself ended; None while it runs."""
        return None if self.process is None else self.process.poll()

    def lives(self) -> bool:
        """Whether anything of its session runs."""
        if self.process is not None and self.process.poll() is None:
            return True
        return bool(_members(self.pid))

    def tell(self, number: int) -> None:
        """Send the signal to the process itself."""
        if self.process is not None:
            self.process.send_signal(number)
        elif _born(self.pid) == self.born:
            os.kill(self.pid, number)

    def tell_group(self, number: int) -> None:
        """Send the signal to its process group, in which are its own processes but not tasks of Airflow."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # nothing of it is left; macOS says so in the other way

    def kill(self) -> None:
        """End the whole session, whatever it does."""
        for _ in range(100):
            self.tell_group(signal.SIGKILL)
            for pid in _members(self.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not self.lives():
                return
            time.sleep(_LOOK)

    def last_words(self) -> str:
        """The last line that it printed, and that of its error if there is one."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _LAST_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        errors = [line for line in said if line.startswith("error: ")]
        return (errors or said or ["it said nothing"])[-1][:_LONGEST]


def await_end(children: Sequence[Child], seconds: float) -> bool:
    """Wait until nothing of them runs, at most so long; returns whether that is so."""
    until = time.monotonic() + seconds
    while any(child.lives() for child in children):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK)
    return True


def _members(session: int) -> list[int]:
    """The processes of the session that run, without those that only wait to be asked how they ended."""
    if not _PROC.is_dir():
        return []
    running = ((pid, _fields(pid)) for pid in _processes())
    return [
        pid for pid, fields in running if fields and int(fields[3]) == session and fields[0] not in _ENDED
    ]


def _processes() -> list[int]:
    return [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdecimal()]


def _fields(pid: int) -> list[str]:
    """The fields of its state that follow its name: see proc(5)."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []  # it has just ended


def _born(pid: int) -> str:
    """When the process started, in ticks since the machine did."""
    fields = _fields(pid)
    return fields[19] if fields and fields[0] not in _ENDED else ""
