"""Predicates as text, for the command line and for messages: ``size > 5 and url ^= 'https:'``.

====================================  ========================================================================
``=`` ``==`` ``!=`` ``<>``            compare; ``= null`` means no value, ``!= null`` means any value
``<`` ``<=`` ``>`` ``>=``             compare
``^=``                                starts with: text and bytes
``in (1, 2)`` ``not in (1, 2)``       is one of the values, or none of them; ``null`` means no value
``between 1 and 2``                   both bounds included; also ``not between``
``is null`` ``is not null``           the column has no value, or has a value
``like 'abc%'``                       starts with; no other pattern; also ``not like``
``not`` ``and`` ``or`` ``(`` ``)``    in this order of precedence; in upper or lower case
``paid``                              a bool column without an operator: the column is true
``true`` ``false``                    as a value; in place of a comparison: true for every row, or for none
``'it''s'``                           text; also times, days, UUIDs, ``'nan'`` and ``'inf'``
``5`` ``-0.5`` ``1e3``                numbers
``x'00ff'`` ``hex'00ff'``             bytes; in a raw table ``'text'`` also means bytes, in UTF-8
``"page rank"``                       a column whose name is not a plain word, or is reserved, such as ``in``
====================================  ========================================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Final, Literal, NoReturn

from percolator_core.errors import UnknownColumn
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.literals import RESERVED, Token, literal, name, pointed, read, tokens
from percolator_core.schema.predicates import (
    MOST_DEPTH,
    MOST_NODES,
    OPERATORS,
    Bound,
    Bounds,
    Comparison,
    In,
    IsNull,
    Joined,
    Not,
    Operator,
    Predicate,
    bind,
    bounds_of,
    columns_of,
    required,
)
from percolator_core.schema.types import ColumnType, column_type, shown

_OPERATORS: Final[Mapping[str, Operator]] = {**{op: op for op in OPERATORS}, "==": "=", "<>": "!="}


def parse(text: str, definition: TableDefinition) -> Predicate:
    """Parse ``text`` into a predicate on the rows of a table, for `bind`.

    Values have the Python types of their columns.

    Raises:
        UnknownColumn: the table has no such column.
        ValueError: the text cannot be read or is too long, or a value is not of its column's type. The
            message is a sentence, then the part of the text, then a caret below the position.
    """
    parser = _Parser(text, definition)
    found = parser.whole()
    # Check the depth: the parser counts only nested brackets, but `bind` also counts nested connectives.
    bind(found, definition)
    return found


class _Parser:
    """A recursive-descent parser: each method parses one part of the grammar, at the current position."""

    __slots__ = ("_at", "_definition", "_nested", "_nodes", "_text", "_tokens")

    def __init__(self, text: str, definition: TableDefinition) -> None:
        self._text = text
        self._definition = definition
        self._tokens = list(tokens(text))
        self._at = 0
        self._nested = 0
        self._nodes = 0

    def whole(self) -> Predicate:
        if self._next().kind == "end":
            self._fail(self._next(), "the filter is empty: write a comparison, such as page_rank > 0.5")
        found = self._any()
        if self._next().kind != "end":
            self._fail(self._next(), f"'and', 'or' or the end is expected, not {self._next()}")
        return found

    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _taken(self, word: str) -> bool:
        """Take the next token and return True, if the token is ``word``."""
        found = self._next().word == word
        self._at += found
        return found

    def _expect(self, word: str, after: str) -> None:
        if not self._taken(word):
            self._fail(self._next(), f"{word} is expected after {after}, not {self._next()}")

    def _fail(self, token: Token, sentence: str) -> NoReturn:
        raise ValueError(pointed(self._text, token.at, sentence))

    def _count(self, token: Token) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            self._fail(token, f"a filter has at most {MOST_NODES} parts: split it up")

    def _any(self) -> Predicate:
        return self._connected("or", self._all)

    def _all(self) -> Predicate:
        return self._connected("and", self._one)

    def _connected(self, how: Literal["and", "or"], part: Callable[[], Predicate]) -> Predicate:
        first = part()
        if self._next().word != how:
            return first
        self._count(self._next())
        parts = [first]
        while self._taken(how):
            parts.append(part())
        # Merge nested groups with the same connective: the result is equal, and less deep.
        flat = (one.parts if isinstance(one, Joined) and one.how == how else (one,) for one in parts)
        return Joined(how, tuple(itertools.chain.from_iterable(flat)))

    def _one(self) -> Predicate:
        token = self._next()
        if token.word not in {"not", "("}:
            return self._test()
        self._at += 1
        self._nested += 1
        if self._nested > MOST_DEPTH:
            self._fail(token, f"a filter is nested at most {MOST_DEPTH} deep: split it up")
        found: Predicate
        if token.word == "not":
            self._count(token)
            found = Not(self._one())
        else:
            found = self._any()
            if not self._taken(")"):
                self._fail(self._next(), f"'and', 'or' or ) is expected, not {self._next()}")
        self._nested -= 1
        return found

    def _test(self) -> Predicate:
        token = self._take()
        self._count(token)
        if token.word in {"true", "false"}:
            return Joined("and" if token.word == "true" else "or", ())
        if token.kind not in {"word", "name"} or token.word in RESERVED:
            self._fail(token, f"a column is expected, not {token}")
        kind = self._type_of(token)
        column = token.text
        if kind.name == "bool" and (self._next().kind == "end" or self._next().word in {"and", "or", ")"}):
            return Comparison(column, "=", True)
        return self._asked(column, kind)

    def _asked(self, column: str, kind: ColumnType) -> Predicate:
        operator = self._take()
        negated = operator.word == "not"
        if negated:
            operator = self._take()
        if operator.word == "is" and not negated:
            return self._is_null(column)
        if not kind.has_order and not (operator.word in _OPERATORS and self._next().word == "null"):
            self._fail(operator, f"{column} is {kind.name}: only 'is null' and 'is not null' can test it")
        match operator.word:
            case "in":
                found = self._in(column, kind)
            case "between":
                found = self._between(column, kind)
            case "like":
                found = self._like(column, kind)
            case op if op in _OPERATORS and not negated:
                return self._comparison(column, kind, operator)
            case _:
                some = "in, between or like" if negated else "an operator such as =, in or is null"
                self._fail(operator, f"{some} is expected after {column}, not {operator}")
        return Not(found) if negated else found

    def _type_of(self, token: Token) -> ColumnType:
        try:
            return column_type(self._definition.column(token.text).type)
        except UnknownColumn as error:
            raise UnknownColumn(pointed(self._text, token.at, str(error))) from None

    def _is_null(self, column: str) -> Predicate:
        negated = self._taken("not")
        self._expect("null", "is not" if negated else "is")
        return Not(IsNull(column)) if negated else IsNull(column)

    def _comparison(self, column: str, kind: ColumnType, operator: Token) -> Predicate:
        op = _OPERATORS[operator.word]
        if op == "^=" and kind.name not in {"str", "bytes"}:
            self._fail(operator, f"{column} is {kind.name}: ^= is for str and bytes")
        if not self._taken("null"):
            return Comparison(column, op, self._value(column, kind))
        if op not in {"=", "!="}:
            self._fail(operator, f"only = and != compare with null, not {operator}")
        return IsNull(column) if op == "=" else Not(IsNull(column))

    def _in(self, column: str, kind: ColumnType) -> Predicate:
        self._expect("(", "in")
        values: list[Any] = []
        with_null = False
        if not self._taken(")"):
            while True:
                if self._taken("null"):
                    with_null = True
                else:
                    values.append(self._value(column, kind))
                if self._taken(")"):
                    break
                if not self._taken(","):
                    self._fail(self._next(), f"a comma or ) is expected, not {self._next()}")
        some = In(column, tuple(values))
        return some | IsNull(column) if with_null else some

    def _between(self, column: str, kind: ColumnType) -> Predicate:
        low = self._value(column, kind)
        self._expect("and", "the lower bound")
        return Joined(
            "and", (Comparison(column, ">=", low), Comparison(column, "<=", self._value(column, kind)))
        )

    def _like(self, column: str, kind: ColumnType) -> Predicate:
        token = self._take()
        if kind.name != "str":
            self._fail(token, f"{column} is {kind.name}: like is for str")
        if token.kind != "text":
            self._fail(token, f"a text in single quotes is expected after like, not {token}")
        prefix = token.text.removesuffix("%")
        if "%" in prefix or "_" in prefix:
            self._fail(
                token, "like takes a prefix and one %, such as 'abc%': use ^= for a prefix with _ or %"
            )
        return Comparison(
            column, "=" if prefix == token.text else "^=", self._checked(token, column, kind, prefix)
        )

    def _value(self, column: str, kind: ColumnType) -> Any:
        token = self._take()
        if token.kind in {"name", "end"} or (token.kind == "word" and token.word not in RESERVED):
            self._fail(token, f"a value is expected, not {token}: a text needs single quotes")
        if not self._definition.is_typed:
            return self._raw_value(column, token)
        try:
            value = read(kind, token)
        except ValueError as error:
            self._fail(token, f"{column} {error}")
        return self._checked(token, column, kind, value)

    def _raw_value(self, column: str, token: Token) -> bytes:
        readers: dict[str, Callable[[str], bytes]] = {"bytes": bytes.fromhex, "text": str.encode}
        try:
            return readers[token.kind](token.text)
        except (KeyError, ValueError):
            self._fail(
                token,
                f"{column} holds bytes: write a text in single quotes, or bytes such as x'00ff', not {token}",
            )

    def _checked(self, token: Token, column: str, kind: ColumnType, value: Any) -> Any:
        try:
            kind.encode(value)
        except (TypeError, ValueError) as error:
            self._fail(token, f"{column}: {error}")
        return value


def show(predicate: Predicate) -> str:
    """Return the predicate as text, from which `parse` makes a predicate with the same result for each row.

    The text is for messages, so this raises nothing, even for a predicate that no table accepts. A part that
    is nested deeper than `bind` allows becomes an ellipsis.
    """
    return _show(predicate, 0, 0)


def _show(part: object, within: int, depth: int) -> str:
    """``within`` is the operator around the part. 0: none, or ``or``. 1: ``and``. 2: ``not``."""
    if depth > MOST_DEPTH:
        return "…"
    if isinstance(part, Joined):
        if not part.parts:
            return "true" if part.how == "and" else "false"
        if len(part.parts) == 1:
            return _show(part.parts[0], within, depth + 1)
        level = int(part.how == "and")
        text = f" {part.how} ".join(_show(one, level, depth + 1) for one in part.parts)
        return f"({text})" if within > level else text
    if isinstance(part, Not):
        if isinstance(part.part, IsNull | In):
            return _show_test(part.part, "not ")
        return f"not {_show(part.part, 2, depth + 1)}"
    return _show_test(part, "")


def _show_test(part: object, negated: str) -> str:
    if isinstance(part, IsNull):
        return f"{name(part.column)} is {negated}null"
    if isinstance(part, In):
        return f"{name(part.column)} {negated}in ({', '.join(map(literal, part.values))})"
    if isinstance(part, Comparison):
        return f"{name(part.column)} {part.op} {literal(part.value)}"
    return shown(part)


ROW: Final = "row"
"""The name of the row key in a filter."""


class _RawRow(TableDefinition):
    """The definition of a raw table for a filter: every name is a column of bytes."""

    def column(self, name: str) -> Column:
        return Column(name, "bytes", nullable=True)


@dataclass(frozen=True, slots=True)
class RawFilter:
    """A predicate over the row key and the cells of a raw row; a missing cell is null.

    ``columns`` are the columns that the filter compares. If ``needs_cell`` is True, every row that meets the
    filter has a cell in one of these columns, so a scan may read only these columns.
    """

    bound: Bound
    columns: tuple[str, ...]
    needs_cell: bool
    key: Bounds

    @classmethod
    def of(cls, conditions: Iterable[str | Predicate], table: str) -> RawFilter:
        """Return the conjunction of the conditions. Raises as `parse` and `bind`."""
        row = _RawRow(table)
        found = [parse(one, row) if isinstance(one, str) else one for one in conditions]
        bound = bind(reduce(and_, found, Joined("and", ())), row)
        tested = dict.fromkeys(columns_of(bound))
        needs_cell = any(test.column != ROW and test.op != "null" for test in required(bound))
        key = bounds_of(bound).get(ROW, Bounds())
        return cls(bound, tuple(name for name in tested if name != ROW), needs_cell, key)

    def holds(self, row: bytes, cells: Mapping[str, bytes | None]) -> bool:
        """Return True if the row meets the filter."""
        return self.bound.holds(lambda name: row if name == ROW else cells.get(name)) is True

    def key_ranges(self) -> list[tuple[bytes, bytes | None]]:
        """Return the ranges of row keys that may meet the filter: inclusive lower, exclusive upper bounds."""
        low, high = self.key.low or b"", self.key.high
        if self.key.values is not None:
            return [(one, one + b"\0") for one in sorted(self.key.values)]
        if high is not None and low > high:
            return []
        return [(low, None if high is None else high + b"\0")]
