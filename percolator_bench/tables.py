"""A typed table of a million rows and ten columns, written and read by Spark.

The rows are generated once as Parquet files, which are also the peer. Spark's Python data sources do not
prune columns, so a query reads all ten, unless an option of the source names fewer. At the end another
process updates single rows, first alone and then while the table is read again and again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from percolator_bench import progress
from percolator_bench.companion import companion
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import NAMESPACE, Place
from percolator_bench.spark import DataFrame, SparkSession, with_spark
from percolator_core.database import connect
from percolator_core.errors import PercolatorError
from percolator_core.tables.model import Hash, Indexed, PrimaryKey, Table

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import pyarrow as pa

_SUITE: Final = "tables"
_figure = partial(median_figure, _SUITE, "Spark")

_GROUPS: Final = 100
"""Number of groups; a filter selects one."""

WANTED: Final = f"group = {_GROUPS // 2}"

_CHANGED: Final = 100
"""The second write updates one row in this many."""

RATE: Final = 5000
"""The other process makes this many updates a second."""

_UPDATERS: Final = 64
"""Updates in flight."""

_SEED: Final = 6
_SECONDS: Final = 8.0
"""The rate of updates is measured over at least this many seconds."""


class _Row(Table):
    """The columns that the two tables share."""

    id: PrimaryKey[int]
    sensor: str
    place: str
    at: datetime
    count: int
    state: int
    value: float
    low: float
    high: float


class Reading(_Row, name="readings", partition=[Hash("id", buckets=16)]):
    """A row: ten columns, among them the key."""

    group: int


class IndexedReading(_Row, name="indexed", partition=[Hash("id", buckets=16)]):
    """The same with an index."""

    group: Indexed[int]


class _Times(NamedTuple):
    """The seconds of each query of one round."""

    every: float
    one: float
    pushed: float
    unpushed: float
    parquet: float


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure rates of writing and reading, the effect of pushdown, and updates during reads.

    Raises:
        PercolatorError: a read differs from the writes.
    """
    return with_spark(_SUITE, scale, _measure)


def _measure(
    spark: SparkSession, here: Place, folder: Path, scale: Scale, rounds: int
) -> Iterator[Figure | Note]:
    bench = _Bench(spark, here, folder, scale.rows)
    yield from bench.write()
    yield from bench.read(rounds)
    yield from bench.read_while_updating(rounds)
    yield from bench.read_by_index(rounds)


@dataclass(frozen=True, slots=True)
class _Bench:
    spark: SparkSession
    here: Place
    folder: Path
    rows: int

    @property
    def parquet(self) -> str:
        return str(self.folder / "readings.parquet")

    def options(self, **more: str) -> Mapping[str, str]:
        return {"url": self.here.url, "namespace": NAMESPACE, "table": "readings", **more}

    def table(self, **more: str) -> DataFrame:
        return self.spark.read.format("percolator").options(**self.options(**more)).load()

    def write(self) -> Iterator[Figure]:
        """Write all rows, and then the rows that change."""
        progress.tell("making the rows")
        write_parquet(self.folder / "readings.parquet", self.rows)
        self.here.db.create_table(Reading)
        everything = self.spark.read.parquet(self.parquet)
        few = everything.where(f"id % {_CHANGED} = 0").withColumn("value", everything.value + 1.0)
        progress.tell("warming up")
        self._save(everything.limit(1000))
        progress.tell("writing")
        full = timed(partial(self._save, everything))
        progress.tell("updating")
        update = timed(partial(self._save, few))
        yield _figure("rows written", "/s", [self.rows / full], Target("at least", 15_000))
        yield _figure(
            "update of 1 % of the rows ÷ full load", "ratio", [update / full], Target("at most", 0.03)
        )

    def _save(self, rows: DataFrame, **more: str) -> None:
        rows.write.format("percolator").options(**self.options(**more)).mode("append").save()

    def read(self, rounds: int) -> Iterator[Figure]:
        """Run the queries in turn."""
        progress.tell("warming up")
        self._round()
        times = []
        for number in range(rounds):
            progress.tell(f"round {number + 1} of {rounds}")
            times.append(self._round())
        yield _figure(
            "rows read, 10 columns, count and sum",
            "/s",
            [self.rows / one.every for one in times],
            Target("at least", 60_000),
        )
        yield _figure("rows read, 1 column", "/s", [self.rows / one.one for one in times])
        yield _figure(
            "1 of 10 columns ÷ all",
            "ratio",
            [one.every / one.one for one in times],
            Target("at least", 2.0),
        )
        yield _figure(
            "1 % filter pushed down ÷ filtered by Spark",
            "ratio",
            [one.unpushed / one.pushed for one in times],
            Target("at least", 5.0),
        )
        yield _figure("Parquet ÷ table, seconds", "ratio", [one.parquet / one.every for one in times])

    def _round(self) -> _Times:
        every = timed(lambda: self._all(self.table()))
        one = timed(lambda: self._all(self.table(columns="value")))
        pushed = timed(lambda: self._some(self.table(filter=WANTED)))
        unpushed = timed(lambda: self._some(self.table().where(WANTED)))
        parquet = timed(lambda: self._all(self.spark.read.parquet(self.parquet)))
        return _Times(every, one, pushed, unpushed, parquet)

    def _some(self, rows: DataFrame) -> None:
        expected = sum(1 for number in range(self.rows) if number % _GROUPS == _GROUPS // 2)
        found, _ = count_and_sum(rows)
        if found != expected:
            raise PercolatorError(f"a filter found {found} rows of {expected}")

    def _all(self, rows: DataFrame) -> tuple[int, float]:
        found = count_and_sum(rows)
        if found[0] != self.rows:
            raise PercolatorError(f"{found[0]} rows were read of {self.rows}")
        return found

    def read_while_updating(self, rounds: int) -> Iterator[Figure | Note]:
        """Measure the rates of updates alone and during reads, and their ratio."""
        with _updates(self.here.url, self.rows) as updates:
            progress.tell("updates alone")
            alone = updates.rate(_SECONDS)
            progress.tell("updates beside reads")
            updates.begin()
            began = time.monotonic()
            read: list[tuple[int, tuple[int, float]]] = []
            while len(read) < rounds or time.monotonic() < began + _SECONDS:
                at = self.here.db.timestamp()
                read.append((at, self._all(self.table(at=str(at)))))
            beside = updates.end()
        progress.tell("comparing")
        for at, found in read:
            again = self._all(self.table(at=str(at)))
            if again != found:
                raise PercolatorError(f"the snapshot at {at} was read as {found}, and then as {again}")
        yield _figure("updates alone", "/s", [alone])
        yield _figure("updates while the table is read", "/s", [beside])
        yield _figure("updates beside reads ÷ alone", "ratio", [beside / alone], Target("at least", 0.7))
        yield Note(_SUITE, f"{len(read)} snapshots read beside updates were read again: the same each time")

    def read_by_index(self, rounds: int) -> Iterator[Figure]:
        """Measure the same filter on a column with an index, and the cost of the index for the load."""
        self.here.db.create_table(IndexedReading)
        progress.tell("writing with an index")
        full = timed(lambda: self._save(self.spark.read.parquet(self.parquet), table="indexed"))
        ratios = []
        for number in range(rounds):
            progress.tell(f"by an index, round {number + 1} of {rounds}")
            found = timed(lambda: self._some(self.table(table="indexed", filter=WANTED)))
            ratios.append(timed(lambda: self._some(self.table(table="indexed").where(WANTED))) / found)
        yield _figure("rows written with an index", "/s", [self.rows / full])
        yield _figure("1 % filter by an index ÷ filtered by Spark", "ratio", ratios)


def count_and_sum(rows: DataFrame) -> tuple[int, float]:
    """Return the count and the rounded sum: Spark adds in no fixed order. All values are multiples of 1/8."""
    (found,) = rows.selectExpr("count(*)", "sum(value)").collect()
    return found[0], round(found[1] or 0.0, 3)


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def write_parquet(path: Path, rows: int) -> None:
    """Generate rows, of a thousand kinds of sensors, as one Parquet file of several row groups."""
    from pyarrow import parquet

    made = rows_made(rows)
    parquet.write_table(made, path, row_group_size=max(1, rows // 8))


def rows_made(rows: int) -> pa.Table:
    """The rows of the table, the same each time."""
    import pyarrow as pa

    chance = random.Random(_SEED)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    eighths = [chance.randrange(80_000) / 8 for _ in range(rows)]
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "sensor": pa.array([f"sensor-{number % 1000:04}-of-site" for number in range(rows)], pa.string()),
            "place": pa.array(
                [f"hall {number % 40}, row {number % 7}" for number in range(rows)], pa.string()
            ),
            "at": pa.array(
                [since + timedelta(seconds=number) for number in range(rows)], pa.timestamp("us", "UTC")
            ),
            "group": pa.array([number % _GROUPS for number in range(rows)], pa.int64()),
            "count": pa.array([chance.randrange(1_000_000) for _ in range(rows)], pa.int64()),
            "state": pa.array([number % 5 for number in range(rows)], pa.int64()),
            "value": pa.array(eighths, pa.float64()),
            "low": pa.array([value - 1 for value in eighths], pa.float64()),
            "high": pa.array([value + 1 for value in eighths], pa.float64()),
        }
    )


# Updates by another process.


@dataclass(frozen=True, slots=True)
class _Updates:
    connection: Connection

    def begin(self) -> None:
        self.connection.send("begin")

    def end(self) -> float:
        """Return the number of updates per second since `begin`."""
        self.connection.send("end")
        rate: float = self.connection.recv()
        return rate

    def rate(self, seconds: float) -> float:
        """Measure for ``seconds`` seconds; return the number of updates per second."""
        self.begin()
        time.sleep(seconds)
        return self.end()


@contextmanager
def _updates(url: str, rows: int) -> Iterator[_Updates]:
    """Run another process that updates single rows until the block ends."""
    with companion("updates", update_rows, url, rows) as connection:
        yield _Updates(connection)


def update_rows(url: str, rows: int, connection: Connection) -> None:
    """Update rows at `RATE` until the other end closes; report the rate since "begin" at each "end"."""
    chance = random.Random()

    with connect(url, namespace=NAMESPACE) as db, db.concurrency(width=_UPDATERS) as pool:

        def update(row: int) -> None:
            value = chance.randrange(80_000) / 8
            db.run(lambda t: t.update(Reading, id=row, value=value))

        def some(count: int) -> None:
            for _ in pool.map(update, [chance.randrange(rows) for _ in range(count)]):
                pass

        some(_UPDATERS)
        connection.send("up")
        began, done, batch = time.monotonic(), 0, RATE // 50
        due = began
        while True:
            some(batch)
            done += batch
            due = max(due + batch / RATE, time.monotonic() - 1.0)  # a longer delay is not made up for
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                while connection.poll():
                    told = connection.recv()
                    if told == "begin":
                        began, done = time.monotonic(), 0
                    else:
                        connection.send(done / (time.monotonic() - began))
            except (EOFError, OSError):
                return
