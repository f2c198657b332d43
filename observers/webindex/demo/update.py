"""Write changes one after another while a worker runs, and measure the time until a search shows each one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from observers.webindex.demo.crawl import COLUMNS
from observers.webindex.demo.report import Measured
from observers.webindex.search import search
from percolator_core import PercolatorError
from percolator_core.loading.records import BadRecord
from percolator_core.loading.transactions import merge, remove

if TYPE_CHECKING:
    from collections.abc import Callable

    from observers.webindex.demo.background import BackgroundWorker
    from observers.webindex.demo.changes import Change
    from observers.webindex.demo.crawl import Crawl
    from observers.webindex.index import ServingIndex
    from percolator_core import Database
    from percolator_core.notifications.dirty import DirtyIndex

TABLE: Final = "documents"
MANY: Final = 200
"""A page is looked for among at most this many results."""

_SHOWN_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 120.0
_LOOK: Final = 0.001
"""Seconds between two searches, which is also the precision of the times."""


class Update:
    """Write changes into the store with the loader's transactions."""

    def __init__(self, db: Database, crawl: Crawl, index: ServingIndex, worker: BackgroundWorker) -> None:
        self._db = db
        self._crawl = crawl
        self._index = index
        self._worker = worker

    def apply(self, change: Change) -> Measured:
        """Write the change, and wait until a search shows it.

        The measured time starts before the loader's transaction, and ends when the search returns.

        Raises:
            PercolatorError: no search showed the change within 30 seconds.
        """
        shown = self._shown(change)
        path = self._crawl.documents / change.name
        if change.contents is None:
            path.unlink()
            started = time.perf_counter()
            remove(self._db, TABLE, change.url.encode(), tuple(COLUMNS))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(change.contents)
            record = self._crawl.record(change.name)
            started = time.perf_counter()
            outcome = merge(self._db, TABLE, record)
            if isinstance(outcome, BadRecord):
                raise PercolatorError(f"{path} cannot be loaded: {outcome.reason}.")
        self._wait(shown, _SHOWN_SECONDS, f"the search does not show the change of {change.url}")
        return Measured(change, (time.perf_counter() - started) * 1000)

    def settle(self, dirty: DirtyIndex) -> None:
        """Wait until no notification is left."""
        self._wait(lambda: not sum(dirty.backlog().values()), _IDLE_SECONDS, "the chain is not idle")

    def _shown(self, change: Change) -> Callable[[], bool]:
        """Return a function that searches, and returns True if the result shows the change."""
        index, query, url = self._index, change.query, change.url
        if change.kind == "deleted":
            return lambda: all(result.url != url for result in search(query, MANY, index=index))
        if change.kind != "duplicated":
            return lambda: any(result.url == url for result in search(query, MANY, index=index))
        # The size of the original's cluster grows by one. The original's rank grows, too, but the rank does
        # not prove the change: an earlier change of pages that link to the original may lower it again.
        before = self._sizes(query).get(change.other, 0)

        def collapsed() -> bool:
            sizes = self._sizes(query)
            return url not in sizes and sizes.get(change.other, 0) > before

        return collapsed

    def _sizes(self, query: str) -> dict[str, int]:
        """Return the size of each result's cluster."""
        return {result.url: result.size for result in search(query, MANY, index=self._index)}

    def _wait(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise PercolatorError(
                    f"After {seconds:.0f} s {otherwise}: see `percolator failed` for the reason."
                )
            self._worker.check()
            time.sleep(_LOOK)
