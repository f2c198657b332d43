"""Several worker processes beside a benchmark, which tell what they did when they end."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

from percolator_core.activation import live_workers
from percolator_core.attempt import ObserverCounts
from percolator_core.bench.servers import NAMESPACE, Place
from percolator_core.errors import StoreUnavailable
from percolator_core.observers import Chain

_LIMIT: Final = 120.0
"""Seconds for the workers to come to work, and to get done."""

_STOP_LIMIT: Final = 30.0
"""Seconds for them to end."""

_LOOK: Final = 0.005
"""Seconds between two looks whether they are idle."""

_LAST_WORDS: Final = 2000
"""Bytes of what they said on the standard error that are told where something went wrong."""


class Crewed:
    """Worker processes that run a chain; made by `crew_beside`."""

    def __init__(self, here: Place, chain: Chain, processes: int, folder: Path) -> None:
        self._here = here
        self._chain = chain
        self._size = processes
        self._said = folder / "said"
        where = ["--url", here.url, "--namespace", NAMESPACE, "--processes", str(processes), "--json"]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "percolator_core", "worker", str(chain.path), *where],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                # Ctrl-C is for the benchmark, which then stops the workers.
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        """Until every process is at work.

        Raises:
            StoreUnavailable: the workers ended, or took too long.
        """
        until = time.monotonic() + _LIMIT
        while len(live_workers(self._here.db)) < self._size:
            self._keep_waiting(until)

    def wait_until_idle(self) -> None:
        """Until no dirty cell is left; for when nobody else writes.

        Raises:
            StoreUnavailable: the workers ended, or took too long.
        """
        until = time.monotonic() + _LIMIT
        while self._backlog():
            self._keep_waiting(until)

    def stop(self) -> ObserverCounts:
        """End the processes once their runs are over; what all of them did, of all observers together.

        Raises:
            StoreUnavailable: one of them died meanwhile, so that what it did is not wholly known.
        """
        self.process.terminate()
        try:
            told, _ = self.process.communicate(timeout=_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            told = b""
        if self.process.returncode != 0:
            raise StoreUnavailable(f"the benchmark's workers failed:\n{self._last_words()}")
        found: dict[str, Any] = json.loads(told)
        endings = [one["ending"] for one in found.get("processes", ())]
        if any(ending != "exit code 0" for ending in endings) or len(endings) not in {0, self._size}:
            raise StoreUnavailable(
                f"a worker process of the benchmark died ({', '.join(endings)}):\n{self._last_words()}"
            )
        return ObserverCounts.sum(
            ObserverCounts(**{name: int(one[name]) for name in ObserverCounts.__slots__ if name in one})
            for one in found["observers"].values()
        )

    def end(self) -> None:
        """End the processes, whatever they are at. Idempotent."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()  # its own processes end when their parent is gone
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _backlog(self) -> int:
        """Dirty cells, all counted at one moment.

        A run sets other marks before it clears its own. Looked at one tablet after the other both could be
        missed: the new mark is not there yet in the first, and the old one is gone already in the second.
        """
        pipeline = self._here.raw.pipeline(transaction=True)
        for (table, _), observers in self._chain.observed.items():
            for tag in self._here.db.catalog.table(table).tags:
                for observer in observers:
                    pipeline.zcard(tag + b"dirty:" + observer.encode())
        return sum(pipeline.execute())

    def _keep_waiting(self, until: float) -> None:
        if self.process.poll() is not None or time.monotonic() > until:
            raise StoreUnavailable(
                f"the worker processes of the benchmark ended, or did not get done in {_LIMIT:g} s:\n"
                f"{self._last_words()}"
            )
        time.sleep(_LOOK)

    def _last_words(self) -> str:
        return self._said.read_bytes()[-_LAST_WORDS:].decode(errors="replace")


@contextmanager
def crew_beside(here: Place, folder_name: str, processes: int) -> Iterator[Crewed]:
    """So many worker processes at work on one of the benchmarks' chains, until the block ends.

    Raises:
        StoreUnavailable: they did not come to work.
    """
    with (
        as_file(files("percolator_core.bench").joinpath(folder_name)) as folder,
        tempfile.TemporaryDirectory(prefix="percolator-bench-") as words,
    ):
        chain = Chain.load(folder)
        chain.create_tables(here.db)
        crew = Crewed(here, chain, processes, Path(words))
        try:
            crew.wait_until_up()
            yield crew
        finally:
            crew.end()
