"""The filters that pyarrow writes are tested as the format says."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from percolator_core.base.bloom import BloomFilter


def filter_of(keys: list[bytes], expected: int) -> BloomFilter:
    file = io.BytesIO()
    options = {"k": {"ndv": expected, "fpp": 0.01}}
    parquet.write_table(pa.table({"k": pa.array(keys, pa.binary())}), file, bloom_filter_options=options)
    column = parquet.read_metadata(io.BytesIO(file.getvalue())).row_group(0).column(0)
    start = column.bloom_filter_offset
    return BloomFilter(file.getvalue()[start : start + column.bloom_filter_length])


@pytest.mark.parametrize("count", [1, 100, 16384])
def test_every_key_is_found_and_nearly_no_other(count: int) -> None:
    some = random.Random(count)
    keys = sorted({some.randbytes(some.randrange(20)) for _ in range(count)})
    others = [some.randbytes(21) for _ in range(20_000)]
    found = filter_of(keys, max(1, count))
    assert all(found.may_have(key) for key in keys)
    assert sum(found.may_have(other) for other in others) <= 0.015 * len(others)
