"""Deltas of groups and partitions: exact, in any order, and with few reads."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from itertools import permutations
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from percolator_core.views.groups import GroupSink, quotient, units
from percolator_core.views.packing import pack, sortable, split_sortable, unpack
from percolator_core.views.plan import ViewPlan
from percolator_core.views.planner import plan_view
from percolator_core.views.recompute import MemoryMultiset
from percolator_core.views.sinks import WHOLE, TopSink
from tests.views.queries import table
from tests.views.runner import Runner, Tables

T = table("t", {"id": "int"}, {"g": "int?", "x": "float?", "i": "int?", "s": "str?", "d": "decimal(9,2)?"})
packables = st.recursive(
    st.none()
    | st.integers()
    | st.binary()
    | st.integers(0, 300)
    | st.integers().map(lambda one: one << 1074),
    lambda inner: st.lists(inner, max_size=4),
)


def view(select: str) -> ViewPlan:
    return plan_view(f"CREATE VIEW v AS {select}", {"t": T})


class Filled:
    """A view over t, which rows are put into."""

    def __init__(self, select: str) -> None:
        self.tables = Tables(T)
        self.runner = Runner(view(select), self.tables)

    def put(self, number: int, **values: Any) -> None:
        key, cells = self.tables.encode(
            "t", dict.fromkeys(("g", "x", "i", "s", "d")) | values | {"id": number}
        )
        self.tables.rows["t"][key] = cells
        self.runner.changed("t", key)
        self.runner.settle()

    def remove(self, number: int) -> None:
        key = self.tables.encode("t", dict.fromkeys(("g", "x", "i", "s", "d")) | {"id": number})[0]
        del self.tables.rows["t"][key]
        self.runner.changed("t", key)
        self.runner.settle()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.runner.result()


@given(st.lists(packables))
def test_packed_values_are_restored(items: list[Any]) -> None:
    assert unpack(pack(items)) == items


@given(
    st.lists(st.none() | st.binary(max_size=5), max_size=3),
    st.lists(st.none() | st.binary(max_size=5), max_size=3),
)
def test_keys_sort_like_their_values_with_nulls_last(
    one: list[bytes | None], other: list[bytes | None]
) -> None:
    keys = [b"".join(map(sortable, values)) for values in (one, other)]
    assert split_sortable(keys[0]) == one
    order = [[(value is None, value or b"") for value in values] for values in (one, other)]
    assert (keys[0] < keys[1]) == (order[0] < order[1])


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_a_descending_part_inverts_the_order_of_values(one: bytes, other: bytes) -> None:
    assert (sortable(one, descending=True) < sortable(other, descending=True)) == (one > other)
    assert sortable(one, descending=True) < sortable(None, descending=True)
    assert sortable(None, descending=True, nulls_first=True) < sortable(one, descending=True)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1, max_size=20), st.randoms())
def test_a_sum_of_floats_is_rounded_once_whatever_the_order(values: list[float], rnd: Random) -> None:
    total = sum(map(units, values))
    rnd.shuffle(values)
    assert sum(map(units, values)) == total
    exact = sum(map(Fraction, values), Fraction(0))
    try:
        expected = exact.numerator / exact.denominator
    except OverflowError:
        expected = math.inf if exact > 0 else -math.inf
    assert quotient([total, 0, 0, 0], 0) == expected


def test_what_is_taken_back_leaves_no_trace_in_a_sum() -> None:
    one = Filled("SELECT sum(x) AS s, avg(x) AS a FROM t")
    one.put(1, x=0.1)
    one.put(2, x=1e308)
    one.put(3, x=1e308)
    assert one.rows == [{"s": math.inf, "a": float((Fraction(0.1) + 2 * Fraction(1e308)) / 3)}]
    one.put(4, x=math.nan)
    assert math.isnan(one.rows[0]["s"])
    for number in (2, 3, 4):
        one.remove(number)
    assert one.rows == [{"s": 0.1, "a": 0.1}]


def test_infinities_of_both_signs_are_nan_until_one_is_gone() -> None:
    one = Filled("SELECT sum(x) AS s FROM t")
    one.put(1, x=math.inf)
    one.put(2, x=-math.inf)
    assert math.isnan(one.rows[0]["s"])
    one.remove(1)
    assert one.rows == [{"s": -math.inf}]


def test_deltas_combine_in_any_order_and_grouping() -> None:
    sink = view("SELECT g, sum(x) AS s, min(s) AS lo, count(DISTINCT i) AS n FROM t GROUP BY g").sink
    assert isinstance(sink, GroupSink)
    filled = Filled("SELECT g, sum(x) AS s, min(s) AS lo, count(DISTINCT i) AS n FROM t GROUP BY g")
    for number in range(4):
        filled.put(number, x=0.1 * number, s="abcd"[number], i=number % 2)
    contributions = list(filled.runner.contributions.values())
    deltas = [sink.delta(one, sign) for one, sign in zip(contributions, (1, 1, -1, 1), strict=True)]
    found = set()
    for some in permutations(deltas):
        found.add(sink.combine(some))
        halves = [sink.combine(some[:2]), sink.combine(some[2:])]
        found.add(sink.combine([one for one in halves if one is not None]))
    assert len(found) == 1
    assert sink.combine([sink.delta(contributions[0], 1), sink.delta(contributions[0], -1)]) is None


def test_a_delta_may_come_before_the_one_that_it_takes_back() -> None:
    filled = Filled("SELECT g, sum(i) AS total, min(i) AS lo, count(DISTINCT i) AS n FROM t GROUP BY g")
    for number, i in ((1, 5), (2, 7), (3, 7)):
        filled.put(number, i=i)
    sink: Any = filled.runner.plan.sink
    one, two, three = filled.runner.contributions.values()
    group, row, key, multiset = None, None, sink.target(one), MemoryMultiset()
    deltas = [(one, -1), (two, 1), (three, 1), (two, -1), (two, 1), (one, 1), (one, 1), (one, -1)]
    for contribution, sign in deltas:
        group, row, _ = sink.apply(key, group, sink.delta(contribution, sign), multiset)
    expected = [(group, row)]
    group, multiset = None, MemoryMultiset()
    for contribution, sign in ((two, 1), (three, 1)):
        group, row, _ = sink.apply(key, group, sink.delta(contribution, sign), multiset)
    assert expected == [(group, row)]
    for contribution in (two, three):
        group, row, _ = sink.apply(key, group, sink.delta(contribution, -1), multiset)
    assert (group, row, multiset.counts) == (None, None, {})


def test_an_entry_may_be_taken_back_before_it_was_given() -> None:
    top: Any = view("SELECT id, s FROM t QUALIFY row_number() OVER (ORDER BY s) <= 1").sink
    filled = Filled("SELECT id, s FROM t QUALIFY row_number() OVER (ORDER BY s) <= 1")
    filled.put(1, s="a")
    filled.put(2, s="b")
    one, two = filled.runner.contributions.values()
    multiset = MemoryMultiset()
    assert top.apply(top.delta(one, -1), multiset) == []
    [(_, cells)] = top.apply(top.delta(two, 1), multiset)
    assert cells is not None
    assert top.apply(top.delta(one, 1), multiset) == []


def test_an_extreme_is_read_again_only_when_its_last_value_is_gone() -> None:
    one = Filled("SELECT min(i) AS lo, max(i) AS hi FROM t")
    for number in range(10):
        one.put(number, i=number // 2)
    multiset = one.runner.multisets[WHOLE]
    assert multiset.reads == 0
    one.remove(0)
    assert multiset.reads == 0
    one.remove(1)
    assert multiset.reads == 1
    assert one.rows == [{"lo": 1, "hi": 4}]


def test_a_group_whose_sum_does_not_fit_comes_back_with_the_next_change() -> None:
    one = Filled("SELECT sum(i) AS s FROM t")
    one.put(1, i=2**63 - 1)
    one.put(2, i=1)
    assert one.rows == []
    one.put(1, i=5)
    assert one.rows == [{"s": 6}]


def test_a_group_keeps_its_values_while_its_sums_are_zero() -> None:
    """A row is changed from 5 to 6, and the delta of the change is applied before that of the row."""
    filled = Filled("SELECT g, min(i) AS lo, max(i) AS hi, count(DISTINCT i) AS n FROM t GROUP BY g")
    for number, i in ((1, 5), (2, 6)):
        filled.put(number, i=i)
    sink: Any = filled.runner.plan.sink
    five, six = filled.runner.contributions.values()
    key, multiset = sink.target(five), MemoryMultiset()
    first = sink.combine([sink.delta(five, -1), sink.delta(six, 1)])
    state, row, _ = sink.apply(key, None, first, multiset)
    assert row is None
    state, row, _ = sink.apply(key, state, sink.delta(five, 1), multiset)
    expected = sink.apply(key, None, sink.delta(six, 1), MemoryMultiset())
    assert (state, row) == (expected.state, expected.row)


def test_a_view_over_empty_tables_has_a_row_only_without_group_by() -> None:
    assert Filled("SELECT count(*) AS n, sum(i) AS s, min(i) AS lo FROM t").rows == [
        {"n": 0, "s": None, "lo": None}
    ]
    assert Filled("SELECT count(*) AS n FROM t HAVING count(*) > 0").rows == []
    assert Filled("SELECT g, count(*) AS n FROM t GROUP BY g").rows == []


def test_aggregates_skip_nulls_and_count_star_does_not() -> None:
    one = Filled(
        "SELECT count(*) AS n, count(i) AS ni, sum(i) AS s, avg(i) AS a, min(i) AS lo, "
        "count(DISTINCT i) AS d, any_value(i) AS y, array_agg(i ORDER BY id)[1:2] AS l FROM t"
    )
    one.put(1, i=None)
    assert one.rows == [
        {"n": 1, "ni": 0, "s": None, "a": None, "lo": None, "d": 0, "y": None, "l": [None]},
    ]
    one.put(2, i=4)
    assert one.rows == [{"n": 2, "ni": 1, "s": 4, "a": 4.0, "lo": 4, "d": 1, "y": 4, "l": [None, 4]}]


def test_null_is_a_group_of_its_own() -> None:
    one = Filled("SELECT g, count(*) AS n FROM t GROUP BY g")
    one.put(1)
    one.put(2)
    one.put(3, g=0)
    assert sorted(one.rows, key=str) == [{"g": 0, "n": 1}, {"g": None, "n": 2}]


def test_having_hides_a_group_and_keeps_its_state() -> None:
    one = Filled("SELECT g, sum(i) AS s FROM t GROUP BY g HAVING count(*) > 1 AND sum(i) > 0")
    one.put(1, g=1, i=5)
    assert one.rows == []
    one.put(2, g=1, i=1)
    assert one.rows == [{"g": 1, "s": 6}]
    one.put(1, g=2, i=5)
    assert one.rows == []


def test_decimals_are_summed_exactly() -> None:
    one = Filled("SELECT sum(d) AS s, avg(d) AS a FROM t")
    for number in range(3):
        one.put(number, d=Decimal("0.10"))
    assert one.rows == [{"s": Decimal("0.30"), "a": 0.1}]
    assert one.runner.plan.definition.by_name["s"].type == "decimal(38,2)"


def test_a_list_has_the_first_values_of_its_order() -> None:
    one = Filled("SELECT array_to_string(array_agg(s ORDER BY i DESC)[1:2], '-') AS l, max(i, 2) AS m FROM t")
    for number, (i, s) in enumerate([(1, "a"), (3, "c"), (2, "b"), (3, "c")]):
        one.put(number, i=i, s=s)
    assert one.rows == [{"l": "c-c", "m": [3, 3]}]
    one.remove(1)
    assert one.rows == [{"l": "c-b", "m": [3, 2]}]


def test_the_next_row_moves_up_when_one_of_the_first_is_gone() -> None:
    one = Filled("SELECT id, g, i FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY i DESC, id) <= 2")
    for number in range(4):
        one.put(number, g=1, i=number)
    assert sorted(row["id"] for row in one.rows) == [2, 3]
    one.remove(3)
    assert sorted(row["id"] for row in one.rows) == [1, 2]
    one.put(2, g=2, i=0)
    assert sorted((row["g"], row["id"]) for row in one.rows) == [(1, 0), (1, 1), (2, 2)]


def test_rows_with_the_same_order_are_chosen_by_their_keys() -> None:
    one = Filled("SELECT id FROM t QUALIFY row_number() OVER (ORDER BY i) <= 2")
    for number in (3, 1, 2):
        one.put(number, i=0)
    assert sorted(row["id"] for row in one.rows) == [1, 2]


def test_a_row_that_changes_its_partition_is_another_row_of_the_view() -> None:
    """The two partitions change one after the other, in any order, so the rows must not have one key."""
    hidden = view("SELECT id, g FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY i) <= 1")
    assert hidden.definition.key == ("row_",)
    shown = view(
        "SELECT id, COALESCE(g, 0) AS p FROM t "
        "QUALIFY row_number() OVER (PARTITION BY COALESCE(g, 0) ORDER BY i) <= 1"
    )
    assert shown.definition.key == ("p", "id")
    assert isinstance(shown.sink, TopSink)
    found = []
    for g in (1, 2):
        filled = Filled("SELECT id, g FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY i) <= 1")
        filled.put(1, g=g)
        found += list(filled.runner.rows)
    assert found[0] != found[1]


def test_the_number_of_different_values_falls_with_the_last_row() -> None:
    one = Filled("SELECT count(DISTINCT i) AS n FROM t")
    for number, i in enumerate([1, 1, 2]):
        one.put(number, i=i)
    one.remove(0)
    assert one.rows == [{"n": 2}]
    one.remove(1)
    assert one.rows == [{"n": 1}]
