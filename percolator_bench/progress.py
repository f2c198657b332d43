"""Report the progress of a run.

The steps of a run are nested: the runner reports the suite, the suite reports its place, and `rounds.race`
reports the round. A listener is optional. Steps are reported between measurements, never during one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO, TypeAlias

Listener: TypeAlias = Callable[[tuple[str, ...]], None]
"""Called with the steps of the run, outermost first; the first one is the suite's name."""


_listener: ContextVar[Listener] = ContextVar("listener", default=lambda _steps: None)
_steps: ContextVar[tuple[str, ...]] = ContextVar("steps", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report steps to ``listener`` within the ``with`` statement."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Add ``name`` to the current steps within the ``with`` statement, and report them at once."""
    token = _steps.set((*_steps.get(), name))
    tell()
    try:
        yield
    finally:
        _steps.reset(token)


def tell(*steps: str) -> None:
    """Report the current steps, followed by ``steps``."""
    _listener.get()((*_steps.get(), *steps))


class StatusLine:
    """Shows on a terminal one line that is kept up to date, elsewhere one line for each suite.

    No thread updates it, because a thread would disturb the measurements.
    """

    _CLEAR: Final = "\r\x1b[K"

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rewrites = file.isatty() and os.environ.get("TERM") != "dumb"
        self._suite = ""

    def show(self, steps: tuple[str, ...]) -> None:
        """The `Listener`."""
        if self._rewrites:
            text = ", ".join(steps)[: shutil.get_terminal_size().columns - 1]
            self._file.write(f"{self._CLEAR}{text}")
        elif steps and steps[0] != self._suite:
            self._suite = steps[0]
            self._file.write(f"measuring {self._suite}\n")
        self._file.flush()

    def clear(self) -> None:
        """Clear the line of the terminal."""
        if self._rewrites:
            self._file.write(self._CLEAR)
            self._file.flush()
