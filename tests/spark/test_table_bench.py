"""The benchmark of typed tables, tiny: every figure is there, and a wrong answer is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from percolator_bench import Figure, Note, Scale, tables
from percolator_bench import spark as bench_spark
from percolator_core.errors import PercolatorError

if TYPE_CHECKING:
    from pyspark import SparkContext

pytestmark = pytest.mark.spark

ROWS = 1200


class Kept:
    """The session of all tests, which the benchmark must not stop."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def small(spark: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_spark, "session", lambda: Kept(SparkSession(spark)))
    monkeypatch.setattr(tables, "_SECONDS", 0.2)


@pytest.mark.slow
def test_every_figure_is_there() -> None:
    made = list(tables.measure(Scale(rows=ROWS, rounds=2)))
    figures = {one.name: one for one in made if isinstance(one, Figure)}
    assert [name for name, one in figures.items() if one.target is not None] == [
        "rows written",
        "update of 1 % of the rows ÷ full load",
        "rows read, 10 columns, count and sum",
        "1 of 10 columns ÷ all",
        "1 % filter pushed down ÷ filtered by Spark",
        "updates beside reads ÷ alone",
    ]
    assert all(one.value > 0 for one in figures.values())
    assert {"rows written with an index", "Parquet ÷ table, seconds"} < set(figures)
    (note,) = [one for one in made if isinstance(one, Note)]
    assert "the same each time" in note.text


def test_an_answer_that_is_wrong_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "count_and_sum", lambda rows: (7, 0.0))
    with pytest.raises(PercolatorError, match=f"7 rows were read of {ROWS}"):
        list(tables.measure(Scale(rows=ROWS, rounds=1)))
