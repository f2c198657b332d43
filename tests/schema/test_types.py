"""The bytes of values: they sort as the values do, and the values come back."""

from __future__ import annotations

import decimal
import json
import math
import sys
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.schema.types import MOST_SHOWN, column_type, encode_value, shown
from tests.schema.values import INTS, QUICK, VALUES, WIDTHS, rank

TYPES = sorted(VALUES)


@pytest.mark.parametrize("name", TYPES)
def test_encoded_values_sort_as_the_values(name: str) -> None:
    kind = column_type(name)

    @QUICK
    @given(VALUES[name], VALUES[name])
    def check(left: Any, right: Any) -> None:
        one, other = kind.encode(left), kind.encode(right)
        assert (one < other, one == other) == (rank(left) < rank(right), rank(left) == rank(right))

    check()


@pytest.mark.parametrize("name", TYPES)
def test_values_come_back(name: str) -> None:
    kind = column_type(name)

    @QUICK
    @given(VALUES[name])
    def check(value: Any) -> None:
        encoded = kind.encode(value)
        back = kind.decode(encoded)
        assert rank(back) == rank(value)
        assert type(back) is type(value)
        assert kind.encode(back) == encoded
        assert kind.width in {None, len(encoded)}

    check()
    assert kind.name == name
    if name in WIDTHS:
        assert kind.width == WIDTHS[name]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@QUICK
@given(JSON)
def test_json_comes_back(value: Any) -> None:
    kind = column_type("json")
    assert kind.decode(kind.encode(value)) == value
    assert json.loads(kind.encode(value).decode()) == value
    assert not kind.has_order


def test_a_zero_is_one_zero_and_a_nan_one_nan() -> None:
    kind = column_type("float")
    assert kind.encode(-0.0) == kind.encode(0.0) == kind.encode(0)
    assert math.copysign(1, kind.decode(kind.encode(-0.0))) == 1
    assert kind.encode(math.nan) == kind.encode(-math.nan) > kind.encode(math.inf)
    assert math.isnan(kind.decode(kind.encode(-math.nan)))


def test_a_time_is_one_time_in_all_zones() -> None:
    kind = column_type("datetime")
    there = datetime(2025, 6, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    found = kind.decode(kind.encode(there))
    assert (found, found.tzinfo) == (there, UTC)
    assert kind.encode(there) == kind.encode(there.astimezone(UTC))


class NoOffset(tzinfo):
    def utcoffset(self, when: datetime | None, /) -> None:
        return None

    def dst(self, when: datetime | None, /) -> None:
        return None

    def tzname(self, when: datetime | None, /) -> None:
        return None


EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("bool", 1, TypeError),
        ("int", True, TypeError),
        ("int", 1.0, TypeError),
        ("int", None, TypeError),
        *(("int", value, ValueError) for value in INTS if not -(2**63) <= value < 2**63),
        pytest.param("int", 10**5000, ValueError, id="huge int"),
        ("float", False, TypeError),
        ("float", "1", TypeError),
        ("float", 10**400, ValueError),
        pytest.param("float", -(10**5000), ValueError, id="huge float"),
        ("str", b"a", TypeError),
        ("str", "\ud800", ValueError),
        ("bytes", "a", TypeError),
        ("bytes", bytearray(b"a"), TypeError),
        ("datetime", datetime(2025, 1, 1), ValueError),  # noqa: DTZ001
        ("datetime", datetime(2025, 1, 1, tzinfo=NoOffset()), ValueError),
        ("datetime", date(2025, 1, 1), TypeError),
        # In UTC these are outside the years that a datetime has, so that no reader could make one of them.
        ("datetime", datetime.min.replace(tzinfo=EAST), ValueError),
        ("datetime", datetime.max.replace(tzinfo=WEST), ValueError),
        ("date", datetime(2025, 1, 1, tzinfo=UTC), TypeError),
        ("uuid", "12345678-1234-5678-1234-567812345678", TypeError),
        ("decimal(5,2)", 1.5, TypeError),
        ("decimal(5,2)", True, TypeError),
        ("decimal(5,2)", Decimal(1000), ValueError),
        ("decimal(5,2)", Decimal("-999.995"), ValueError),
        ("decimal(5,2)", Decimal("0.001"), ValueError),
        ("decimal(5,2)", Decimal("1E+999999"), ValueError),
        ("decimal(5,2)", Decimal("1E-999999"), ValueError),
        pytest.param("decimal(5,2)", 10**5000, ValueError, id="huge decimal(5,2)"),
        ("decimal(38,0)", Decimal("1E+38"), ValueError),
        ("decimal(38,38)", Decimal(1), ValueError),
        ("decimal(5,2)", Decimal("NaN"), ValueError),
        ("decimal(5,2)", Decimal("sNaN"), ValueError),
        ("decimal(5,2)", Decimal("-Infinity"), ValueError),
        ("json", {1, 2}, ValueError),
        ("json", math.nan, ValueError),
        ("json", "\ud800", ValueError),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        column_type(name).encode(value)
    assert len(str(caught.value)) < 200
    assert "Exceeds the limit" not in str(caught.value)
    with pytest.raises(error, match=r"^price: "):
        encode_value("price", column_type(name).encode, value)


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        column_type("json").encode(value)


@pytest.mark.parametrize(
    ("name", "value", "back"),
    [
        ("decimal(10,2)", Decimal("1E+3"), "1000.00"),
        ("decimal(10,2)", Decimal("-1.5000"), "-1.50"),
        ("decimal(10,2)", 7, "7.00"),
        ("decimal(38,0)", Decimal("9" * 38), "9" * 38),
        ("decimal(38,38)", Decimal("-0." + "9" * 38), "-0." + "9" * 38),
        ("decimal(5,2)", Decimal("1." + "0" * 5000), "1.00"),
    ],
)
def test_decimals_have_the_places_of_their_column(name: str, value: Any, back: str) -> None:
    column_type.cache_clear()
    with decimal.localcontext(decimal.Context(prec=3, Emin=-5, Emax=5)):
        kind = column_type(name)
        found = kind.decode(kind.encode(value))
    assert str(found) == back


@pytest.mark.parametrize(
    "name",
    [
        "text",
        "",
        "int ",
        "decimal",
        "decimal(0,0)",
        "decimal(39,0)",
        "decimal(5,6)",
        "decimal(05,2)",
        "decimal(5, 2)",
        "decimal(\N{ARABIC-INDIC DIGIT FIVE},2)",
        "decimal(5,2)\n",
        pytest.param(f"decimal({'9' * 5000},2)", id="long"),
    ],
)
def test_types_that_there_are_not(name: str) -> None:
    with pytest.raises(ValueError, match="decimal") as caught:
        column_type(name)
    assert len(str(caught.value)) < 300


def test_long_values_are_cut_off_in_messages() -> None:
    assert shown(UUID(int=1)) == "UUID('00000000-0000-0000-0000-000000000001')"
    assert len(shown("x" * 1000)) == MOST_SHOWN
    assert shown(10**5000) == "this int"
