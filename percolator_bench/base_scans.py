"""Spark's scans of a table with a base, compared with scans of plain Parquet files of the same rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from percolator_bench import progress
from percolator_bench.figure import Figure, Target
from percolator_bench.spark import DataFrame
from percolator_bench.tables import WANTED, count_and_sum, timed
from percolator_core.errors import PercolatorError


@dataclass(frozen=True, slots=True)
class Scans:
    """``plain`` reads the ``rows`` from Parquet, ``table`` by `read_table`. ``figure`` makes a figure."""

    plain: Callable[[], DataFrame]
    table: Callable[..., DataFrame]
    rows: int
    figure: Callable[..., Figure]

    def figures(self, what: str, rounds: int, target: Target, *, source: bool = False) -> Iterator[Figure]:
        """Yield rates of counts and sums, with a filter and without, divided by those of plain Parquet."""
        found: dict[str, list[float]] = defaultdict(list)
        for number in range(rounds + 1):
            progress.tell(f"{what}: round {number} of {rounds}")
            ratios = {
                "all": self._ratio(self._all),
                "filter": self._ratio(self._some),
                "column": self._ratio(self._one),
            }
            if source:
                ratios["source"] = self._ratio(self._all, partitions=16)
            if number:  # the first one warms up
                for name, ratio in ratios.items():
                    found[name].append(ratio)
        name, half = f"read_table ÷ Parquet, {what}", Target("at least", 0.5)
        yield self.figure(name, "ratio", found["all"], target)
        yield self.figure(f"{name}, 1 % filter", "ratio", found["filter"], half)
        yield self.figure(f"{name}, one column", "ratio", found["column"])
        if source:
            name = f"source percolator ÷ Parquet, {what}"
            yield self.figure(name, "ratio", found["source"], Target("at least", 0.2))

    def speed(self) -> float:
        """The speed of `read_table`, divided by that of plain Parquet."""
        return self._ratio(self._all)

    def _ratio(self, query: Callable[[DataFrame], None], **options: int) -> float:
        plain = timed(lambda: query(self.plain()))
        return plain / timed(lambda: query(self.table(**options)))

    def _all(self, rows: DataFrame) -> None:
        self._must_be_all(_add_up(rows))

    def _some(self, rows: DataFrame) -> None:
        _add_up(rows.where(WANTED))

    def _one(self, rows: DataFrame) -> None:
        found, _ = count_and_sum(rows)
        self._must_be_all(found)

    def _must_be_all(self, found: int) -> None:
        if found != self.rows:
            raise PercolatorError(f"{found} rows were read of {self.rows}")


def _add_up(rows: DataFrame) -> int:
    """Count the rows, sum the columns of numbers, and find the largest value of the others."""
    from pyspark.sql.types import NumericType

    found = [
        f"{'sum' if isinstance(one.dataType, NumericType) else 'max'}(`{one.name}`)" for one in rows.schema
    ]
    (row,) = rows.selectExpr("count(*)", *found).collect()
    return int(row[0])
