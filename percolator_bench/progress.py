"""Where a run of the benchmarks is, for whoever watches it.

A suite says it in steps within steps: the runner its name, the suite what it measures over, the race its
round. Nobody has to listen. Steps are told between measurements, never within one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO, TypeAlias

Listener: TypeAlias = Callable[[tuple[str, ...]], None]
"""Is told the steps a run is in, outermost first; the first one is the suite's name."""


def ignore(steps: tuple[str, ...]) -> None:
    """A `Listener` that does not."""
    del steps


_listener: ContextVar[Listener] = ContextVar("listener", default=ignore)
_steps: ContextVar[tuple[str, ...]] = ContextVar("steps", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have ``listener`` told within the ``with`` statement."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Within the ``with`` statement the run is at ``name``, which is told at once."""
    token = _steps.set((*_steps.get(), name))
    tell()
    try:
        yield
    finally:
        _steps.reset(token)


def tell(*steps: str) -> None:
    """Tell that the run is at ``steps`` within the steps there are."""
    _listener.get()((*_steps.get(), *steps))


class StatusLine:
    """Shows on a terminal one line that is kept up to date, elsewhere one line for each suite.

    No thread redraws it, because that would take turns with what is measured.
    """

    _CLEAR: Final = "\r\x1b[K"

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rewrites = file.isatty() and os.environ.get("TERM") != "dumb"
        self._suite = ""

    def show(self, steps: tuple[str, ...]) -> None:
        """A `Listener`."""
        if self._rewrites:
            text = ", ".join(steps)[: shutil.get_terminal_size().columns - 1]
            self._file.write(f"{self._CLEAR}{text}")
        elif steps and steps[0] != self._suite:
            self._suite = steps[0]
            self._file.write(f"measuring {self._suite}\n")
        self._file.flush()

    def clear(self) -> None:
        """Leave the terminal's line empty."""
        if self._rewrites:
            self._file.write(self._CLEAR)
            self._file.flush()
