"""Filters as text: what they mean, what is refused and where, and that they come back from what is shown."""

from __future__ import annotations

import enum
import random
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.errors import UnknownColumn
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.expression import parse, show
from percolator_core.schema.predicates import (
    MOST_DEPTH,
    MOST_NODES,
    Comparison,
    In,
    IsNull,
    Joined,
    Not,
    Predicate,
    bind,
)
from tests.schema.predicates import EVERY, Row, cells_of, predicates, rows, truth
from tests.schema.values import QUICK

TABLE = TableDefinition(
    "documents",
    columns=(
        Column("url", "str"),
        Column("rank", "float"),
        Column("n", "int"),
        Column("body", "bytes", nullable=True),
        Column("ok", "bool"),
        Column("at", "datetime"),
        Column("day", "date"),
        Column("price", "decimal(6,2)"),
        Column("id", "uuid"),
        Column("tags", "json"),
        Column("x", "int"),
        Column("or", "int"),
        Column('page "rank"', "int"),
        Column("größe", "int"),
    ),
    key=("url",),
)
TIMES = "times with their zone such as '2025-06-01T12:00:00Z'"
NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)
ID = UUID("12345678-1234-5678-1234-567812345678")


def plain(part: Predicate) -> Any:
    """The predicate in tuples, to compare."""
    match part:
        case Comparison(column, op, value):
            return (column, op, value)
        case In(column, values):
            return (column, "in", values)
        case IsNull(column):
            return (column, "null")
        case Not(inner):
            return ("not", plain(inner))
        case Joined(how, parts):
            return (how, *map(plain, parts))
    raise AssertionError(part)


N1, N2, N3 = (("n", "=", value) for value in (1, 2, 3))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("rank > 0.5 and url >= 'a'", ("and", ("rank", ">", 0.5), ("url", ">=", "a"))),
        ("n=1", N1),
        ("n == 1", N1),
        ("n != 1", ("n", "!=", 1)),
        ("n<>1", ("n", "!=", 1)),
        ("n<1", ("n", "<", 1)),
        ("n<=-1", ("n", "<=", -1)),
        ("n > +1", ("n", ">", 1)),
        ("n >= 9223372036854775807", ("n", ">=", 2**63 - 1)),
        ("url ^= 'https:'", ("url", "^=", "https:")),
        ("body ^= x'00fF'", ("body", "^=", b"\x00\xff")),
        ("body = HEX'00 ff'", ("body", "=", b"\x00\xff")),
        ("body = x''", ("body", "=", b"")),
        ("x = 5", ("x", "=", 5)),
        ("ok", ("ok", "=", True)),
        ("not ok and (n=1 or ok)", ("and", ("not", ("ok", "=", True)), ("or", N1, ("ok", "=", True)))),
        ("n in (1, 2)", ("n", "in", (1, 2))),
        ("n IN(1)", ("n", "in", (1,))),
        ("n in ()", ("n", "in", ())),
        ("n not in (1,2)", ("not", ("n", "in", (1, 2)))),
        ("n in (1, null)", ("or", ("n", "in", (1,)), ("n", "null"))),
        ("n between 1 and 3", ("and", ("n", ">=", 1), ("n", "<=", 3))),
        ("n between 1 and 3 and n = 2", ("and", ("n", ">=", 1), ("n", "<=", 3), N2)),
        ("n not between 1 and 3", ("not", ("and", ("n", ">=", 1), ("n", "<=", 3)))),
        ("body is null", ("body", "null")),
        ("body IS NOT NULL", ("not", ("body", "null"))),
        ("body = null", ("body", "null")),
        ("body <> NULL", ("not", ("body", "null"))),
        ("tags is null", ("tags", "null")),
        ("tags != null", ("not", ("tags", "null"))),
        ("url like 'abc%'", ("url", "^=", "abc")),
        ("url like 'abc'", ("url", "=", "abc")),
        ("url like '%'", ("url", "^=", "")),
        ("url not like 'abc%'", ("not", ("url", "^=", "abc"))),
        ("url = 'it''s'", ("url", "=", "it's")),
        ("url = ''''", ("url", "=", "'")),
        ("url = ''", ("url", "=", "")),
        ("url = 'a\nb \"c\" -- d'", ("url", "=", 'a\nb "c" -- d')),
        ("ok = true", ("ok", "=", True)),
        ("ok != FALSE", ("ok", "!=", False)),
        ("ok in (true, false)", ("ok", "in", (True, False))),
        ("rank = 5", ("rank", "=", 5.0)),
        ("rank = .5e-3", ("rank", "=", 0.0005)),
        ("rank < '-Inf'", ("rank", "<", float("-inf"))),
        ("at < '2025-06-01T12:00:00Z'", ("at", "<", NOON)),
        ("at < '2025-06-01 14:00+02:00'", ("at", "<", NOON)),
        ("day = '2025-06-01'", ("day", "=", date(2025, 6, 1))),
        ("price = 10.50", ("price", "=", Decimal("10.50"))),
        ("price = '1E+3'", ("price", "=", Decimal(1000))),
        (f"id = '{ID}'", ("id", "=", ID)),
        (f"id = '{ID.hex.upper()}'", ("id", "=", ID)),
        ('"or" = 1 or "page ""rank""" = 2', ("or", ("or", "=", 1), ('page "rank"', "=", 2))),
        ('"n"=1', N1),
        ("größe = 1", ("größe", "=", 1)),
        ("true", ("and",)),
        ("not false", ("not", ("or",))),
        ("n = 1 or n = 2 and n = 3", ("or", N1, ("and", N2, N3))),
        ("(n = 1 or n = 2) and n = 3", ("and", ("or", N1, N2), N3)),
        ("not n = 1 and n = 2", ("and", ("not", N1), N2)),
        ("not (n = 1 and n = 2)", ("not", ("and", N1, N2))),
        ("NOT Not n = 1", ("not", ("not", N1))),
        ("n = 1 OR n = 2 oR n = 3", ("or", N1, N2, N3)),
        (" ( (n=1)\t)\n", N1),
        ("n=1and(n=2)", None),
        ("(n=1 and (n=2 and true)) and n=3", ("and", N1, N2, N3)),
        ("n=1 and(n=2)or(n=3)", ("or", ("and", N1, N2), N3)),
    ],
)
def test_what_a_filter_means(text: str, meant: Any) -> None:
    if meant is None:
        with pytest.raises(ValueError, match="'1and' is no number"):
            parse(text, TABLE)
        return
    found = parse(text, TABLE)
    assert plain(found) == meant
    bind(found, TABLE)
    assert plain(parse(show(found), TABLE)) == meant


@pytest.mark.parametrize(
    ("text", "sentence", "at"),
    [
        ("", "the filter is empty: write a comparison, such as page_rank > 0.5", 1),
        ("  ", "the filter is empty: write a comparison, such as page_rank > 0.5", 3),
        ("n = 'abc'", "n is int, so its values are whole numbers, not 'abc'", 5),
        ("n = 1.5", "n is int, so its values are whole numbers, not 1.5", 5),
        ("n = true", "n is int, so its values are whole numbers, not true", 5),
        ("n = 9223372036854775808", "n: 9223372036854775808 does not fit into 64 bits", 5),
        ("n in (1, 'a')", "n is int, so its values are whole numbers, not 'a'", 10),
        ("n between null and 2", "n is int, so its values are whole numbers, not null", 11),
        ("rank = 'high'", "rank is float, so its values are numbers, 'nan', 'inf' and '-inf', not 'high'", 8),
        ("rank = 1e999", "rank is float, so its values are numbers, 'nan', 'inf' and '-inf', not 1e999", 8),
        ("url = 5", "url is str, so its values are texts in single quotes, not 5", 7),
        ('url = "a"', 'a value is expected, not "a": a text needs single quotes', 7),
        ("url = a", "a value is expected, not a: a text needs single quotes", 7),
        ("url = ", "a value is expected, not the end: a text needs single quotes", 7),
        ("url = x'00'", "url is str, so its values are texts in single quotes, not x'00'", 7),
        ("url = '\ud800'", "url: '\\ud800' cannot be encoded in UTF-8", 7),
        ("body = 'a'", "body is bytes, so its values are bytes such as x'00ff', not 'a'", 8),
        ("body = x'0g'", "body is bytes, so its values are bytes such as x'00ff', not x'0g'", 8),
        ("ok = 1", "ok is bool, so its values are true and false, not 1", 6),
        (
            "at > ''",
            f"at is datetime, so its values are {TIMES}, not ''",
            6,
        ),
        (
            "at > '2025-06-01'",
            f"at is datetime, so its values are {TIMES}, not '2025-06-01'",
            6,
        ),
        (
            "at > '0001-01-01T00:00+01:00'",
            "at: 0001-01-01 00:00:00+01:00 is not within the years 1 to 9999 in UTC",
            6,
        ),
        ("day = 'June'", "day is date, so its values are days such as '2025-06-01', not 'June'", 7),
        ("price = 'NaN'", "price is decimal(6,2), so its values are numbers, not 'NaN'", 9),
        ("price = 1_0", "'1_0' is no number", 9),
        (
            "price = 0.001",
            "price: Decimal('0.001') does not fit into 6 digits, 2 of them after the point",
            9,
        ),
        ("price = '1e99999999999999999999'", None, 9),
        ("id = '1'", "id is uuid, so its values are UUIDs in single quotes, not '1'", 6),
        (f"id = '{{{ID}}}'", f"id is uuid, so its values are UUIDs in single quotes, not '{{{ID}}}'", 6),
        ("n ^= 1", "n is int: ^= is for str and bytes", 3),
        ("tags = '[]'", "tags is json: only 'is null' and 'is not null' can test it", 6),
        ("tags in ()", "tags is json: only 'is null' and 'is not null' can test it", 6),
        ("n < null", "only = and != compare with null, not <", 3),
        (
            "url like 'a%b'",
            "like takes a prefix and one %, such as 'abc%': use ^= for a prefix with _ or %",
            10,
        ),
        (
            "url like 'a_'",
            "like takes a prefix and one %, such as 'abc%': use ^= for a prefix with _ or %",
            10,
        ),
        ("n like '1%'", "n is int: like is for str", 8),
        ("url like 5", "a text in single quotes is expected after like, not 5", 10),
        ("n", "an operator such as =, in or is null is expected after n, not the end", 2),
        ("n n", "an operator such as =, in or is null is expected after n, not n", 3),
        ("n not = 1", "in, between or like is expected after n, not =", 7),
        ("n is 1", "null is expected after is, not 1", 6),
        ("n is not true", "null is expected after is not, not true", 10),
        ("n between 1 or 2", "and is expected after the lower bound, not or", 13),
        ("n in 1", "( is expected after in, not 1", 6),
        ("n in (1 2)", "a comma or ) is expected, not 2", 9),
        ("n in (1,", "a value is expected, not the end: a text needs single quotes", 9),
        ("n = 1 n = 2", "'and', 'or' or the end is expected, not n", 7),
        ("(n = 1", "'and', 'or' or ) is expected, not the end", 7),
        ("n = 1)", "'and', 'or' or the end is expected, not )", 6),
        ("()", "a column is expected, not )", 2),
        ("n = 1 and", "a column is expected, not the end", 10),
        ("and n = 1", "a column is expected, not and", 1),
        ("1 = n", "a column is expected, not 1", 1),
        ("'n' = 1", "a column is expected, not 'n'", 1),
        ("n = 1 & n = 2", "write the words and, or, not", 7),
        ("url = 'abc", "the closing ' is missing", 7),
        ("url = 'abc''", "the closing ' is missing", 7),
        ('"url = 5', 'the closing " is missing', 1),
        ("n = 5abc", "'5abc' is no number", 5),
        ("n = 1.2.3", "'1.2.3' is no number", 5),
        ("n = $1", "'$' has no meaning here", 5),
        ("n; drop", "';' has no meaning here", 2),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str, sentence: str | None, at: int) -> None:
    with pytest.raises(ValueError, match=rf"at character {at}:\n") as caught:
        parse(text, TABLE)
    first, line, caret = str(caught.value).split("\n")
    if sentence is not None:
        assert first == f"{sentence}, at character {at}:"
    assert caret.index("^") - 2 == at - 1
    assert text.replace("\ud800", " ").startswith(line[2:])


def test_an_unknown_column_is_told_with_its_place() -> None:
    with pytest.raises(
        UnknownColumn, match=r"^documents has no column 'URL': it has url, rank, n,"
    ) as caught:
        parse("n = 1 and URL = 'a'", TABLE)
    assert str(caught.value).endswith("at character 11:\n  n = 1 and URL = 'a'\n            ^")
    with pytest.raises(UnknownColumn, match="raw has no column 'n': it has none, because it is not typed"):
        parse("n = 1", TableDefinition("raw"))


def test_long_texts_are_cut_off_around_the_place() -> None:
    long = "n = 1 and " * 100
    with pytest.raises(ValueError, match="'\\?' has no meaning") as caught:
        parse(f"{long}?{' and n = 1' * 100}", TABLE)
    _, line, caret = str(caught.value).split("\n")
    assert len(line) < 80
    assert line[caret.index("^")] == "?"
    for value in ("9" * 100_000, f"'{'a' * 100_000}'", f"x'{'00' * 100_000}'", f'"{"a" * 100_000}"'):
        with pytest.raises(ValueError, match=r"n is int|a value is expected") as caught:
            parse(f"n = {value}", TABLE)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("opening", ["(", "not ", "not(", "n=1 or n=1 and ("])
def test_nesting_is_bounded(opening: str) -> None:
    for depth in (MOST_DEPTH + 1, 10_000):
        with pytest.raises(ValueError, match="nested at most 50 deep"):
            parse(f"{opening * depth}n = 1{')' * depth * opening.count('(')}", TABLE)
    depth = MOST_DEPTH // 2 - 1
    parse(f"{opening * depth}n = 1{')' * depth * opening.count('(')}", TABLE)


def test_size_is_bounded() -> None:
    parse(" or ".join(["n = 1"] * (MOST_NODES - 1)), TABLE)
    for count in (MOST_NODES, 20_000):
        with pytest.raises(ValueError, match="a filter has at most 2000 parts: split it up, at character"):
            parse(" or ".join(["n = 1"] * count), TABLE)
    with pytest.raises(ValueError, match="at most 2000 parts"):
        parse(" or ".join(["n between 1 and 2"] * 700), TABLE)


@QUICK
@given(st.data())
def test_what_is_shown_can_be_read_again(data: st.DataObject) -> None:
    row: Row = data.draw(rows())
    predicate = data.draw(predicates(row=row))
    text = show(predicate)
    again = parse(text, EVERY)
    assert truth(again, row) is truth(predicate, row)
    assert bind(again, EVERY).holds(cells_of(row)) is truth(predicate, row)


def test_deep_and_large_predicates_are_read_again() -> None:
    found: Predicate = Comparison("n", "=", 1)
    for depth in range(MOST_DEPTH):
        found = (
            Not(found)
            if depth % 2
            else Joined("and" if depth % 4 else "or", (found, found) if depth < 8 else (found, IsNull("n")))
        )
    bind(found, TABLE)
    assert show(parse(show(found), TABLE)) == show(found)
    assert show(Joined("and", (Joined("and", (IsNull("n"), IsNull("x"))), IsNull("or")))) == (
        'n is null and x is null and "or" is null'
    )
    for _ in range(100_000):
        found = Not(found)
    assert show(found) == "not " * (MOST_DEPTH + 1) + "…"


class Color(enum.Enum):
    RED = "it's red"


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (Comparison("a b", "=", Color.RED), "\"a b\" = 'it''s red'"),
        (Comparison("a", "=", True), "a = true"),
        (Comparison("a", "=", None), "a = null"),
        (Comparison("a", "=", float("nan")), "a = 'nan'"),
        (Comparison("a", "=", float("-inf")), "a = '-inf'"),
        (Comparison("a", "=", 1e300), "a = 1e+300"),
        (Comparison("a", "=", Decimal("1E+3")), "a = 1E+3"),
        (Comparison("a", "=", b"\0'"), "a = x'0027'"),
        (Comparison("a", "=", date(1, 1, 1)), "a = '0001-01-01'"),
        (
            Comparison("a", "=", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=-5)))),
            "a = '0001-01-01T00:00:00-05:00'",
        ),
        (Comparison("a", "=", ID), f"a = '{ID}'"),
        (Comparison("a", "=", 10**5000), "a = 'this int'"),
        (Comparison("a", "=", [1]), "a = '[1]'"),
        (Joined("or", ()), "false"),
        (Not(Joined("or", (IsNull("a"),))), "not a is null"),
        (Not(Joined("or", (IsNull("a"), Not(IsNull("b"))))), "not (a is null or b is not null)"),
        (Not(5), "not 5"),  # type: ignore[arg-type]
    ],
    ids=range(17),
)
def test_what_is_shown(predicate: Predicate, text: str) -> None:
    assert show(predicate) == text


WORDS = [
    *(
        "and",
        "or",
        "not",
        "in",
        "is",
        "null",
        "between",
        "like",
        "true",
        "false",
        "(",
        ")",
        ",",
        "=",
        "<",
        ">",
    ),
    *("^=", "<>", "a", "b", "e", "f", '"a"', "'a'", "'nan'", "'", '"', "x'00'", "5", "-1.5e3", ".", "%", " "),
    *(
        "'2025-06-01'",
        "'2025-06-01T00:00Z'",
        "\0",
        "\ud800",
        "9" * 30,
        "é",
        "1e99999",
        "'1e9999999999999999999'",
    ),
]


@QUICK
@given(st.text(max_size=30) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
def test_no_text_is_too_odd(text: str) -> None:
    for column in ("", *(f"{name} = " for name in EVERY.by_name)):
        with suppress(ValueError, UnknownColumn):
            bind(parse(column + text, EVERY), EVERY)


def test_filters_with_a_mistake_are_read_or_refused() -> None:
    chance = random.Random(7)
    good = 0
    whole = "rank > 0.5 and (url ^= 'a' or body = x'00') and not n in (1, 2) and at < '2025-06-01T12:00:00Z'"
    parse(whole, TABLE)
    for _ in range(1000):
        at, end = sorted(chance.randrange(len(whole)) for _ in range(2))
        with suppress(ValueError, UnknownColumn):
            found = parse(whole[:at] + chance.choice(WORDS) + whole[end:], TABLE)
            good += 1
            assert show(parse(show(found), TABLE)) == show(found)
    assert 5 < good < 500
