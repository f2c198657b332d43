"""A typed table with a base, compared with a plain Parquet file of its rows, and with a table without a base.

The rows are those of the suite ``tables``. After a flush they are cold: only the base has them. Later, one
row in a hundred is updated, so the store has a part of this row. Spark reads the table by `read_table` and by
the source ``percolator``, all ten columns or one. Each of these rates is divided by that of plain Parquet in
the same round.

Point reads are of random rows of the whole table, or of rows that are neighbours. The files are in the page
cache, because they have just been written. Rounds of these reads alternate with rounds of the same reads of
rows in the store. The rate of the latter is an upper bound, because a read of the base begins with a read of
the store. A task makes as many reads as in the suite ``micro``, all in one snapshot. If the figure's name
ends with "a snapshot each", a task makes one read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias
from unittest import mock

from percolator_bench import progress
from percolator_bench.base_scans import Scans
from percolator_bench.commits import COMMITTED, commits
from percolator_bench.contestants import GETS
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import NAMESPACE, Place, for_each
from percolator_bench.spark import SparkSession, with_spark
from percolator_bench.tables import Reading, rows_made, timed, write_parquet
from percolator_core.base.location import Location
from percolator_core.errors import PercolatorError
from percolator_core.maintenance.bases import BaseMaintainer
from percolator_core.schema.types import column_type
from percolator_core.spark import read_table
from percolator_core.tables.model import Hash, PrimaryKey, Table
from percolator_core.transaction.transaction import Transaction

_SUITE: Final = "base"
_TABLE: Final = "readings"
_figure = partial(median_figure, _SUITE, "Spark")
_CHANGED: Final = 100
"""One row in this many is updated after the flush."""

_HOT: Final = 20_000
"""Each table whose rows are in the store has this many rows."""

_PART: Final = 4
"""While clients commit, this many tablets are flushed at full speed, and as many with a `_SHARE` of the
store's time."""

_SHARE: Final = 0.2
_SECONDS: Final = 5.0
"""Commits are measured for this many seconds without a flush."""

_ABSENT: Final = 10_000
_ONE_BY_ONE: Final = 300
_IN_FLIGHT: Final = 5000
_GETS_IN_FLIGHT: Final = 20_000
_WIDTH: Final = 256
_NEIGHBOURS: Final = 2000
_SEED: Final = 16


class HotReading(Reading, name="hot_readings", partition=[Hash("id", buckets=16)]):
    """Hot rows: they have the same columns as the cold rows of `Reading`, but are in the store."""


class _Hot(Table):
    id: PrimaryKey[int]
    value: float = 0.0


class WithBase(_Hot, name="hot_with_base", partition=[Hash("id", buckets=16)]):
    """Rows in the store, in a table that has a base."""


class WithoutBase(_Hot, name="hot", partition=[Hash("id", buckets=16)]):
    """The same rows in a table without a base."""


class Sparse(_Hot, name="sparse", partition=[Hash("id", buckets=16)]):
    """Cold rows whose ids are even."""


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure the flush, memory, scans, and reads of cold and of hot rows.

    Raises:
        PercolatorError: a read differs from the writes.
    """
    return with_spark(_SUITE, scale, _measure)


def _measure(
    spark: SparkSession, here: Place, folder: Path, scale: Scale, rounds: int
) -> Iterator[Figure | Note]:
    bench = _Bench(spark, here, folder, scale.rows)
    yield from bench.flush()
    yield from bench.scans.figures("no deltas", rounds, Target("at least", 0.9), source=True)
    yield from bench.arrow(rounds)
    yield from bench.points(rounds)
    yield from bench.absent()
    bench.update(0)
    yield from bench.scans.figures("1 % deltas", rounds, Target("at least", 0.5))
    yield from bench.upkeep(rounds)
    yield from bench.hot(rounds)


_Read: TypeAlias = Callable[[str, Sequence[int]], None]
"""Reads rows of a table."""


@dataclass(frozen=True, slots=True)
class _Bench:
    spark: SparkSession
    here: Place
    folder: Path
    rows: int

    @property
    def parquet(self) -> str:
        return str(self.folder / "readings.parquet")

    def flush(self) -> Iterator[Figure]:
        """Load all rows, and move them into the base."""
        db = self.here.db
        progress.tell("making the rows")
        write_parquet(Path(self.parquet), self.rows)
        db.create_table(Reading)
        db.set_base(_TABLE, f"file://{self.folder}/base")
        empty = self.here.db.store.server_info().used_memory
        progress.tell("writing")
        options = {"url": self.here.url, "namespace": NAMESPACE, "table": _TABLE}
        rows = self.spark.read.parquet(self.parquet)
        rows.write.format("percolator").options(**options).mode("append").save()
        self._end_leases()
        tablets = [(_TABLE, number) for number in range(db.catalog.table(_TABLE).tablets)]
        paced, beside, rest = tablets[:_PART], tablets[_PART : 2 * _PART], tablets[2 * _PART :]
        progress.tell("moving rows into the base")
        moved = db.flush(_TABLE, everything=True, tablets=rest)
        with commits(self.here.url) as process:
            progress.tell("commits alone")
            alone = process.during(partial(time.sleep, _SECONDS))
            progress.tell("commits beside a flush")
            flush = partial(db.flush, _TABLE, everything=True)
            percentiles = [
                process.during(partial(flush, tablets=beside)),
                process.during(partial(flush, tablets=paced, share=_SHARE)),
            ]
        db.drop_table(COMMITTED)
        figures = db.base(_TABLE)
        if figures is None or figures.rows_in_base != self.rows:
            raise PercolatorError(f"not all of the {self.rows} rows were moved into the base: {figures}")
        held = self.here.db.store.server_info().used_memory - empty
        yield _figure(
            "rows flushed, 10 columns", "/s", [moved.rows / moved.seconds], Target("at least", 50_000)
        )
        yield _figure(
            "store's memory for a cold row", "bytes", [max(0, held) / self.rows], Target("at most", 4)
        )
        yield _figure("files of the base for a row", "bytes", [figures.bytes / self.rows])
        for what, percentile in zip(("", f", share {_SHARE}"), percentiles, strict=True):
            name = f"99th percentile of commits beside a flush ÷ alone{what}"
            yield _figure(name, "ratio", [percentile / alone], Target("at most", 2))

    def _end_leases(self) -> None:
        """End the leases of Spark, which would hold a flush back for some minutes."""
        self.here.db.store.one((b"DEL", self.here.db.store.keyspace.pins))

    @property
    def scans(self) -> Scans:
        table = partial(read_table, self.spark, self.here.url, _TABLE, namespace=NAMESPACE)
        return Scans(partial(self.spark.read.parquet, self.parquet), table, self.rows, _figure)

    def arrow(self, rounds: int) -> Iterator[Figure]:
        """Measure a read of all rows and columns as one Arrow table."""
        rates = []
        for number in range(rounds):
            progress.tell(f"Arrow: round {number + 1} of {rounds}")
            began = time.perf_counter()
            found = self.here.db.snapshot().to_arrow(_TABLE)
            rates.append(len(found) / (time.perf_counter() - began))
        yield _figure("to_arrow of cold rows, 10 columns", "/s", rates, Target("at least", 1_500_000))

    def points(self, rounds: int) -> Iterator[Figure]:
        """Measure reads of single cells and rows by their keys, cold ones and hot ones."""
        progress.tell("point reads")
        self._load_hot()
        chance, near = random.Random(_SEED), min(_NEIGHBOURS, self.rows)
        for name, read, bound in (
            ("get of a cold cell, one by one", self._gets, Target("at most", 2)),
            ("find of a cold row, one by one", self._finds, None),
        ):
            seconds = [
                timed(partial(read, _TABLE, [chance.randrange(self.rows)])) for _ in range(_ONE_BY_ONE)
            ]
            yield _figure(name, "ms", [1e3 * median(seconds)], bound)
        for name, within, least in (("random", self.rows, 5000), ("near each other", near, 50_000)):
            yield from self._points(f"get of cells, {name}", self._gets, GETS, within, rounds, least)
            yield from self._points(f"get of cells, {name}, a snapshot each", self._gets, 1, within, rounds)
            yield from self._points(f"find of rows, {name}, a snapshot each", self._finds, 1, within, rounds)

    def _points(  # noqa: PLR0917
        self, name: str, read: _Read, size: int, within: int, rounds: int, least: float = 5000
    ) -> Iterator[Figure]:
        """Measure reads of cold and of hot rows in alternate rounds; each task makes ``size`` reads."""
        chance, count = random.Random(_SEED), _IN_FLIGHT if size == 1 else _GETS_IN_FLIGHT
        rates: dict[str, list[float]] = {"cold": [], "hot": []}
        for number in range(rounds):
            progress.tell(f"{name}: round {number + 1} of {rounds}")
            for heat, table, rows in (("cold", _TABLE, within), ("hot", "hot_readings", min(within, _HOT))):
                wanted = [chance.randrange(rows) for _ in range(count)]
                some = [wanted[first : first + size] for first in range(0, count, size)]
                rates[heat].append(size * self._in_flight(partial(read, table), some))
        for heat, bound in (("cold", Target("at least", least)), ("hot", None)):
            yield _figure(f"{heat}: {name}, {_WIDTH} in flight", "/s", rates[heat], bound)

    def _load_hot(self) -> None:
        db = self.here.db
        db.create_table(HotReading)
        rows = rows_made(_HOT)

        def load(first: int) -> None:
            with db.transaction() as t:
                for row in rows.slice(first, 500).to_pylist():
                    t.upsert("hot_readings", **row)

        for_each(db, 8, load, range(0, _HOT, 500))

    def _gets(self, table: str, rows: Sequence[int]) -> None:
        snapshot = self.here.db.snapshot()
        for row in rows:
            if snapshot.get(table, column_type("int").encode(row), "value") is None:
                raise PercolatorError(f"{table} has no row {row}")

    def _finds(self, table: str, rows: Sequence[int]) -> None:
        for row in rows:
            if self.here.db.snapshot().find(table, id=row) is None:
                raise PercolatorError(f"{table} has no row {row}")

    def _in_flight(self, read: Callable[[Any], None], rows: Sequence[Any]) -> float:
        with self.here.db.concurrency(_WIDTH) as executor:
            seconds = timed(lambda: list(executor.map(read, rows)))
        return len(rows) / seconds

    def absent(self) -> Iterator[Figure]:
        """Measure gets of rows that do not exist, whose keys are between those of cold rows."""
        db, chance = self.here.db, random.Random(_SEED)
        db.create_table(Sparse)
        db.set_base(Sparse, f"file://{self.folder}/sparse")
        for first in range(0, 2 * _HOT, 1000):
            with db.transaction() as t:
                for row in range(first, first + 1000, 2):
                    t.upsert(Sparse(id=row))
        db.flush(Sparse, everything=True)
        db.client.bases.cache.forget(lambda _: False)
        progress.tell("absent rows")
        with mock.patch.object(Location, "read_at", autospec=True, side_effect=Location.read_at) as reads:
            for _ in range(_ABSENT):
                if db.snapshot().find(Sparse, id=2 * chance.randrange(_HOT) + 1) is not None:
                    raise PercolatorError("a row was found that was never written")
        yield _figure(
            "file reads for a get of an absent row",
            "ratio",
            [reads.call_count / _ABSENT],
            Target("at most", 0.01),
        )

    def update(self, offset: int) -> None:
        """Update one row in a hundred, from the one at ``offset`` on, in one column."""
        progress.tell("updating")
        db = self.here.db

        def change(t: Transaction, first: int) -> None:
            for row in range(first, min(first + 100 * _CHANGED, self.rows), _CHANGED):
                t.update(_TABLE, id=row, count=offset + 1)

        def some(first: int) -> None:
            db.run(partial(change, first=first))

        for_each(db, 8, some, range(offset, self.rows, 100 * _CHANGED))

    def upkeep(self, rounds: int) -> Iterator[Figure]:
        """Ten times, update one row in a hundred, and flush with a tenth of the store's time."""
        db = self.here.db
        db.set_base(_TABLE, f"file://{self.folder}/base", cold_after=timedelta(0))
        maintainer = BaseMaintainer(db.client, db.schema_changes, share=0.1)
        self._end_leases()
        maintainer.flush(_TABLE)
        before = [self.scans.speed() for _ in range(rounds)]
        written = 0
        self._end_leases()
        for number in range(1, 11):
            self.update(number)
            progress.tell(f"upkeep: round {number} of 10")
            written += maintainer.flush(_TABLE).bytes
        after = [self.scans.speed() for _ in range(rounds)]
        found = db.base(_TABLE)
        assert found is not None
        changed = 10 * self.rows / _CHANGED * found.bytes / found.rows_in_base
        yield _figure(
            "scan after updates of 10 times 1 % ÷ before",
            "ratio",
            [median(after) / median(before)],
            Target("at least", 0.7),
        )
        yield _figure("bytes written ÷ bytes of the updated rows", "ratio", [written / changed])

    def hot(self, rounds: int) -> Iterator[Figure]:
        """Measure reads and commits of hot rows, in a table with a base and in one without."""
        db, chance = self.here.db, random.Random(_SEED)
        for model in (WithBase, WithoutBase):
            db.create_table(model)
            if model is WithBase:
                db.set_base(model, f"file://{self.folder}/hot")
                with db.transaction() as t:
                    t.upsert(model(id=-1))
                db.flush(model, everything=True)
            for first in range(0, _HOT, 500):
                with db.transaction() as t:
                    for row in range(first, first + 500):
                        t.upsert(model(id=row))

        def get(table: str, row: int) -> None:
            db.snapshot().find(table, id=row)

        def put(table: str, row: int) -> None:
            db.run(lambda t: t.update(table, id=row, value=2.0))

        for name, operation, least in (("get", get, 0.9), ("commit", put, 0.98)):
            ratios = []
            for number in range(2 * rounds + 1):
                progress.tell(f"hot rows, {name}: round {number} of {2 * rounds}")
                rows = [chance.randrange(_HOT) for _ in range(_IN_FLIGHT)]
                rates = {
                    table: self._in_flight(partial(operation, table), rows)
                    for table in (("hot_with_base", "hot") if number % 2 else ("hot", "hot_with_base"))
                }
                if number:
                    ratios.append(rates["hot_with_base"] / rates["hot"])
            yield _figure(
                f"{name} of a hot row, with a base ÷ without", "ratio", ratios, Target("at least", least)
            )
