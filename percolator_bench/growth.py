"""The cost of a transaction and of a step of a scan as the store grows: ideally the same at any size.

Two servers do the same work in alternate rounds: a small one that does not change, and one that grows. At the
first size the servers are equal, and the ratio shows the noise. No row is written twice in a round, so no row
gets many versions. A plain HGETALL of a random row shows the cost of larger memory for the server itself.

The servers do not rewrite their logs during a measurement. A rewrite forks, and afterwards the first write to
each page of memory takes a page fault. That cost is caused by the rewrite, not by the size.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.peers.rows import VALUE
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, for_each, place
from percolator_core.database import Database
from percolator_core.transaction.scan import PAGE_ROWS

SIZES: Final = (10_000, 100_000, 1_000_000, 5_000_000)
FLAT: Final = Target("at most", 1.2)

TABLE: Final = "bench"
COLUMNS: Final = ("anchor", "contents", "crawled", "language", "title")
_WIDTH: Final = 256
"""Transactions in flight."""

_ROWS_A_WRITE: Final = 100
"""One transaction loads this many rows."""

_PLAIN: Final = "plain HGETALL"
_SCANS: Final = 10
"""Steps of scans in a round."""

ROUNDS: Final = 3
"""The suite runs this many rounds for each round of the scale: its rounds are short, as the small store has
few rows."""

_FEW_ROWS: Final = 50_000
"""Up to this number of rows, garbage is collected between rounds, because these write the same rows again.
In a larger store that is rare."""

_SCATTER: Final = 0x9E3779B97F4A7C15
_KEYS: Final = 1 << 64


class _Cost(NamedTuple):
    """Seconds for one operation."""

    wall: float
    cpu: float
    server: float


def measure(scale: Scale) -> Iterator[Figure]:
    """Measure the cost at each size up to ``cells_max``, and relative to the small store."""
    sizes = [size for size in SIZES if size <= scale.cells_max] or [scale.cells_max]
    with place("unix") as one, place("unix") as other:
        small, grown = GrowingStore(one), GrowingStore(other)
        small.grow(sizes[0])
        for size in sizes:
            grown.grow(size)
            target = FLAT if size == max(SIZES) else None
            for what, costs in _race(small, grown, scale).items():
                yield from _figures(what, costs, size, sizes[0], None if what == _PLAIN else target)


def _race(small: GrowingStore, grown: GrowingStore, scale: Scale) -> dict[str, _Pairs]:
    """Measure each kind of work in the two stores, round by round; the first round warms up."""
    count = max(1, min(scale.operations, small.rows // 2))
    kinds: dict[str, Callable[[GrowingStore], _Cost]] = {
        "transaction": lambda store: store.transactions(count),
        "scan step": lambda store: store.scans(_SCANS),
        _PLAIN: lambda store: store.plain_reads(count),
    }
    found: dict[str, _Pairs] = {kind: [] for kind in kinds}
    rounds = scale.rounds * ROUNDS
    for number in range(rounds + 1):
        progress.tell(f"{grown.rows * len(COLUMNS):,} cells", f"round {number} of {rounds}")
        order = (small, grown) if number % 2 else (grown, small)
        for kind, work in kinds.items():
            costs = {store: work(store) for store in order}
            if number:
                found[kind].append((costs[small], costs[grown]))
        for store in order:
            store.clear_histories()
    return found


_Pairs = list[tuple[_Cost, _Cost]]
"""The cost in the small store and in the grown one."""


def _figures(what: str, costs: _Pairs, size: int, smallest: int, target: Target | None) -> Iterator[Figure]:
    figure = partial(median_figure, "growth", "unix socket", axis="cells", at=size)
    yield figure(f"{what}, wall", "µs", [grown.wall * 1e6 for _, grown in costs])
    yield figure(f"{what}, CPU", "µs", [grown.cpu * 1e6 for _, grown in costs])
    yield figure(f"{what}, server's CPU", "µs", [grown.server * 1e6 for _, grown in costs])
    base = f"÷ {smallest:,} cells"
    wall = [grown.wall / small.wall for small, grown in costs]
    cpu = [grown.cpu / small.cpu for small, grown in costs]
    server = [grown.server / small.server for small, grown in costs]
    yield figure(f"{what}, wall {base}", "ratio", wall, target)
    yield figure(f"{what}, CPU {base}", "ratio", cpu, target)
    yield figure(f"{what}, server's CPU {base}", "ratio", server)


class GrowingStore:
    """A store to which rows are added from size to size."""

    def __init__(self, here: Place) -> None:
        self._db = here.db
        self._raw = here.raw
        self._server_cpu = here.server_cpu
        self._db.create_table(TABLE, tablets=1)
        here.raw.config_set("auto-aof-rewrite-percentage", 0)
        self.rows = 0

    def grow(self, cells: int) -> None:
        """Load rows until there are ``cells`` cells."""
        rows = max(2, cells // len(COLUMNS))
        load_rows(self._db, range(self.rows, rows), row_key, VALUE)
        self.rows = rows

    def transactions(self, count: int) -> _Cost:
        """Run transactions of two reads and two writes each, on existing rows."""
        chosen = random.sample(range(self.rows), 2 * count)
        pairs = [(row_key(one), row_key(other)) for one, other in zip(chosen[::2], chosen[1::2], strict=True)]
        columns = [random.choice(COLUMNS) for _ in pairs]

        def both(number: int) -> None:
            column = columns[number]
            with self._db.transaction() as t:
                for row in pairs[number]:
                    t.get(TABLE, row, column)
                for row in pairs[number]:
                    t.set(TABLE, row, column, VALUE)

        return self._cost(lambda: for_each(self._db, _WIDTH, both, range(count)), count)

    def scans(self, count: int) -> _Cost:
        """Run steps of scans, each from a random position with enough rows after it for a full step."""
        full = max(0.0, 1 - 2 * PAGE_ROWS / self.rows)
        starts = [_key(int(random.random() * full * _KEYS)) for _ in range(count)]

        def run() -> None:
            for start in starts:
                for _ in self._db.snapshot().scan(TABLE, start=start, limit=PAGE_ROWS):
                    pass

        return self._cost(run, count)

    def plain_reads(self, count: int) -> _Cost:
        """Read whole rows by plain commands, in pipelines."""
        handle = self._db.catalog.table(TABLE)
        keys = [handle.row_key(row_key(number)) for number in random.sample(range(self.rows), count)]

        def run() -> None:
            for first in range(0, count, _WIDTH):
                pipeline = self._raw.pipeline(transaction=False)
                for key in keys[first : first + _WIDTH]:
                    pipeline.hgetall(key)
                pipeline.execute()

        return self._cost(run, count)

    def clear_histories(self) -> None:
        """Remove older versions from a small store, so that no row is slow because of earlier rounds."""
        if self.rows <= _FEW_ROWS:
            self._db.collect_garbage(timedelta(0))

    def _cost(self, run: Callable[[], None], count: int) -> _Cost:
        gc.collect()
        server, client, wall = self._server_cpu(), time.process_time(), time.perf_counter()
        run()
        wall, client = time.perf_counter() - wall, time.process_time() - client
        server = self._server_cpu() - server
        return _Cost(wall / count, (client + server) / count, server / count)


def load_rows(db: Database, numbers: range, key: Callable[[int], bytes], value: bytes) -> None:
    """Write a row with all `COLUMNS` for each number, and report the share that is written."""

    def write(first: int) -> None:
        with db.transaction() as t:
            for number in range(first, min(first + _ROWS_A_WRITE, numbers.stop)):
                for column in COLUMNS:
                    t.set(TABLE, key(number), column, value)

    what = f"loading {numbers.stop * len(COLUMNS):,} cells"
    with db.concurrency(8) as executor:
        for turn, _ in enumerate(executor.map(write, numbers[::_ROWS_A_WRITE])):
            if turn % 100 == 0:
                progress.tell(what, f"{(numbers.start + turn * _ROWS_A_WRITE) / numbers.stop:.0%}")


def row_key(number: int) -> bytes:
    """Return the key of a row; the order of the keys is unrelated to that of the numbers."""
    return _key(number * _SCATTER % _KEYS)


def _key(number: int) -> bytes:
    return b"com.example/%016x" % number
