"""Parts of suites that measure with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from percolator_bench.figure import Figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, place
from percolator_core.errors import ConfigurationError

DataFrame: TypeAlias = Any
SparkSession: TypeAlias = Any
"""A session of Spark: only `percolator_core.spark` imports pyspark."""

_ROUND: Final = 2
"""The Spark suites run one round for this many rounds of other suites: a round reads a million rows often."""


def with_spark(
    suite: str,
    scale: Scale,
    measured: Callable[[SparkSession, Place, Path, Scale, int], Iterator[Figure | Note]],
) -> Iterator[Figure | Note]:
    """Measure with Spark: ``measured`` gets a session, a server, a folder, the scale and the rounds.

    Yields a note instead if Spark is not installed. Raises as ``measured``.
    """
    try:
        spark = session()
    except ConfigurationError as missing:
        yield Note(suite, f"nothing was measured: {missing}")
        return
    try:
        with TemporaryDirectory(prefix="percolator-bench-") as folder, place("unix") as here:
            yield from measured(spark, here, Path(folder), scale, max(1, scale.rounds // _ROUND))
    finally:
        spark.stop()


def session() -> SparkSession:
    """Start Spark. Raises ConfigurationError if it is not installed."""
    from percolator_core.spark import spark_session

    return spark_session("percolator bench")
