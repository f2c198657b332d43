"""Record the history of chains while ``percolator ui`` runs, for the plots.

The backlog is counted every `LOOK` seconds, and a sample is recorded every `INTERVAL` seconds. The sample has
the highest backlog since the sample before, so that the plots show a peak between two samples, too.

While another program records samples, for example Airflow's monitor, nothing is recorded here: the monitor
compares its counts with those of the last sample, which must be its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from percolator_core.admin.samples import record, samples
from percolator_core.admin.status import backlog, status
from percolator_core.errors import PercolatorError
from percolator_core.runtime.log import Log
from percolator_core.runtime.periodic import periodically
from percolator_core.ui.declarations import declared
from percolator_core.ui.stores import stores

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.observers import Chain
    from percolator_core.ui.host import ShownChain

LOOK: Final = 2.0
"""Seconds between two counts of the backlog."""

INTERVAL: Final = 30.0
"""Seconds between two samples."""

YIELD: Final = 150.0
"""Seconds after another program's sample in which nothing is recorded."""

log = Log("percolator.ui")


class Recorder:
    """Records the history of one chain."""

    def __init__(self, chain: ShownChain) -> None:
        self._chain = chain
        self._peaks: dict[str, int] = {}
        self._next = 0.0
        self._newest = 0
        self._failed = False

    def look(self, now: float | None = None) -> None:
        """Count the backlog, and record a sample if one is due. ``now`` is in seconds, for tests."""
        now = time.monotonic() if now is None else now
        try:
            db, known = stores.of(self._chain), declared(self._chain)
            for name, count in backlog(db, known).items():
                self._peaks[name] = max(count, self._peaks.get(name, 0))
            if now >= self._next:
                self._next = now + INTERVAL
                self._record(db, known)
        except PercolatorError as error:
            # A store may be away for a while. One line in the log is enough.
            if not self._failed:
                log.warning("the history is not recorded", chain=self._chain.name, error=str(error))
            self._failed = True
        else:
            self._failed = False

    def _record(self, db: Database, known: Chain) -> None:
        """Record a sample, unless another program has recorded one a short time ago."""
        state = status(db, known)
        newest = max((one.time for one in samples(db, state.time - int(YIELD * 1e6))), default=0)
        if newest > self._newest:
            return
        record(db, state, known.scheduling.monitor.history, self._peaks)
        self._peaks = {}
        self._newest = samples(db, state.time - 1_000_000)[-1].time


@contextmanager
def recording(chains: Sequence[ShownChain]) -> Iterator[None]:
    """Record the history of the chains during the block, in a thread."""
    recorders = [Recorder(chain) for chain in chains]

    def look() -> None:
        for one in recorders:
            one.look()

    with periodically(look, LOOK, "percolator-history"):
        yield
