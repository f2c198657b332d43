"""Events counted anew by Spark, as the benchmark of killed workers has them counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from percolator_bench.kills import count_in_python
from percolator_bench.recount import recount

if TYPE_CHECKING:
    from pyspark import SparkContext

pytestmark = pytest.mark.spark


def test_spark_counts_as_a_loop_does(spark: SparkContext, tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    events = [{"row": str(n), "key": f"key:{n % 7}", "amount": str(n * n)} for n in range(100)]
    lines.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = recount(lines)
    assert len(found) == 7
    assert found == count_in_python(lines)
