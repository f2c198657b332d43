"""The parent's side of one worker process: commands, reports, and exit code."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from percolator_core.crew.messages import (
    BLOCKED,
    LineCutter,
    Orders,
    read_counts,
    read_error,
    read_report,
    read_times,
)
from percolator_core.errors import PercolatorError
from percolator_core.runtime.exit import ending_of
from percolator_core.runtime.histogram import Histogram
from percolator_core.runtime.log import Log
from percolator_core.worker import Counts

_PROGRAM: Final = "percolator_core.crew.member"
_CHUNK: Final = 1 << 16
"""Bytes of one read from a pipe. After the process has ended, this is also the limit of further reads."""

log = Log("percolator.worker")


class _Pipe:
    """The reading end of a pipe. It calls ``take`` with each line."""

    def __init__(
        self, file: IO[bytes], take: Callable[[bytes], None], selector: selectors.BaseSelector
    ) -> None:
        self._file = file
        self._take = take
        self._lines = LineCutter()
        self._selector = selector
        os.set_blocking(file.fileno(), False)
        selector.register(file, selectors.EVENT_READ, self.read)

    def read(self) -> bool:
        """Take the available lines. Return False if there are no more bytes for now."""
        try:
            chunk = os.read(self._file.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        for line in self._lines.feed(chunk):
            self._take(line)
        if not chunk:
            self._end()
        return bool(chunk)

    def close(self) -> None:
        """Take the remaining lines and close the pipe. Idempotent."""
        # The number of reads is bounded: a process that an observer started may still write to the pipe.
        for _ in range(_CHUNK):
            if self._file.closed or not self.read():
                break
        self._end()

    def _end(self) -> None:
        if self._file.closed:
            return
        self._selector.unregister(self._file)
        self._file.close()
        rest = self._lines.rest()
        if rest:
            self._take(rest)


class Process:
    """A worker process, which the constructor starts; ``selector`` gets the method that reads each pipe.

    ``up`` is True after the worker has begun; then ``name`` is its name in locks. ``counts``, ``times`` and
    ``begun`` (True if the loop runs) are from the last report. ``error`` is the error that the process
    reported at its end. ``killed`` is True if the parent killed the process.
    """

    def __init__(self, orders: Orders, selector: selectors.BaseSelector) -> None:
        self.up = False
        self.name = ""
        self.up_since = time.monotonic()
        self.counts = Counts()
        self.begun = False
        self.times: dict[str, Histogram] = {}
        self._stalled = 0.0
        self._heard_at = time.monotonic()
        self.error: PercolatorError | None = None
        self.killed = False
        pipe = subprocess.PIPE
        with _signals_blocked():
            # The pipes are unbuffered, so that a command is sent at once. The process is a new interpreter,
            # because the parent's threads and greenlets would not survive a fork.
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
            )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._words = self._process.stdin
        self._pipes = [
            _Pipe(self._process.stdout, self.take_report, selector),
            _Pipe(self._process.stderr, self._take_printed, selector),
        ]
        self._write(orders.to_line())

    def send(self, word: bytes) -> None:
        """Send a command; without effect if the process has ended."""
        self._write(word + b"\n")

    def stalled(self) -> float:
        """Return the seconds since the last turn of the loop, including the time since the last report."""
        return self._stalled + time.monotonic() - self._heard_at

    def has_ended(self) -> bool:
        """Return True if the process has ended."""
        return self._process.poll() is not None

    @property
    def returncode(self) -> int:
        """The exit code; the negative number of the signal if a signal ended the process."""
        return self._process.wait()

    def ending(self) -> str:
        """Return the exit code or the signal as text: ``exit code 1``, ``SIGKILL``."""
        return ending_of(self.returncode)

    def kill(self) -> None:
        """Kill the process."""
        self.killed = True
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of the process, and take the last lines. Idempotent."""
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()
        with suppress(OSError):
            self._words.close()

    def _write(self, line: bytes) -> None:
        with suppress(OSError):  # the process has ended; the supervisor notices
            self._words.write(line)

    def take_report(self, line: bytes) -> None:
        """Act on a line from the pipe of reports; log it if it is no report."""
        found = read_report(line)
        if found is None:
            self._take_printed(line)
            return
        try:
            self._act_on(*found)
        except (TypeError, KeyError, AttributeError, ValueError):
            self._take_printed(line)  # an observer has written to the pipe of the reports

    def _act_on(self, kind: str, content: Any) -> None:
        if kind == "up":
            self.up, self.up_since, self.name = True, time.monotonic(), str(content)
            log.info("worker started", process=self.pid)
        elif kind == "log":
            event, level = str(content.pop("event", "")), content.pop("level", "info")
            log.relay(level, event, content | {"process": self.pid})
        elif kind == "counts":
            self.counts = read_counts(content)
            self.times = read_times(content)
            self.begun = bool(content.get("begun", True))
            self._stalled = float(content.get("stalled", 0.0))
            self._heard_at = time.monotonic()
        elif kind == "error":
            self.error = read_error(content)

    def _take_printed(self, line: bytes) -> None:
        # The text becomes a log line, because a log in JSON must contain only JSON.
        log.info("printed", text=line.decode(errors="backslashreplace").rstrip("\r"), process=self.pid)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals while a new process has no handlers for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
