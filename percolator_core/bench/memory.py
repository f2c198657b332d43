"""The server's memory for a cell beyond its value: timestamps, column name, its share of key and row index.

The growth of ``used_memory`` while one-version cells are written, divided by their number. Redis doubles its
hash tables, so the figure moves a little with the number of rows; it is what a user with so many cells pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from percolator_core.bench.figure import Figure, Target, median_figure
from percolator_core.bench.scale import Scale
from percolator_core.bench.servers import Place, place

COST: Final = Target("at most", 120.0)

COLUMNS: Final = (1, 5, 10)
TARGET_COLUMNS: Final = 5
VALUES: Final = (20, 100)

_TABLE: Final = "bench"
_CELLS_A_WRITE: Final = 200


def measure(scale: Scale) -> Iterator[Figure]:
    """One figure for each number of columns and size of values."""
    for columns in COLUMNS:
        for size in VALUES:
            with place("unix") as here:
                cost = _cost(here, columns, size, scale.cells)
            name = f"{columns} column{'s' if columns > 1 else ''}, {size}-byte values"
            target = COST if columns == TARGET_COLUMNS else None
            yield median_figure("memory", "per cell", name, "bytes", samples=[cost], target=target)


def _cost(here: Place, columns: int, size: int, cells: int) -> float:
    """Bytes a cell beyond the value."""
    here.db.create_table(_TABLE)
    names = [f"column{number}" for number in range(columns)]
    rows = max(1, cells // columns)
    bunch = max(1, _CELLS_A_WRITE // columns)
    value = b"v" * size

    def write(first: int) -> None:
        with here.db.transaction() as t:
            for number in range(first, min(first + bunch, rows)):
                for name in names:
                    t.set(_TABLE, b"com.example.www/page/%09d" % number, name, value)

    before = here.db.store.facts().used_memory
    with here.db.concurrency(8) as executor:
        for _ in executor.map(write, range(0, rows, bunch)):
            pass
    after = here.db.store.facts().used_memory
    return (after - before) / (rows * columns) - size
