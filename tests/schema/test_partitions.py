"""Which tablet a row is in: always the same one, and found again through what a predicate leaves."""

from __future__ import annotations

import math
from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.errors import ConfigurationError
from percolator_core.schema.definition_changes import with_range
from percolator_core.schema.definitions import HashRule, RangeRule, TableDefinition, count_tablets
from percolator_core.schema.partitions import (
    MOST_COMBINATIONS,
    Partition,
    placement,
)
from percolator_core.schema.predicates import Bounds
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from tests.schema.values import QUICK, table

SPLITS = (b"\x01", b"b", b"b\0", b"\xff")


def made(*types: str, hashes: tuple[HashRule, ...] = (), ranges: RangeRule | None = None) -> TableDefinition:
    return table(*types, hashes=hashes, ranges=ranges, tablets=count_tablets(hashes, ranges))


RANGES = RangeRule("b", SPLITS, (0, 4, 1, 3, 2))
TABLES = {
    "whole": made("bytes", "bytes", hashes=(HashRule(("a", "b"), 7),)),
    "one": made("bytes", hashes=(HashRule(("a",), 16),)),
    "turned": made("bytes", "bytes", hashes=(HashRule(("b", "a"), 5),)),
    "part": made("bytes", "bytes", hashes=(HashRule(("b",), 4),)),
    "two": made("bytes", "bytes", hashes=(HashRule(("b",), 3), HashRule(("a",), 4))),
    "range": made("bytes", "bytes", ranges=RANGES),
    "both": made("bytes", "bytes", "bool", hashes=(HashRule(("a", "c"), 3),), ranges=RANGES),
    "all": made("bytes", "bytes", hashes=(HashRule(("a", "b"), 2),), ranges=RANGES),
    "three": made(
        "bytes", "bytes", "bool", hashes=(HashRule(("c",), 2), HashRule(("b", "a"), 3)), ranges=RANGES
    ),
    # No model makes one, but then each tablet is to have its share.
    "none": table("bytes", "bytes", tablets=6),
}
NAMED = pytest.mark.parametrize("definition", TABLES.values(), ids=TABLES)
PART = st.lists(st.sampled_from([0, 1, 98, 255]), max_size=2).map(bytes)


def parts_of(definition: TableDefinition) -> st.SearchStrategy[list[bytes]]:
    truth = st.sampled_from([b"\0", b"\1"])
    return st.tuples(*(truth if column.type == "bool" else PART for column in definition.key_columns)).map(
        list
    )


@NAMED
def test_each_row_has_a_tablet(definition: TableDefinition) -> None:
    partition, codec = Partition(definition), KeyCodec(definition)
    place = placement(definition)

    @QUICK
    @given(parts_of(definition))
    def check(parts: list[bytes]) -> None:
        row = codec.join(parts)
        tablet = partition.tablet_of(row)
        assert 0 <= tablet < definition.tablets
        assert tablet == (crc32(row) % definition.tablets if place is None else place(row))
        if definition.ranges is not None:
            value = parts[definition.key.index("b")]
            number = definition.ranges.numbers[sum(split <= value for split in definition.ranges.splits)]
            assert tablet // partition.buckets == number

    check()


def test_the_hash_of_the_whole_key_is_that_of_raw_tables() -> None:
    assert {name for name, definition in TABLES.items() if placement(definition) is None} == {
        "whole",
        "one",
        "none",
    }
    assert placement(TableDefinition("raw")) is None


PLACES = {
    "whole": [4, 4, 0, 3],
    "one": [0, 3, 2, 5],
    "turned": [3, 3, 1, 2],
    "part": [2, 2, 2, 2],
    "two": [11, 10, 3, 9],
    "range": [0, 3, 2, 3],
    "both": [2, 10, 7, 9],
    "all": [1, 6, 4, 7],
    "three": [5, 21, 17, 23],
    "none": [1, 0, 2, 5],
}


@NAMED
def test_rows_stay_where_they_are(definition: TableDefinition) -> None:
    """Another hash would lose the rows of every table that there is."""
    name = next(name for name, one in TABLES.items() if one is definition)
    partition, codec = Partition(definition), KeyCodec(definition)
    rows = [
        [b"", b"", b"\0"],
        [b"a", b"bc", b"\1"],
        [b"\0\xff", b"\xff", b"\0"],
        [b"https://a", b"b\0", b"\1"],
    ]
    assert [partition.tablet_of(codec.join(row[: len(definition.key)])) for row in rows] == PLACES[name]


def used(definition: TableDefinition, rows: list[list[bytes]]) -> Counter[int]:
    partition, codec = Partition(definition), KeyCodec(definition)
    return Counter(partition.tablet_of(codec.join(parts)) for parts in rows)


@pytest.mark.parametrize("step", [1, 2, 256, 1 << 16, 1 << 32])
def test_rows_spread_over_all_tablets(step: int) -> None:
    numbers = [(one * step).to_bytes(8, "big") for one in range(256)]
    for count in (2, 4, 7, 16):
        rule = HashRule(("b",), count)
        found = used(made("bytes", "bytes", hashes=(rule,)), [[b"", number] for number in numbers])
        assert len(found) == count
        assert max(found.values()) < 2.5 * 256 / count


def test_rules_over_columns_of_the_same_values_are_independent() -> None:
    rules = HashRule(("a",), 4), HashRule(("b",), 4)
    found = used(made("str", "str", hashes=rules), [[b"%d" % one] * 2 for one in range(256)])
    assert len(found) == 16


BOUNDS = st.one_of(
    st.none(),
    st.builds(
        Bounds,
        st.none() | st.frozensets(PART, max_size=3),
        st.none() | PART,
        st.none() | PART,
    ),
)


@NAMED
def test_pruning_loses_no_row(definition: TableDefinition) -> None:
    partition, codec = Partition(definition), KeyCodec(definition)

    @QUICK
    @given(parts_of(definition), st.tuples(*(BOUNDS for _ in definition.key)), st.data())
    def check(parts: list[bytes], drawn: tuple[Bounds | None, ...], data: st.DataObject) -> None:
        bounds = {}
        for name, part, one in zip(definition.key, parts, drawn, strict=True):
            if one is None:
                continue
            # Widened until the row is within.
            bounds[name] = Bounds(
                None if one.values is None else one.values | {part},
                None if one.low is None else min(one.low, part),
                None if one.high is None else max(one.high, part),
            )
        left = partition.prune(bounds | {"no key": Bounds(frozenset())})
        assert partition.tablet_of(codec.join(parts)) in left
        assert left == sorted(set(left))
        assert set(left) <= set(range(definition.tablets))
        assert partition.prune({}) == list(range(definition.tablets))

    check()


def equal(*values: bytes) -> Bounds:
    return Bounds(frozenset(values))


def test_pruning_by_equality_and_by_lists() -> None:
    two = Partition(TABLES["two"])
    assert len(two.prune({"b": equal(b"x")})) == 4
    assert len(two.prune({"a": equal(b"x")})) == 3
    assert len(two.prune({"a": equal(b"x"), "b": equal(b"y")})) == 1
    assert two.prune({"a": equal()}) == []
    assert len(Partition(TABLES["whole"]).prune({"a": equal(b"x"), "b": equal(b"y", b"z", b"y")})) <= 2
    assert len(Partition(TABLES["whole"]).prune({"a": equal(b"x")})) == 7
    assert len(Partition(TABLES["none"]).prune({"a": equal(b"x"), "b": equal(b"y")})) == 1
    wide = Partition(made("bytes", hashes=(HashRule(("a",), 10 * MOST_COMBINATIONS),)))
    for count in (MOST_COMBINATIONS, MOST_COMBINATIONS + 1):
        left = wide.prune({"a": equal(*(b"%d" % one for one in range(count)))})
        assert (len(left) <= count) is (count == MOST_COMBINATIONS)


def test_pruning_by_ranges() -> None:
    partition = Partition(TABLES["range"])
    assert partition.prune({"b": Bounds(low=b"b", high=b"b")}) == [1]
    assert partition.prune({"b": Bounds(low=b"b\0")}) == [2, 3]
    assert partition.prune({"b": Bounds(high=b"")}) == [0]
    assert partition.prune({"b": Bounds(low=b"\x01", high=b"a\xff")}) == [4]
    assert partition.prune({"b": equal(b"", b"\xff\xff")}) == [0, 2]
    assert partition.prune({"b": Bounds(low=b"c", high=b"a")}) == []
    assert partition.prune({"a": equal(b"")}) == [0, 1, 2, 3, 4]
    both = Partition(TABLES["both"])
    assert len(both.prune({"a": equal(b""), "b": Bounds(high=b""), "c": equal(b"\1")})) == 1


def test_how_many_tablets_the_rules_make() -> None:
    assert count_tablets((HashRule(("a",), 4), HashRule(("b",), 3)), RANGES) == 60
    assert count_tablets((), RANGES) == 5
    assert count_tablets((HashRule(("a",), 4),), None) == 4


def with_first_split() -> TableDefinition:
    return made("int", "bytes", hashes=(HashRule(("a",), 3),), ranges=RangeRule("b", (), (0,)))


@QUICK
@given(st.lists(st.tuples(PART, st.booleans()), max_size=6, unique_by=lambda one: one[0]), st.lists(PART))
def test_a_split_moves_only_rows_of_the_half_that_is_new(
    splits: list[tuple[bytes, bool]], values: list[bytes]
) -> None:
    definition = with_first_split()
    codec = KeyCodec(definition)
    rows = {codec.join([column_type("int").encode(5), value]): value for value in values}
    for count, (split, upper) in enumerate(splits, start=2):
        before, definition = definition, with_range(definition, split, upper_is_new=upper)
        assert definition.ranges is not None
        assert before.ranges is not None
        assert definition.tablets == 3 * count
        assert list(definition.ranges.splits) == sorted({*before.ranges.splits, split})
        assert sorted(definition.ranges.numbers) == list(range(count))
        assert definition.with_(ranges=before.ranges, tablets=before.tablets) == before
        for row, value in rows.items():
            place, was = Partition(definition).tablet_of(row), Partition(before).tablet_of(row)
            if place != was:
                assert place // 3 == count - 1
                assert (value >= split) is upper


def test_both_halves_of_a_cut_range() -> None:
    definition = made("bytes", "bytes", ranges=RangeRule("b", (b"m",), (1, 0)))
    numbers = {}
    for split in (b"c", b"x"):
        for upper in (True, False):
            found = with_range(definition, split, upper_is_new=upper)
            assert found.ranges is not None
            numbers[split, upper] = found.ranges.numbers
    assert numbers == {
        (b"c", True): (1, 2, 0),
        (b"c", False): (2, 1, 0),
        (b"x", True): (1, 0, 2),
        (b"x", False): (1, 2, 0),
    }


def test_a_split_that_is_there_changes_nothing_and_without_ranges_there_is_none() -> None:
    definition = made("bytes", "bytes", ranges=RANGES)
    assert with_range(definition, SPLITS[1], upper_is_new=True) is definition
    with pytest.raises(ConfigurationError, match=r"'t' has no Range\(…\) in its partition rules"):
        with_range(TABLES["one"], b"b", upper_is_new=True)


def test_hashes_of_two_columns_tell_where_the_first_one_ends() -> None:
    partition, codec = Partition(TABLES["turned"]), KeyCodec(TABLES["turned"])
    places = {partition.tablet_of(codec.join([b"x" * one, b"x" * (12 - one)])) for one in range(13)}
    assert len(places) > 1
    assert partition.buckets == math.prod(rule.buckets for rule in TABLES["turned"].hashes)
