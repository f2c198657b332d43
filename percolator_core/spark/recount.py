"""Count events again with Spark, to check totals of observers.

``python -m percolator_core.spark.recount FILE`` prints the totals as one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from percolator_core.spark.session import spark_context


def recount(lines: Path) -> dict[str, tuple[int, int]]:
    """Return the number of events and the sum of their amounts, by key.

    Args:
        lines: a file of JSON lines, each an object with ``key`` and ``amount``, both text.

    Raises:
        ImportError: pyspark is not installed.
        ConfigurationError: as for `spark_context`.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col, count
    from pyspark.sql.functions import sum as total

    session = SparkSession(spark_context("percolator recount"))
    events = session.read.schema("key STRING, amount STRING").json(str(lines))
    sums = events.groupBy("key").agg(
        count("*").alias("number"), total(col("amount").cast("long")).alias("sum")
    )
    return {row["key"]: (row["number"], row["sum"]) for row in sums.collect()}


if __name__ == "__main__":
    print(json.dumps(recount(Path(sys.argv[1]))))  # noqa: T201
