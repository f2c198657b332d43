"""Count events again with Spark, to check totals of observers.

``python -m percolator_bench.recount FILE`` prints the totals as one JSON object.
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
    events = session.read.schema("key STRING, amount STRING").json(str(lines))
    sums = "SELECT key, count(*) AS number, sum(cast(amount AS long)) AS sum FROM {events} GROUP BY key"
    return {row["key"]: (row["number"], row["sum"]) for row in session.sql(sums, events=events).collect()}


if __name__ == "__main__":
    print(json.dumps(recount(Path(sys.argv[1]))))  # noqa: T201
