"""The server's memory for a version of a cell, without its value.

It consists of timestamps, the name of the column, a share of the row's key and of the row index, and for an
older version an entry in the row's history. The figure is the growth of ``used_memory`` while cells are
written, divided by the number of versions. Buffers of connections and of the log do not count. Redis doubles
its hash tables, and its allocator rounds sizes up to classes that differ by a fifth. So the figure depends on
the number of rows and on the size of the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, for_each, place

COST: Final = Target("at most", 120.0)


class Shape(NamedTuple):
    """Rows: the number of their columns, the bytes of each value, and the versions of each cell."""

    columns: int
    size: int
    versions: int = 1

    @property
    def target(self) -> Target | None:
        """The target for five columns of ordinary values, written once; other shapes have none."""
        return COST if self.columns == 5 and self.size <= 100 and self.versions == 1 else None

    def __str__(self) -> str:
        return f"{self.columns} column{'s' if self.columns > 1 else ''}, {self.size:,}-byte values"


SHAPES: Final = (
    *(Shape(columns, size) for columns in (1, 5, 10) for size in (20, 100)),
    Shape(5, 1000),
    Shape(5, 10_000),
    *(Shape(5, size, versions) for size in (20, 100, 1000) for versions in (3, 10)),
)

_TABLE: Final = "bench"
_CELLS_A_WRITE: Final = 200
_BYTES_A_WRITE: Final = 1 << 20
"""Limits of the writes of one transaction."""

_MOST_BYTES: Final = 200 << 20
"""The values of a shape have at most this many bytes in total."""


def measure(scale: Scale) -> Iterator[Figure]:
    """Measure one figure for each shape; with large values or many versions there are fewer cells."""
    for shape in SHAPES:
        progress.tell(f"{shape}, {shape.versions} versions")
        cells = min(scale.cells, _MOST_BYTES // shape.size) // shape.versions
        with place("unix") as here:
            cost = _cost(here, shape, max(1, cells // shape.columns))
        figure = partial(median_figure, "memory", "per version", axis="versions", at=shape.versions)
        yield figure(str(shape), "bytes", [cost], shape.target)


def _cost(here: Place, shape: Shape, rows: int) -> float:
    """Measure the bytes of a version without its value."""
    here.db.create_table(_TABLE)
    names = [f"column{number}" for number in range(shape.columns)]
    bunch = max(1, min(_CELLS_A_WRITE, _BYTES_A_WRITE // shape.size) // shape.columns)
    value = b"v" * shape.size

    def write(first: int) -> None:
        with here.db.transaction() as t:
            for number in range(first, min(first + bunch, rows)):
                for name in names:
                    t.set(_TABLE, b"com.example.www/page/%09d" % number, name, value)

    before = _used(here)
    for _ in range(shape.versions):
        for_each(here.db, 8, write, range(0, rows, bunch))
    return (_used(here) - before) / (rows * shape.columns * shape.versions) - shape.size


def _used(here: Place) -> int:
    """Return the bytes in use, without the buffers, which vary and are large with large values."""
    info = here.db.store.server_info()
    return info.used_memory - int(info.raw["mem_clients_normal"]) - int(info.raw["mem_aof_buffer"])
