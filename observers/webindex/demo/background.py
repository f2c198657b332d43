"""The worker of the demo: ``percolator worker`` in a process of its own, as in production."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final, Self

from observers.webindex.index import ENVIRONMENT
from percolator_core import PercolatorError
from percolator_core.notifications.activation import live_workers

if TYPE_CHECKING:
    from pathlib import Path

    from percolator_core import Chain, Database

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_COMMAND: Final = (sys.executable, "-m", "percolator_core")


class BackgroundWorker:
    """A worker process that runs a chain's observers inside a ``with`` block.

    Raises:
        PercolatorError: the worker did not start, or ended by itself.
    """

    def __init__(self, db: Database, chain: Chain, url: str, serving: Path) -> None:
        self._db = db
        # Files, not pipes: this process reads the output at the end, and a full pipe would block the worker.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _end
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*_COMMAND, "worker", str(chain.path), "--url", url, "--namespace", db.namespace, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env=os.environ | {ENVIRONMENT: str(serving)},
        )

    def __enter__(self) -> Self:
        try:
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def check(self) -> None:
        """Raise PercolatorError if the worker has ended."""
        if self._process.poll() is not None:
            raise PercolatorError(f"The worker ended by itself: {self._last_line()}")

    def stop(self) -> dict[str, Any]:
        """Stop the worker, and return the summary that it prints."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_SECONDS)
        self._output.seek(0)
        try:
            summary: dict[str, Any] = json.loads(self._output.read())
        except ValueError:
            raise PercolatorError(f"The worker printed no summary: {self._last_line()}") from None
        return summary

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while not live_workers(self._db):
            self.check()
            if time.monotonic() > until:
                raise PercolatorError(
                    f"The worker was not ready within {_START_SECONDS:.0f} s: run the demo again."
                )
            time.sleep(0.02)

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it printed no error")

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()
        self._errors.close()
