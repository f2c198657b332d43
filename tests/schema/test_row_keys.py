"""Row keys: they sort as the values of their columns, and ranges of them hold what they say."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.schema.row_keys import KeyCodec, least_above
from percolator_core.schema.types import column_type
from tests.schema.values import QUICK, VALUES, rank, table

SHAPES = [
    ("str",),
    ("int",),
    ("bytes", "bytes"),
    ("str", "int"),
    ("int", "str"),
    ("bytes", "bytes", "bytes"),
    ("bool", "bytes", "decimal(5,2)"),
    ("float", "datetime", "str", "uuid"),
]
CODES = st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=3).map(bytes)


def keys(shape: tuple[str, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(VALUES[name] for name in shape))


@pytest.mark.parametrize("shape", SHAPES, ids=" ".join)
def test_keys_sort_as_their_values(shape: tuple[str, ...]) -> None:
    codec = KeyCodec(table(*shape))

    @QUICK
    @given(keys(shape), keys(shape), st.integers(0, len(shape)))
    def check(left: tuple[Any, ...], right: tuple[Any, ...], same: int) -> None:
        right = left[:same] + right[same:]
        one, other = codec.encode(left), codec.encode(right)
        values = [rank(value) for value in left], [rank(value) for value in right]
        assert (one < other, one == other) == (values[0] < values[1], values[0] == values[1])

    check()


@pytest.mark.parametrize("shape", SHAPES, ids=" ".join)
def test_keys_are_taken_apart(shape: tuple[str, ...]) -> None:
    definition = table(*shape)
    codec = KeyCodec(definition)

    @QUICK
    @given(keys(shape))
    def check(values: tuple[Any, ...]) -> None:
        row = codec.encode(values)
        parts = [column_type(kind).encode(value) for kind, value in zip(shape, values, strict=True)]
        assert codec.split(row) == parts
        assert codec.join(parts) == row
        assert list(map(rank, codec.decode(row))) == list(map(rank, values))

    check()


@pytest.mark.parametrize("shape", [*SHAPES, ("str", "str"), ("date", "uuid")], ids=" ".join)
def test_any_bytes_are_one_key_or_none(shape: tuple[str, ...]) -> None:
    codec = KeyCodec(table(*shape))

    @QUICK
    @given(st.binary(max_size=20) | st.lists(CODES, max_size=6).map(b"".join))
    def check(row: bytes) -> None:
        with suppress(ValueError):
            assert codec.join(codec.split(row)) == row
        with suppress(ValueError):
            codec.decode(row)

    check()


@pytest.mark.parametrize("row", [b"\0\0\x01", b"a\0\x02\0\x01", b"a", b"a\0\xff", b"\0\x00\xff\0\x01"])
def test_a_zero_that_no_key_has_is_refused(row: bytes) -> None:
    with pytest.raises(ValueError, match="no key"):
        KeyCodec(table("str", "str")).split(row)


def test_keys_of_other_lengths_are_refused() -> None:
    codec = KeyCodec(table("int", "bool"))
    row = codec.encode([1, True])
    for wrong in (row[:-1], row + b"\0", b""):
        with pytest.raises(ValueError, match="no key"):
            codec.split(wrong)
    for values in ([], [1], [1, True, 2]):
        with pytest.raises(ValueError, match=rf"the key is \(a, b\), but {len(values)} values are given"):
            codec.encode(values)
    with pytest.raises(TypeError, match=r"^b: 5 is no bool"):
        codec.encode([1, 5])
    with pytest.raises(ValueError, match=r"^a: .* 64 bits"):
        codec.encode([1 << 63, True])


def test_a_key_of_no_value_is_refused() -> None:
    for kind, row in (("date", b"\xff" * 4), ("datetime", b"\xff" * 8), ("str", b"\xff")):
        assert KeyCodec(table(kind)).split(row) == [row]
        with pytest.raises(ValueError, match="no key"):
            KeyCodec(table(kind)).decode(row)


def test_a_key_of_one_text_is_that_text() -> None:
    assert KeyCodec(table("str")).encode(["a\0ü"]) == "a\0ü".encode()


@pytest.mark.parametrize(
    "shape",
    [
        ("bytes",),
        ("bool",),
        ("bytes", "bytes"),
        ("bool", "bytes"),
        ("bytes", "bool"),
        ("bytes", "bool", "bytes"),
    ],
    ids=" ".join,
)
def test_bounds_hold_exactly_the_keys_that_they_should(shape: tuple[str, ...]) -> None:
    codec = KeyCodec(table(*shape))
    few = [bytes(codes) for length in range(3) for codes in itertools.product([0, 1, 2, 255], repeat=length)]
    few += [b"\0\xff\0", b"\0\x01\0", b"\xff\xff\xff", b"\0\0\0"]
    alphabets = [[b"\0", b"\1"] if name == "bool" else few for name in shape]
    if len(shape) == 3:
        alphabets = [alphabet[::3] if len(alphabet) > 2 else alphabet for alphabet in alphabets]
    every = {codec.join(parts): parts for parts in itertools.product(*alphabets)}
    assert sorted(every) == [codec.join(parts) for parts in sorted(every.values())]

    @QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        known = data.draw(st.integers(0, len(shape)))
        equal = tuple(data.draw(st.sampled_from(alphabets[place])) for place in range(known))
        low = high = None
        if known < len(shape):
            values = st.sampled_from(alphabets[known]) | (CODES if shape[known] == "bytes" else st.nothing())
            low, high = data.draw(st.none() | values), data.draw(st.none() | values)
        start, stop = codec.bounds(equal, low, high)
        within = {row for row in every if start <= row and (stop is None or row < stop)}
        wanted = {
            row
            for row, parts in every.items()
            if parts[:known] == equal
            and (low is None or parts[known] >= low)
            and (high is None or parts[known] <= high)
        }
        assert within == wanted

    check()


def test_bounds_up_to_the_greatest_value_have_no_end() -> None:
    codec = KeyCodec(table("int", "str"))
    most = column_type("int").encode(2**63 - 1)
    assert codec.bounds([], most, most) == (most, None)
    assert codec.bounds([most]) == (most, None)


@QUICK
@given(CODES, CODES)
def test_the_least_key_above_a_prefix(prefix: bytes, key: bytes) -> None:
    above = least_above(prefix)
    assert above is None or above > prefix
    if key > prefix and not key.startswith(prefix):
        assert above is not None
        assert above <= key
    if key.startswith(prefix):
        assert above is None or key < above
