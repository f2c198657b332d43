"""Count events again with Spark, to check totals of observers.

``python -m percolator_core.spark.recount FILE`` prints the totals as one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from percolator_core.spark.session import spark_session


def recount(lines: Path) -> dict[str, tuple[int, int]]:
    """Return the number of events and the sum of their amounts, by key.

    Args:
        lines: a file of JSON lines, each an object with ``key`` and ``amount``, both text.

    Raises:
        ConfigurationError: as for `spark_session`.
    """
    session = spark_session("percolator recount")
    from pyspark.sql.functions import expr

    events = session.read.schema("key STRING, amount STRING").json(str(lines))
    sums = events.groupBy("key").agg(expr("count(*) AS number"), expr("sum(cast(amount AS long)) AS sum"))
    return {row["key"]: (row["number"], row["sum"]) for row in sums.collect()}


if __name__ == "__main__":
    print(json.dumps(recount(Path(sys.argv[1]))))  # noqa: T201
