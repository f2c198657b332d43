"""Values of each type of column, awkward ones above all, and how they sort."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import settings
from hypothesis import strategies as st

from percolator_core.schema.definitions import Column, TableDefinition

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
QUICK = settings(derandomize=not LONG, deadline=None, max_examples=2000 if LONG else 60)

ZONES = [
    *(timezone(timedelta(minutes=minutes)) for minutes in (0, 14 * 60, -14 * 60, 345)),
    *map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")),
]
EDGES = [
    "",
    "\0",
    "\0\0",
    "a",
    "a\0",
    "a\0b",
    "a\x01",
    "\x00\x01",
    "\x00\xff",
    "\x7f",
    "ÿ",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U0010ffff",
]
INTS = [edge + off for edge in (0, -(2**63), 2**63, 2**32, -(2**32), 2**53) for off in (-1, 0, 1)]
FLOATS = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 5e-324, -5e-324, 2.2250738585072014e-308]


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    """Of all that fit, written in all ways: trailing zeros, positive exponents."""
    most = 10**digits - 1
    whole = st.integers(-most, most) | st.sampled_from([0, 1, -1, most, -most])
    plain = whole.map(lambda scaled: Decimal(f"{scaled}E-{places}"))
    # Not by arithmetic, which would round to the digits of the context.
    zeros = st.integers(0, max(0, digits - places - 1)).map(lambda exponent: Decimal(f"-1E+{exponent}"))
    normal = plain.map(
        lambda value: Decimal(f"{value}0") if "." in str(value) and "E" not in str(value) else value
    )
    return plain | normal | (zeros if digits > places else plain)


TIMES = st.builds(
    lambda naive, zone, fold: naive.replace(tzinfo=zone, fold=fold),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001
    st.sampled_from(ZONES),
    st.integers(0, 1),
) | st.sampled_from(
    [
        datetime.min.replace(tzinfo=ZONES[0]),
        datetime.max.replace(tzinfo=ZONES[0]),
        datetime.min.replace(tzinfo=ZONES[2]),
        datetime.max.replace(tzinfo=ZONES[1]),
        *(datetime(2025, 10, 26, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin")) for fold in (0, 1)),
    ]
)
TEXTS = st.text(st.sampled_from("a\0\x01ÿ\uffff\U0010ffff"), max_size=4) | st.sampled_from(EDGES)

VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([one for one in INTS if -(2**63) <= one < 2**63])
    | st.integers(-3, 3),
    "float": st.floats() | st.sampled_from(FLOATS) | st.integers(-3, 3).map(float),
    "str": TEXTS | st.text(max_size=5),
    "bytes": st.binary(max_size=4) | st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=4).map(bytes),
    "datetime": TIMES,
    "date": st.dates() | st.sampled_from([date.min, date.max, date(1970, 1, 1), date(1969, 12, 31)]),
    "decimal(1,0)": decimals(1, 0),
    "decimal(5,2)": decimals(5, 2),
    "decimal(18,0)": decimals(18, 0),
    "decimal(19,19)": decimals(19, 19),
    "decimal(38,10)": decimals(38, 10),
    "decimal(38,38)": decimals(38, 38),
    "uuid": st.uuids(),
}
"""Of each type that has an order."""

WIDTHS = {"bool": 1, "int": 8, "float": 8, "datetime": 8, "date": 4, "uuid": 16}


def rank(value: Any) -> Any:
    """Return a sort key for the value: NaN is above all other values, and equals itself."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    if isinstance(value, datetime):
        # Python compares two times of one zone by what the clock shows, and one in a gap with nothing.
        return value.replace(tzinfo=None) - (value.utcoffset() or timedelta())
    return value


def table(*types: str, key: int | None = None, **changes: Any) -> TableDefinition:
    """A table with the columns ``a``, ``b``, … of these types, the first ``key`` of them (all) in the key."""
    names = "abcdefghijklmnop"[: len(types)]
    columns = tuple(
        Column(name, kind, nullable=key is not None and place >= key)
        for place, (name, kind) in enumerate(zip(names, types, strict=True))
    )
    return TableDefinition("t", columns=columns, key=tuple(names[:key])).with_(**changes)
