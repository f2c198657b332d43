"""A crew for development: when a file of the project changes, its processes end their runs and start again.

The files are compared by their modification times, in every turn of the parent's loop that is half a second
after the previous comparison. So no thread, no package and no support of the file system is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from percolator_core.crew.messages import STOP
from percolator_core.crew.process import Process
from percolator_core.crew.supervisor import GRACE, Crew, _Slot
from percolator_core.errors import PercolatorError
from percolator_core.runtime.log import Log

SUFFIXES: Final = (".py", ".yaml", ".yml", ".sql")
"""The suffixes of a project's files."""

_LOOK: Final = 0.5
"""Seconds between two comparisons."""

_NAMED: Final = 5
"""A log line names at most this many files."""

log = Log("percolator.worker")


class FileWatch:
    """The files of a project below a folder, without those of hidden folders and virtual environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looked_at = time.monotonic()
        self._before = dict(self._files())

    def changed(self) -> list[str]:
        """Return the files that were changed, added or removed since the previous call.

        If the files were compared within the last half second, return an empty list.
        """
        if time.monotonic() < self._looked_at + _LOOK:
            return []
        now, before = dict(self._files()), self._before
        self._before, self._looked_at = now, time.monotonic()
        changed = {file for file in {*now, *before} if now.get(file) != before.get(file)}
        return sorted(os.path.relpath(file, self._folder) for file in changed)

    def _files(self) -> Iterator[tuple[str, int]]:
        folders = [str(self._folder)]
        while folders:
            with suppress(OSError), os.scandir(folders.pop()) as entries:
                found = list(entries)
                if any(one.name == "pyvenv.cfg" for one in found):
                    continue
                for one in found:
                    if one.is_dir(follow_symlinks=False):
                        if not one.name.startswith(".") and one.name != "__pycache__":
                            folders.append(one.path)
                    elif one.name.endswith(SUFFIXES):
                        with suppress(OSError):  # removed at this moment
                            yield one.path, one.stat().st_mtime_ns


class ReloadingCrew(Crew):
    """A crew that starts its processes again after a change of a file.

    All processes end before the first one starts, because workers of two versions of a chain do not run
    together. If the processes cannot start, for example because of a mistake in the code, the crew reports
    the reason and waits for the next change.

    Args:
        reload: the folder of the project.
        arguments: those of `Crew`.
    """

    def __init__(self, *arguments: Any, reload: Path, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._watch = FileWatch(reload)
        self._kill_at: float | None = None
        """While the processes end for a restart: when the rest is killed."""
        self._waits = False
        """True after a failed start, until the next change."""

    def _start_missing(self, now: float) -> None:
        changed = self._watch.changed()
        if changed:
            log.info("files changed: the workers restart after their current runs", files=_named(changed))
            if self._kill_at is None:
                self._kill_at = now + GRACE
                for process in self._running():
                    process.send(STOP)
        if self._kill_at is not None:
            if self._running():
                if now > self._kill_at:
                    self._kill_running()
                return
            self._kill_at, self._waits = None, False
            # A killed process is registered until its lease expires, perhaps with other observers.
            self._orders = replace(self._orders, settings={**self._orders.settings, "rolling": True})
            for slot in self.slots:
                slot.start_at, slot.failed_starts = now, 0
        if not self._waits:
            super()._start_missing(now)

    def _replace(self, slot: _Slot, process: Process) -> None:
        if self._kill_at is not None:
            self._log_end(process)
        else:
            super()._replace(slot, process)

    def _fail(self, error: PercolatorError) -> None:
        if self._stopping.is_set():
            super()._fail(error)
        elif not self._waits:
            self._waits = True
            log.error("the workers cannot start, and wait for a change of a file", error=str(error))


def _named(files: list[str]) -> str:
    rest = len(files) - _NAMED
    return ", ".join(files[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
