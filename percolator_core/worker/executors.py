"""Runs beside the hub: in threads, for observers that block or compute."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from percolator_core.database import Database
from percolator_core.notifications.dirty import Lease
from percolator_core.observers import Chain
from percolator_core.runtime.exit import OBSERVER_THREADS
from percolator_core.worker.offload import Offload
from percolator_core.worker.plan import Plan

_AFTER_A_KILL: Final = 1.0
"""Seconds in which a thread learns that its child process is gone."""


class Executors:
    """The runs that are not tasks of the hub: a thread for each, which may wait for a child process."""

    def __init__(self, db: Database, chain: Chain, plan: Plan, *, prefetch: bool) -> None:
        executors = {chain.observers[name].executor for name in plan.observers}
        places = sum(plan.places[name] for name in ("threads", "processes") if name in executors)
        self._pool = ThreadPoolExecutor(max(1, places), OBSERVER_THREADS)
        self._under_way: set[concurrent.futures.Future[None]] = set()
        self.offload = Offload(db, chain, prefetch=prefetch) if "processes" in executors else None
        self.left = False
        """Whether nobody waits for the runs any more."""

    def submit(self, run: Callable[[Lease], None], lease: Lease) -> None:
        """Have ``run(lease)`` called in a thread."""
        future = self._pool.submit(run, lease)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def leave(self, grace: float) -> int:
        """Wait for the runs under way, so many seconds at most; returns how many are still under way then."""
        late = concurrent.futures.wait(list(self._under_way), grace).not_done
        self.left = True
        if self.offload is not None:
            # Those that run until then are ended; a killed run is as one whose worker died.
            self.offload.close(kill=bool(late))
            late = concurrent.futures.wait(late, _AFTER_A_KILL).not_done
        self._pool.shutdown(wait=not late, cancel_futures=True)
        return len(late)
