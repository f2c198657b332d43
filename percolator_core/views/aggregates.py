"""Compile aggregates: the arguments that a row gives to its group, and the results of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NoReturn

from sqlglot import expressions as exp

from percolator_core.schema.types import column_type
from percolator_core.views.expressions import Compiler
from percolator_core.views.groups import Argument, Reading, Result, quotient
from percolator_core.views.kinds import EXACT, NULL, family
from percolator_core.views.names import identity, shortened
from percolator_core.views.packing import sortable
from percolator_core.views.typed import Rows, Typed, constant, slots_of

MOST_LISTED: Final = 1000
"""A list of an aggregate has at most this many values."""

LIST: Final = "list"
"""The kind of an argument of `array_agg`: order and value in one."""

_LISTABLE: Final = {"bool", "int", "float", "str"}


def list_aggregate(node: exp.Expr) -> bool:
    """Return True for ``array_agg(…)[1:n]``."""
    return isinstance(node, exp.Bracket) and isinstance(node.this.unnest(), exp.ArrayAgg | exp.Filter)


def is_aggregate(node: exp.Expr) -> bool:
    """Return True for the outermost node of an aggregate."""
    if isinstance(node, exp.Window):
        return False
    return isinstance(node, exp.AggFunc | exp.Filter | exp.IgnoreNulls) or list_aggregate(node)


def aggregates_in(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the aggregates in an expression, without those in subqueries and other aggregates."""
    if is_aggregate(node):
        yield node
    elif not isinstance(node, exp.Query | exp.Window):
        for one in node.iter_expressions():
            yield from aggregates_in(one)


@dataclass
class _Given:
    """An argument, and how it is used."""

    typed: Typed
    condition: Typed | None
    encode: Callable[[Any], bytes] | None
    kind: str
    summed: bool = False
    listed: bool = False
    ends: bool = False


@dataclass
class Aggregates:
    """The aggregates of one SELECT over the rows of one branch."""

    compiler: Compiler
    given: dict[tuple[str, str], _Given] = field(default_factory=dict)
    makers: list[Callable[[Sequence[Argument]], Result]] = field(default_factory=list)
    _filter: str = ""

    def add(self, node: exp.Expr, at: int) -> Typed:
        """Return the expression of an aggregate's result, the value number ``at`` of a group."""
        limit = self._bound(node) if isinstance(node, exp.Bracket) else None
        call, condition = self._filtered(node.this.unnest() if isinstance(node, exp.Bracket) else node)
        method, parts = _KINDS.get(type(call), (None, ""))
        if method is None or (isinstance(call, exp.ArrayAgg) and limit is None):
            self._refuse(call)
        self.compiler.only(call, parts)
        kind, nullable, slots = method(self, call, condition, limit)
        return Typed(kind, nullable, lambda rows: rows[0][at], slots)

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments, with their places in the state of a group."""
        found: list[Argument] = []
        at = 1
        for one in self.given.values():
            kind = one.kind if one.summed or one.listed else ""
            found.append(Argument(kind, at, one.summed, one.listed, one.ends))
            at += found[-1].width
        return tuple(found)

    def readers(self) -> list[Callable[[Rows], bytes | None]]:
        """Return the functions that encode a row's arguments."""
        return [_reader(one) for one in self.given.values()]

    def _filtered(self, node: exp.Expr) -> tuple[exp.Expr, Typed | None]:
        condition, self._filter = None, ""
        if isinstance(node, exp.Filter):
            self._filter = identity(node.expression)
            condition = self.compiler.condition(node.expression.this)
            node = node.this
        # The parser adds IGNORE NULLS to any_value; for others it is not the default.
        ignores = isinstance(node, exp.IgnoreNulls) and isinstance(node.this, exp.AnyValue)
        return (node.this if ignores else node), condition

    def _bound(self, node: exp.Bracket) -> int:
        (part,) = node.expressions if len(node.expressions) == 1 else (None,)
        if isinstance(part, exp.Slice) and not part.args.get("step"):
            low, high = part.this, part.expression
            starts = low is None or (isinstance(low, exp.Literal) and low.this == "1")
            if starts and isinstance(high, exp.Literal) and high.this.isdigit():
                return self._limit(node, high)
        return self.compiler.report.refuse(
            node, "a list of an aggregate has a limit: write array_agg(x ORDER BY y)[1:10]"
        )

    def _limit(self, node: exp.Expr, count: Any) -> int:
        if isinstance(count, exp.Literal) and count.this.isdigit() and 1 <= int(count.this) <= MOST_LISTED:
            return int(count.this)
        return self.compiler.report.refuse(
            node, f"a list of an aggregate has 1 to {MOST_LISTED} values: write such a number"
        )

    def _refuse(self, call: exp.Expr) -> NoReturn:
        mend = "write it with count, sum, avg, min, max, any_value, bool_and, bool_or or array_agg(…)[1:n]"
        if isinstance(call, exp.ArrayAgg):
            mend = "it grows without limit: write array_agg(x ORDER BY y)[1:10]"
        elif isinstance(call, exp.GroupConcat):
            mend = "it grows without limit: write array_to_string(array_agg(x ORDER BY y)[1:10], ',')"
        elif isinstance(call, exp.CountIf):
            mend = "write count(*) FILTER (WHERE …)"
        elif isinstance(call, exp.First | exp.Last):
            mend = "rows have no order: write any_value, min or max"
        self.compiler.report.refuse(call, f"the aggregate {shortened(call)} is not supported: {mend}")

    def argument(self, node: exp.Expr, typed: Typed, condition: Typed | None) -> tuple[int, _Given]:
        """Return the number of an argument; equal ones are one."""
        key = identity(node), self._filter
        encode = column_type(typed.kind).encode if typed.kind and typed.kind != LIST else None
        found = self.given.setdefault(key, _Given(typed, condition, encode, typed.kind))
        return list(self.given).index(key), found


def _reader(given: _Given) -> Callable[[Rows], bytes | None]:
    encode = given.encode if given.summed or given.listed else None
    composite = given.kind == LIST
    read = given.typed.value
    test = None if given.condition is None else given.condition.value

    def reader(rows: Rows) -> bytes | None:
        if test is not None and test(rows) is not True:
            return None
        value = read(rows)
        if value is None or composite:
            return value  # type: ignore[no-any-return]
        return b"" if encode is None else encode(value)

    return reader


def _value(self: Aggregates, node: exp.Expr, inner: exp.Expr, families: str) -> Typed:
    typed = self.compiler(inner)
    if typed.kind and family(typed.kind) not in families.split():
        name = node.key
        self.compiler.report.refuse(
            node, f"{name} takes {families.replace(' ', ', ')}, not {typed.kind}: write a CAST"
        )
    if not typed.kind:
        self.compiler.report.refuse(node, "the argument is always NULL: write CAST(NULL AS …)")
    return typed


_ORDERED: Final = "bool int float str bytes datetime date decimal uuid"
_Compiled = tuple[str, bool, Any]


def _slots(typed: Typed, condition: Typed | None) -> Any:
    return typed.slots | (condition.slots if condition else frozenset())


def _count(self: Aggregates, node: Any, condition: Typed | None, _limit: int | None) -> _Compiled:
    inner = node.this
    if inner is None or isinstance(inner, exp.Star):
        if condition is None:
            self.makers.append(lambda _arguments: lambda reading: reading.sums[0])
            return "int", False, frozenset()
        typed = constant(True, "bool")
        number, _ = self.argument(inner or node, typed, condition)
    elif isinstance(inner, exp.Distinct):
        if len(inner.expressions) != 1:
            self.compiler.report.refuse(node, "count(DISTINCT …) takes one expression: write a || ',' || b")
        typed = _value(self, node, inner.expressions[0], _ORDERED)
        number, given = self.argument(inner.expressions[0], typed, condition)
        given.listed = True
        self.makers.append(lambda _arguments: lambda reading: reading.ends[number].distinct)
        return "int", False, _slots(typed, condition)
    else:
        typed = self.compiler(inner)
        number, _ = self.argument(inner, typed, condition)
    self.makers.append(lambda arguments: lambda reading: reading.sums[arguments[number].at])
    return "int", False, _slots(typed, condition)


def _sum(self: Aggregates, node: Any, condition: Typed | None, _limit: int | None) -> _Compiled:
    typed = _value(self, node, node.this, "bool int decimal float")
    number, given = self.argument(node.this, typed, condition)
    given.summed = True
    places = column_type(typed.kind).places
    is_decimal = family(typed.kind) == "decimal"

    def read(reading: Reading, at: int) -> Any:
        if not reading.sums[at]:
            return None
        if typed.kind == "float":
            return quotient(reading.sums, at + 1)
        total = reading.sums[at + 1]
        return Decimal(total).scaleb(-places, context=EXACT) if is_decimal else total

    self.makers.append(lambda arguments: lambda reading: read(reading, arguments[number].at))
    kind = f"decimal(38,{places})" if is_decimal else "float" if typed.kind == "float" else "int"
    return kind, True, _slots(typed, condition)


def _average(self: Aggregates, node: Any, condition: Typed | None, _limit: int | None) -> _Compiled:
    typed = _value(self, node, node.this, "int decimal float")
    number, given = self.argument(node.this, typed, condition)
    given.summed = True
    scale = 10 ** column_type(typed.kind).places

    def read(reading: Reading, at: int) -> float | None:
        count = reading.sums[at]
        if not count:
            return None
        if typed.kind == "float":
            return quotient(reading.sums, at + 1, count)
        average: float = reading.sums[at + 1] / (count * scale)
        return average

    self.makers.append(lambda arguments: lambda reading: read(reading, arguments[number].at))
    return "float", True, _slots(typed, condition)


def _extreme(self: Aggregates, node: Any, condition: Typed | None, _limit: int | None) -> _Compiled:
    is_max = isinstance(node, exp.Max)
    count = node.args.get("count")
    limit = None if count is None else self._limit(node, count)
    typed = _value(self, node, node.this, _ORDERED)
    number, given = self.argument(node.this, typed, condition)
    given.listed = True
    decode = column_type(typed.kind).decode
    if limit is not None:
        _listable(self, node, typed)

        def read_list(reading: Reading) -> list[Any] | None:
            read = reading.multiset.last if is_max else reading.multiset.first
            found = [decode(value) for value, times in read(number, limit) for _ in range(min(times, limit))]
            return found[:limit] or None

        self.makers.append(lambda _arguments: read_list)
        return "json", True, _slots(typed, condition)
    given.ends = True

    def read(reading: Reading) -> Any:
        end = reading.ends[number].high if is_max else reading.ends[number].low
        return None if end is None else decode(end)

    self.makers.append(lambda _arguments: read)
    return typed.kind, True, _slots(typed, condition)


def _all_or_any(self: Aggregates, node: Any, condition: Typed | None, _limit: int | None) -> _Compiled:
    typed = _value(self, node, node.this, "bool")
    number, given = self.argument(node.this, typed, condition)
    given.summed = True
    needs_all = isinstance(node, exp.LogicalAnd)

    def read(reading: Reading, at: int) -> bool | None:
        count, true = reading.sums[at : at + 2]
        return None if not count else true == count if needs_all else true > 0

    self.makers.append(lambda arguments: lambda reading: read(reading, arguments[number].at))
    return "bool", True, _slots(typed, condition)


def _listable(self: Aggregates, node: exp.Expr, typed: Typed) -> None:
    if typed.kind not in _LISTABLE:
        self.compiler.report.refuse(
            node, f"a list has values of bool, int, float or str, not {typed.kind}: write a CAST"
        )


def _list(self: Aggregates, node: Any, condition: Typed | None, limit: int | None) -> _Compiled:
    assert limit is not None
    inner = node.this
    if not isinstance(inner, exp.Order):
        self.compiler.report.refuse(node, "a list has an order: write array_agg(x ORDER BY y)[1:10]")
    typed = self.compiler(inner.this)
    _listable(self, node, typed)
    encode, decode = column_type(typed.kind).encode, column_type(typed.kind).decode
    keys = order_keys(self.compiler, inner)

    def composed(rows: Rows) -> bytes:
        value = typed.value(rows)
        order = b"".join(key(rows) for key in keys)
        tail = b"\x00" if value is None else b"\x01" + encode(value)
        return order + tail + len(order).to_bytes(4, "big")

    def read(reading: Reading) -> list[Any] | None:
        found: list[Any] = []
        for value, times in reading.multiset.first(number, limit):
            tail = value[int.from_bytes(value[-4:], "big") : -4]
            found += [decode(tail[1:]) if tail[0] else None] * min(times, limit)
        return found[:limit] or None

    slots = typed.slots | slots_of([one.typed for one in keys])
    number, given = self.argument(inner, Typed(LIST, False, composed, slots), condition)
    given.listed = True
    self.makers.append(lambda _arguments: read)
    return "json", True, slots | (condition.slots if condition else frozenset())


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One expression of an ORDER BY, as a part of a key."""

    typed: Typed
    descending: bool
    nulls_first: bool

    def __call__(self, rows: Rows) -> bytes:
        """Return the part of the key for a row."""
        value = self.typed.value(rows)
        encoded = None if value is None else column_type(self.typed.kind).encode(value)
        return sortable(encoded, self.descending, self.nulls_first)


def order_keys(compiler: Compiler, order: exp.Expr) -> list[OrderKey]:
    """Return the expressions of an ORDER BY."""
    found = []
    for one in order.expressions:
        compiler.only(one, "this desc nulls_first")
        typed = compiler(one.this)
        if isinstance(one.this, exp.Literal) or typed.kind in {"json", NULL}:
            compiler.report.refuse(one, "ORDER BY has columns and expressions of them, without JSON")
        found.append(OrderKey(typed, bool(one.args.get("desc")), bool(one.args.get("nulls_first"))))
    return found


_KINDS: Final[dict[type[exp.Expr], tuple[Callable[..., _Compiled], str]]] = {
    exp.Count: (_count, "this big_int"),
    exp.Sum: (_sum, "this"),
    exp.Avg: (_average, "this"),
    exp.Min: (_extreme, "this count"),
    exp.Max: (_extreme, "this count"),
    exp.AnyValue: (_extreme, "this"),
    exp.LogicalAnd: (_all_or_any, "this"),
    exp.LogicalOr: (_all_or_any, "this"),
    exp.ArrayAgg: (_list, "this"),
}
