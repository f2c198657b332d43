"""The cost of finding and leasing 1,000 dirty cells among few clean cells and among many.

The index of dirty cells is separate from the data (paper, section 2.4), so clean cells should make no
difference. The stores take turns, so the two sides of a ratio are measured in the same minute.

The wall time of a claim includes the way to the server and back, and building 1,000 leases from the reply.
The server's CPU time is the difference of two readings; it includes the cost of one reading.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.growth import COLUMNS, TABLE, load_rows
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, place
from percolator_core.errors import PercolatorError
from percolator_core.notifications.activation import activate
from percolator_core.notifications.dirty import DirtyIndex, Lease

SIZES: Final = (10_000, 100_000, 1_000_000)
DIRTY: Final = 1000
"""The number of dirty cells: enough to be spread about evenly over the 16 tablets."""

FLAT: Final = Target("at most", 1.2)

_OBSERVER: Final = "watch"
_VALUE: Final = b"v" * 20
CLAIMS: Final = 10
"""The number of claims in a round, which yields their median wall time and their mean CPU time."""

_ROUNDS: Final = 2
"""The suite runs this many rounds, of only half a second each, for each round of the scale."""


class Claim(NamedTuple):
    """Seconds of one claim of all dirty cells: wall time, and CPU time of the server."""

    wall: float
    server: float


def measure(scale: Scale) -> Iterator[Figure]:
    """Measure the cost for each number of clean cells up to ``observed``, and relative to the smallest."""
    sizes = [size for size in SIZES if size <= scale.observed] or [scale.observed]
    with ExitStack() as stack:
        stores = {size: Store(stack.enter_context(place("unix")), size) for size in sizes}
        found = _race(stores, scale.rounds * _ROUNDS)
    for size, claims in found.items():
        figure = partial(median_figure, "finding", "unix socket", axis="clean cells", at=size)
        name = f"claim of {DIRTY:,} dirty cells"
        yield figure(f"{name}, wall", "ms", [claim.wall * 1e3 for claim in claims])
        yield figure(f"{name}, server's CPU", "ms", [claim.server * 1e3 for claim in claims])
        if size == sizes[0]:
            continue
        target = FLAT if size == max(SIZES) else None
        pairs = list(zip(claims, found[sizes[0]], strict=True))
        base = f"÷ {sizes[0]:,} cells"
        walls = [many.wall / few.wall for many, few in pairs]
        yield figure(f"{name}, wall {base}", "ratio", walls, target)
        servers = [many.server / few.server for many, few in pairs if few.server]
        if servers:
            yield figure(f"{name}, server's CPU {base}", "ratio", servers, target)


def _race(stores: dict[int, Store], rounds: int) -> dict[int, list[Claim]]:
    """Measure a claim in each store, round by round; the first round warms up."""
    found: dict[int, list[Claim]] = {size: [] for size in stores}
    for number in range(rounds + 1):
        progress.tell(f"round {number} of {rounds}")
        for store in stores.values():
            store.make_dirty()
        # The stores take turns claim by claim, so that disturbances within a round affect all stores.
        claims: dict[int, list[Claim]] = {size: [] for size in stores}
        gc.collect()
        for turn in range(CLAIMS):
            for size in stores if turn % 2 else reversed(stores):
                claims[size].append(stores[size].claim())
        for size, store in stores.items():
            store.make_clean()
            if number:
                found[size].append(
                    Claim(
                        statistics.median(claim.wall for claim in claims[size]),
                        statistics.fmean(claim.server for claim in claims[size]),
                    )
                )
    return found


class Store:
    """A store with ``cells`` observed cells, all clean."""

    def __init__(self, here: Place, cells: int) -> None:
        self._db = here.db
        self._server_cpu = here.server_cpu
        self._db.create_table(TABLE)
        # No rewrites of the log: each forks, and the page faults after the fork would count for the claim.
        here.raw.config_set("auto-aof-rewrite-percentage", 0)
        self.rows = max(1, cells // len(COLUMNS))
        load_rows(self._db, range(self.rows), row_key, _VALUE)
        # The observer is registered after the load, so that the load leaves no marks.
        observed = {(TABLE, column): (_OBSERVER,) for column in COLUMNS}
        activate(self._db, observed, "bench")
        self._dirty = DirtyIndex(self._db.client, observed)

    def make_dirty(self) -> None:
        """Write 1,000 random cells."""
        cells = self.rows * len(COLUMNS)
        chosen = random.sample(range(cells), min(DIRTY, cells))
        with self._db.transaction() as t:
            for number in chosen:
                row, column = divmod(number, len(COLUMNS))
                t.set(TABLE, row_key(row), COLUMNS[column], _VALUE)

    def make_clean(self) -> None:
        """Drop all marks."""
        leases = self._lease()
        self._db.store.run_all([self._dirty.clear(lease, "weak", 0) for lease in leases])

    def claim(self) -> Claim:
        """Lease all dirty cells, give them back, and return the time of the lease."""
        server, wall = self._server_cpu(), time.perf_counter()
        leases = self._lease()
        wall = time.perf_counter() - wall
        server = self._server_cpu() - server
        self._db.store.run_all([self._dirty.postpone(lease, 0, failed=False) for lease in leases])
        return Claim(wall, server)

    def _lease(self) -> list[Lease]:
        """Lease all dirty cells. Raises PercolatorError if the claim missed one."""
        leases, _ = self._dirty.claim(DIRTY)
        wanted = min(DIRTY, self.rows * len(COLUMNS))
        if len(leases) != wanted:
            raise PercolatorError(
                f"{len(leases):,} of {wanted:,} dirty cells were found: a notification was lost, "
                "please report it"
            )
        return leases


def row_key(number: int) -> bytes:
    """The key of a row, by its number."""
    return b"com.example/%08x" % number
