"""Filters that the store takes over mean exactly what they mean to Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from percolator_core import Hash, PrimaryKey, Table
from percolator_core.schema.predicates import bind
from percolator_core.schema.types import column_type
from percolator_core.spark.tables.fields import spark_schema
from percolator_core.spark.tables.filters import predicate_of
from percolator_core.tables.model import definition_of

if TYPE_CHECKING:
    from pyspark import SparkContext

    from percolator_core.schema.definitions import TableDefinition


class Item(Table, name="items", partition=[Hash("id", buckets=4)]):
    id: PrimaryKey[int]
    flag: bool | None = None
    size: int | None = None
    weight: float | None = None
    name: str | None = None
    data: bytes | None = None
    at: datetime | None = None
    day: date | None = None
    price: Decimal | None = None
    ref: UUID | None = None
    extra: list[int] | None = None


U1 = UUID("0a0b0c0d-0000-0000-0000-000000000001")
U2 = UUID("fa0b0c0d-0000-0000-0000-000000000001")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

ROWS: list[dict[str, Any]] = [
    {},
    {
        "flag": True,
        "size": 5,
        "weight": 0.5,
        "name": "abc",
        "data": b"\x00\xff",
        "at": NOON,
        "day": date(2026, 1, 31),
        "price": Decimal("1.50"),
        "ref": U1,
        "extra": [1],
    },
    {"flag": False, "size": -(2**63), "weight": math.nan, "name": "", "data": b"", "price": Decimal("-1.50")},
    {"size": 2**63 - 1, "weight": math.inf, "name": "ä", "data": b"\xff", "ref": U2, "price": Decimal(0)},
    {"size": 0, "weight": -0.0, "name": "ab\x00", "at": datetime(1969, 7, 20, tzinfo=UTC)},
    {"size": -1, "weight": -math.inf, "name": "\U0001f600", "day": date(1, 1, 1)},
    {"size": 1, "weight": 0.0, "name": "\ufffd", "day": date(9999, 12, 31)},
]

TAKEN: list[tuple[Filter, str]] = [
    (EqualTo(("flag",), True), "flag"),
    (Not(EqualTo(("flag",), True)), "not flag"),
    (LessThan(("flag",), True), "flag < true"),
    (EqualTo(("size",), 5), "size = 5"),
    (Not(EqualTo(("size",), 5)), "size <> 5"),
    (GreaterThan(("size",), -1), "size > -1"),
    (LessThanOrEqual(("size",), -(2**63)), "size <= -9223372036854775808L"),
    (EqualNullSafe(("size",), None), "size <=> null"),
    (EqualNullSafe(("size",), 5), "size <=> 5"),
    (Not(EqualNullSafe(("size",), 5)), "not (size <=> 5)"),
    (Not(EqualNullSafe(("size",), None)), "not (size <=> null)"),
    (In(("size",), (5, 0)), "size in (5, 0)"),
    (In(("size",), (5, None)), "size in (5, null)"),
    (Not(In(("size",), (5, 0))), "size not in (5, 0)"),
    (IsNull(("size",)), "size is null"),
    (IsNotNull(("size",)), "size is not null"),
    (IsNull(("extra",)), "extra is null"),
    (Not(IsNull(("extra",))), "extra is not null"),
    (EqualTo(("weight",), math.nan), "weight = double('NaN')"),
    (Not(EqualTo(("weight",), math.nan)), "weight <> double('NaN')"),
    (GreaterThan(("weight",), math.inf), "weight > double('inf')"),
    (GreaterThanOrEqual(("weight",), math.nan), "weight >= double('NaN')"),
    (LessThan(("weight",), math.nan), "weight < double('NaN')"),
    (EqualTo(("weight",), 0.0), "weight = 0.0D"),
    (EqualTo(("weight",), -0.0), "weight = -0.0D"),
    (LessThan(("weight",), 0.0), "weight < 0.0D"),
    (In(("weight",), (0.0, math.nan)), "weight in (0.0D, double('NaN'))"),
    (EqualTo(("name",), "abc"), "name = 'abc'"),
    (GreaterThan(("name",), "ab"), "name > 'ab'"),
    (LessThan(("name",), "\U0001f600"), "name < '\U0001f600'"),
    (GreaterThan(("name",), "\ufffd"), "name > '\ufffd'"),
    (StringStartsWith(("name",), "ab"), "name like 'ab%'"),
    (Not(StringStartsWith(("name",), "ab")), "not (name like 'ab%')"),
    (StringStartsWith(("name",), ""), "startswith(name, '')"),
    (EqualTo(("data",), bytearray(b"\xff")), "data = X'ff'"),
    (GreaterThan(("data",), b"\x00"), "data > X'00'"),
    (EqualTo(("at",), NOON), "at = timestamp'2026-01-31 12:00:00'"),
    (LessThan(("at",), NOON), "at < timestamp'2026-01-31 12:00:00'"),
    (GreaterThanOrEqual(("day",), date(2026, 1, 31)), "day >= date'2026-01-31'"),
    (LessThan(("day",), date(2026, 1, 31)), "day < date'2026-01-31'"),
    (EqualTo(("price",), Decimal("1.5")), "price = 1.5"),
    (EqualTo(("price",), 0), "price = 0"),
    (LessThan(("price",), Decimal("1.50")), "price < 1.50"),
    (EqualTo(("ref",), str(U1)), f"ref = '{U1}'"),
    (GreaterThan(("ref",), str(U1)), f"ref > '{U1}'"),
    (LessThan(("ref",), str(U2)), f"ref < '{U2}'"),
    (In(("ref",), (str(U1), str(U2))), f"ref in ('{U1}', '{U2}')"),
    (GreaterThan(("id",), 3), "id > 3"),
]

LEFT: list[Filter] = [
    EqualTo(("extra",), "[1]"),
    EqualTo(("ref",), str(U1).upper()),
    EqualTo(("ref",), U1.hex),
    GreaterThan(("ref",), "0a"),
    StringStartsWith(("ref",), "0a"),
    StringContains(("name",), "b"),
    Not(StringContains(("name",), "b")),
    Not(In(("size",), (5, None))),
    EqualTo(("size",), None),
    EqualTo(("size",), 2**63),
    EqualTo(("size",), 5.0),
    EqualTo(("size",), True),
    EqualTo(("weight",), 5),
    EqualTo(("name",), 5),
    EqualTo(("name",), "\ud800"),
    EqualTo(("at",), datetime(2026, 1, 31)),  # noqa: DTZ001 - Spark's TIMESTAMP_NTZ
    EqualTo(("day",), NOON),
    EqualTo(("price",), Decimal("1." + 39 * "1")),
    EqualTo(("a", "b"), 1),
    EqualTo(("nothing",), 1),
]


def encoded(definition: TableDefinition, row: Mapping[str, Any]) -> dict[str, bytes | None]:
    return {
        column.name: None
        if row.get(column.name) is None
        else column_type(column.type).encode(row[column.name])
        for column in definition.columns
    }


@pytest.mark.spark
def test_the_same_rows_as_spark(spark: SparkContext) -> None:
    session = SparkSession(spark)
    definition = definition_of(Item)
    rows = [{"id": number, **row} for number, row in enumerate(ROWS)]
    shown = [
        tuple(
            str(value) if isinstance(value := row.get(name), UUID | list) else value
            for name in definition.by_name
        )
        for row in rows
    ]
    frame = session.createDataFrame(shown, spark_schema(definition.columns))
    found = frame.selectExpr(*(f"({text}) as c{number}" for number, (_, text) in enumerate(TAKEN))).collect()
    for number, (one, text) in enumerate(TAKEN):
        predicate = predicate_of(one, definition)
        assert predicate is not None, text
        bound = bind(predicate, definition)
        ours = [bound.holds(encoded(definition, row).__getitem__) is True for row in rows]
        assert ours == [row[number] is True for row in found], text
    assert any(row[0] is None for row in found)


@pytest.mark.parametrize("one", LEFT, ids=str)
def test_what_is_left_to_spark(one: Filter) -> None:
    assert predicate_of(one, definition_of(Item)) is None
