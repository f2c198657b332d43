"""One worker process as its parent sees it: what it is told, what it reports, and how it ended."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

from percolator_core.crew.messages import (
    HELD_BACK,
    LineCutter,
    Orders,
    read_counts,
    read_error,
    read_report,
    read_times,
)
from percolator_core.errors import PercolatorError
from percolator_core.runtime.histogram import Histogram
from percolator_core.runtime.log import Log
from percolator_core.worker import Counts

_PROGRAM: Final = "percolator_core.crew.member"
_CHUNK: Final = 1 << 16
"""Bytes asked of the pipe at a time; and how often, at most, once nobody is to write to it."""

log = Log("percolator.worker")


class _Pipe:
    """The reading end of a pipe, whose lines go to ``take``."""

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
        """Take in what is there; False when there is nothing more for now."""
        try:
            chunk = os.read(self._file.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        for line in self._lines.feed(chunk):
            self._take(line)
        if not chunk:
            self.close()
        return bool(chunk)

    def close(self) -> None:
        """Take in what is left and read no more. Idempotent."""
        if self._file.closed:
            return
        self._selector.unregister(self._file)
        # Not for ever: a process that an observer started may hold the pipe, and write to it.
        for _ in range(_CHUNK):
            try:
                chunk = os.read(self._file.fileno(), _CHUNK)
            except BlockingIOError:
                break
            if not chunk:
                break
            for line in self._lines.feed(chunk):
                self._take(line)
        self._file.close()
        rest = self._lines.rest()
        if rest:
            self._take(rest)


class Process:
    """A worker process, started by making this; ``selector`` calls, with its data, what reads its pipes.

    ``up`` tells whether it got as far as working, ``name`` is its name in locks from then on, ``counts`` and
    ``times`` are what it reported last, ``begun`` whether its loop was there then, ``error`` what it said it
    ended with, ``killed`` whether its parent killed it.
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
        with _held_back():
            # Unbuffered: a word goes at once. A new interpreter, because threads and greenlets of this one
            # would not survive a fork.
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
            )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._words = self._process.stdin
        self._pipes = [
            _Pipe(self._process.stdout, self._take_report, selector),
            _Pipe(self._process.stderr, self._take_printed, selector),
        ]
        self._write(orders.to_line())

    def tell(self, word: bytes) -> None:
        """Send a word; to one that has ended it makes no difference."""
        self._write(word + b"\n")

    def stalled(self) -> float:
        """For how many seconds its loop has not turned, or nothing is known of it."""
        return self._stalled + time.monotonic() - self._heard_at

    def has_ended(self) -> bool:
        """Whether the process is over."""
        return self._process.poll() is not None

    @property
    def returncode(self) -> int:
        """As that of `subprocess.Popen`, of one that has ended: negative is the number of a signal."""
        return self._process.wait()

    def ending(self) -> str:
        """How it ended: ``exit code 1``, ``SIGKILL``."""
        code = self.returncode
        if code >= 0:
            return f"exit code {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def kill(self) -> None:
        """End it without asking."""
        self.killed = True
        self._process.kill()

    def close(self) -> None:
        """Wait for its end and take in the last of what it said. Idempotent."""
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()
        try:
            self._words.close()
        except OSError:
            pass

    def _write(self, line: bytes) -> None:
        try:
            self._words.write(line)
        except OSError:
            pass  # it has ended, which is noticed like any other end

    def _take_report(self, line: bytes) -> None:
        found = read_report(line)
        if found is None:
            self._take_printed(line)
            return
        try:
            self._act_on(*found)
        except (TypeError, KeyError, AttributeError, ValueError):
            self._take_printed(line)  # an observer that writes where it should not

    def _act_on(self, kind: str, content: Any) -> None:
        if kind == "up":
            self.up, self.up_since, self.name = True, time.monotonic(), str(content)
            log.info("worker started", process=self.pid)
        elif kind == "log":
            self._relay(content)
        elif kind == "counts":
            self.counts = read_counts(content)
            self.times = read_times(content)
            self.begun = bool(content.get("begun", True))
            self._stalled = float(content.get("stalled", 0.0))
            self._heard_at = time.monotonic()
        elif kind == "error":
            self.error = read_error(content)

    def _relay(self, fields: dict[str, Any]) -> None:
        event, level = str(fields.pop("event", "")), fields.pop("level", "info")
        levels = {
            "debug": log.debug,
            "warning": log.warning,
            "error": log.error,
            "critical": log.error,
        }
        levels.get(level, log.info)(event, **fields | {"process": self.pid})

    def _take_printed(self, line: bytes) -> None:
        # Not written as it is: between log lines of JSON there is no place for anything else.
        log.info("printed", text=line.decode(errors="backslashreplace").rstrip("\r"), process=self.pid)


@contextmanager
def _held_back() -> Iterator[None]:
    """Start a process with the signals blocked for which it has no handler yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
