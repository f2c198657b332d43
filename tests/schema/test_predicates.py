"""The result of a predicate for a row, and the columns, keys and tablets that it leaves."""

from __future__ import annotations

import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.errors import UnknownColumn
from percolator_core.schema import predicates as schema
from percolator_core.schema.definitions import HashRule, RangeRule, TableDefinition, count_tablets
from percolator_core.schema.partitions import Partition
from percolator_core.schema.predicates import (
    MOST_DEPTH,
    MOST_NODES,
    Bounds,
    ColumnExpression,
    Comparison,
    In,
    IsNull,
    Joined,
    Not,
    Predicate,
    bind,
    bounds_of,
    columns_of,
)
from percolator_core.schema.row_keys import KeyCodec
from tests.schema.predicates import EVERY, cells_of, comparisons, predicates, rows, truth
from tests.schema.values import QUICK, table

A, B, C = (ColumnExpression(name) for name in "abc")
PLAIN = table("int", "str", "bytes", "json", key=1)
TRUTH: list[bool | None] = [True, False, None]


@QUICK
@given(st.data())
def test_a_bound_predicate_is_what_the_predicate_says(data: st.DataObject) -> None:
    row = data.draw(rows())
    predicate = data.draw(predicates(row=row))
    bound = bind(predicate, EVERY)
    assert bound.holds(cells_of(row)) is truth(predicate, row)
    assert set(columns_of(bound)) <= set(EVERY.by_name)


KEYED = table("str", "bytes", "int", "bool", key=3)
KEYED = KEYED.with_(
    hashes=(HashRule(("a",), 3), HashRule(("c",), 4)),
    ranges=RangeRule("b", (b"\1", b"\1\xff", b"\xff"), (0, 2, 1, 3)),
)
KEYED = KEYED.with_(tablets=count_tablets(KEYED.hashes, KEYED.ranges))


@pytest.mark.parametrize("definition", [EVERY, KEYED], ids=["every", "keyed"])
def test_bounds_leave_every_row_that_is_wanted(definition: TableDefinition) -> None:
    found = 0

    @QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal found
        row = data.draw(rows(definition))
        drawn = data.draw(
            st.lists(
                comparisons(definition, row) | predicates(definition, row, leaves=3), min_size=3, max_size=9
            )
        )
        bound = bind(Joined("and", tuple(one for one in drawn if truth(one, row))), definition)
        cells = cells_of(row, definition)
        assert bound.holds(cells) is True
        bounds = bounds_of(bound)
        found += bool(bounds)
        for column, one in bounds.items():
            value = cells(column)
            assert value is not None
            assert one.values is None or value in one.values
            assert one.low is None or one.low <= value
            assert one.high is None or value <= one.high
        if definition is KEYED:
            key = KeyCodec(definition).encode([row[name] for name in definition.key])
            partition = Partition(definition)
            assert partition.tablet_of(key) in partition.prune(bounds)

    check()
    assert found > 20


def bounds(predicate: Predicate, definition: TableDefinition = PLAIN) -> dict[str, Bounds]:
    return bounds_of(bind(predicate, definition))


def test_what_bounds_are_left() -> None:
    def code(value: int) -> bytes:
        return KeyCodec(PLAIN).encode([value])

    assert bounds_of(None) == {}
    assert bounds(A == 5) == {"a": Bounds(frozenset([code(5)]))}
    assert bounds((A > 1) & (A <= 9) & (A >= 3)) == {"a": Bounds(None, code(3), code(9))}
    assert bounds(A.in_([1, 2, 3]) & A.in_([2, 3, 4])) == {"a": Bounds(frozenset([code(2), code(3)]))}
    assert bounds(A.in_([1, 5, 9]) & (A > 1)) == {"a": Bounds(frozenset([code(5), code(9)]), code(1))} or (
        bounds(A.in_([1, 5, 9]) & (A > 2)) == {"a": Bounds(frozenset([code(5), code(9)]), code(2))}
    )
    assert bounds((A > 5) & (A < 2)) == {"a": Bounds(None, code(5), code(2))}
    assert bounds((A == 1) & (A == 2)) == {"a": Bounds(frozenset())}
    assert bounds(B.startswith("a\U0010ffff")) == {
        "b": Bounds(None, "a\U0010ffff".encode(), b"a\xf4\x8f\xbf\xc0")
    }
    assert bounds(C.startswith(b"a\xff\xff")) == {"c": Bounds(None, b"a\xff\xff", b"b")}
    assert bounds(C.startswith(b"\xff\xff")) == {"c": Bounds(None, b"\xff\xff", None)}
    assert bounds(C.startswith(b"")) == {"c": Bounds(None, b"", None)}
    nothing: list[Predicate] = [(A == 1) | (A == 2), ~(A == 1), A != 1, A.is_null(), A == None]  # noqa: E711
    for predicate in nothing:
        assert bounds(predicate) == {}


@pytest.mark.parametrize("left", TRUTH)
@pytest.mark.parametrize("right", TRUTH)
def test_three_values(left: bool | None, right: bool | None) -> None:
    row = {"a": 0, "b": left, "c": right}
    definition = table("int", "bool", "bool", key=1)

    def value(predicate: Predicate) -> bool | None:
        return bind(predicate, definition).holds(cells_of(row, definition))

    both = value((B == True) & (C == True))  # noqa: E712
    some = value((B == True) | (C == True))  # noqa: E712
    assert both is (False if False in {left, right} else None if None in {left, right} else True)
    assert some is (True if True in {left, right} else None if None in {left, right} else False)
    assert value(~(B == True)) is (None if left is None else not left)  # noqa: E712
    assert value(B != True) is (None if left is None else not left)  # noqa: E712
    assert value(B == None) is (left is None)  # noqa: E711
    assert value(B != None) is (left is not None)  # noqa: E711
    assert value(B.in_([None, True])) is (left in {None, True})
    assert value(B.in_([])) is (None if left is None else False)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def test_values_of_enumerations_are_compared_by_their_values() -> None:
    row = {"a": 3, "b": "red", "c": None, "d": None}
    assert bind((A == Level.HIGH) & B.in_([Color.RED]) & ~(B != Color.RED), PLAIN).holds(cells_of(row, PLAIN))


class Awkward:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]


def test_lists_may_hold_any_value() -> None:
    with pytest.raises(TypeError, match=r"^a: .* is no int"):
        bind(A.in_([Awkward(), None]), PLAIN)
    with pytest.raises(TypeError, match="takes a list of values"):
        B.in_("abc")
    bound = bind(A.in_(one % 3 for one in range(1000)), PLAIN)
    assert isinstance(bound, schema.Test)
    assert len(bound.values) == 3


@pytest.mark.parametrize(
    ("predicate", "error", "why"),
    [
        (lambda: ColumnExpression("z") == 1, UnknownColumn, "t has no column 'z': it has a, b, c, d"),
        (lambda: ColumnExpression("z").is_null(), UnknownColumn, "t has no column 'z'"),
        (lambda: A == "1", TypeError, "a: '1' is no int"),
        (lambda: A == 1 << 63, ValueError, "a: 9223372036854775808 does not fit into 64 bits"),
        (lambda: A == B, TypeError, "a: <column b> is no int"),
        (lambda: A < None, TypeError, "a < None: only == and != compare with None"),
        (lambda: A.startswith("1"), TypeError, "a is int: startswith is for str and bytes"),
        (lambda: B.startswith(b"1"), TypeError, "b: b'1' is no str"),
        (
            lambda: ColumnExpression("d") == [1],
            TypeError,
            "d is json, which can only be compared with None",
        ),
        (lambda: ColumnExpression("d").in_([]), TypeError, "d is json"),
        (lambda: "a > 1", TypeError, "'a > 1' is no predicate"),
        (lambda: Joined("and", (A,)), TypeError, "<column a> is no predicate"),  # type: ignore[arg-type]
        (lambda: Comparison("a", "==", 1), TypeError, "a ==: an operator is one of = !="),  # type: ignore[arg-type]
        (lambda: A.in_([Decimal(1)]), TypeError, r"a: Decimal\('1'\) is no int"),
    ],
)
def test_predicates_that_no_table_can_be_asked(
    predicate: Callable[[], Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=rf"^{why}"):
        bind(predicate(), PLAIN)


def test_python_s_own_connectives_are_refused() -> None:
    with pytest.raises(TypeError, match="combine predicates with"):
        bool(A == 1)
    with pytest.raises(TypeError, match="combine predicates with"):
        assert 1 < A < 5
    with pytest.raises(TypeError, match="write a comparison"):
        bool(A)
    with pytest.raises(TypeError, match="put each comparison into parentheses"):
        (A == 1) & 5
    with pytest.raises(TypeError):
        hash(A)


def nested(depth: int, wrap: Callable[[Predicate], Predicate] = Not) -> Predicate:
    found = A == 1
    for _ in range(depth):
        found = wrap(found)
    return found


def test_predicates_are_bounded_in_size_and_depth() -> None:
    bind(nested(MOST_DEPTH), PLAIN)
    for depth in (MOST_DEPTH + 1, 100_000):
        for wrap in (Not, lambda part: Joined("or", (part,))):
            with pytest.raises(ValueError, match="nested at most 50 deep"):
                bind(nested(depth, wrap), PLAIN)
    bind(Joined("or", (A == 1,) * (MOST_NODES - 1)), PLAIN)
    with pytest.raises(ValueError, match="at most 2000 parts"):
        bind(Joined("or", (A == 1,) * MOST_NODES), PLAIN)


def test_connected_predicates_of_one_kind_are_one() -> None:
    found = (A == 1) & (B == "b") & (C == b"c")
    assert isinstance(found, Joined)
    assert len(found.parts) == 3
    some = (A == 1) | found
    assert isinstance(some, Joined)
    assert [type(part) for part in some.parts] == [Comparison, Joined]
    assert isinstance(A.in_([1, 2]), In)
    assert isinstance(A == None, IsNull)  # noqa: E711
