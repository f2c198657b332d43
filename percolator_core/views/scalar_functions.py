"""The scalar functions of views, with the semantics of DuckDB."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, NamedTuple, NoReturn

from sqlglot import expressions as exp

from percolator_core.views.compiling import Compiling
from percolator_core.views.kinds import EXACT, NULL, cast, digits_of, family, int64, sort_key
from percolator_core.views.problems import Report
from percolator_core.views.texts import left, lower, pattern_of, replaced, right, substring, upper
from percolator_core.views.typed import Rows, Typed, combined, constant, mapped, slots_of


class Call(NamedTuple):
    """A call of a function with its compiled arguments."""

    report: Report
    node: exp.Expr
    given: list[Typed]
    compiler: Compiling

    def refuse(self, what: str) -> NoReturn:
        """Refuse the call."""
        self.report.refuse(self.node, what)

    def typed(self, *wanted: str) -> list[Typed]:
        """Return the arguments, which must have these families of types; a last "…" repeats."""
        if len(wanted) < len(self.given):
            self.refuse(f"{self.name} takes at most {len(wanted)} arguments")
        found = []
        for one, kinds in zip(self.given, wanted, strict=False):
            if one.kind and family(one.kind) not in kinds.split("|"):
                self.refuse(f"{self.name} takes {kinds.replace('|', ' or ')}, not {one.kind}: write a CAST")
            found.append(one)
        return found

    @property
    def name(self) -> str:
        """The function's name for a message."""
        return str(self.node.this if isinstance(self.node, exp.Anonymous) else self.node.key).lower()


@dataclass(frozen=True, slots=True)
class Function:
    """How calls are compiled; ``parts`` are the parts of the node that hold the arguments, in order."""

    compile: Callable[[Call], Typed]
    parts: str

    def arguments(self, node: exp.Expr) -> list[exp.Expr]:
        """Return the arguments in order."""
        found: list[exp.Expr] = []
        for name in self.parts.split():
            one = node.args.get(name)
            if isinstance(one, list):
                found += one
            elif isinstance(one, exp.Expr) and name != "unit" and not isinstance(one, exp.Var):
                found.append(one)
        return found


def like(report: Report, node: exp.Expr, text: Typed, pattern: Typed, escape: str = "") -> Typed:
    """Return LIKE, ILIKE, and their negations."""
    for one in (text, pattern):
        if one.kind not in {"str", NULL}:
            report.refuse(node, f"LIKE compares texts, not {one.kind}: write a CAST to VARCHAR", "like")
    if len(escape) > 1:
        report.refuse(node, "ESCAPE is one character", "escape")
    wanted = not node.args.get("negate")
    ignore_case = isinstance(node, exp.ILike)

    def test(value: str, by: str) -> bool:
        if ignore_case:
            value, by = lower(value), lower(by)
        return bool(pattern_of(by, escape).fullmatch(value)) is wanted

    if pattern.is_literal and pattern.literal is not None:
        try:
            pattern_of(pattern.literal, escape)
        except ValueError as error:
            report.refuse(node, f"{error}: double it")
    return combined([text, pattern], "bool", test)


def _simple(kind: str, function: Callable[..., Any], *wanted: str) -> Callable[[Call], Typed]:
    return lambda call: combined(call.typed(*wanted), kind, function)


def _trim(call: Call) -> Typed:
    parts = call.typed("str", "str")
    strip = {"LEADING": str.lstrip, "TRAILING": str.rstrip}.get(
        str(call.node.args.get("position") or "BOTH"), str.strip
    )
    return combined(parts, "str", lambda text, chars=" ": strip(text, chars) if chars else text)


def _round(call: Call) -> Typed:
    parts = call.typed("int|decimal|float", "int")
    places = parts[1].literal if len(parts) > 1 else 0
    if len(parts) > 1 and (not parts[1].is_literal or places is None or abs(places) > 38):
        call.refuse("the places of round are a number, such as round(x, 2)")
    number = parts[0]
    if family(number.kind) == "float":
        return mapped(number, "float", lambda value: _round_float(value, places))
    digits, scale = digits_of(number.kind or "int")
    kind = number.kind or "int"
    if kind == "int" and places >= 0:
        return number.widened("int")
    if kind != "int":
        kind = f"decimal({digits},{max(0, min(scale, places))})"
    step = Decimal(1).scaleb(-min(places, scale))
    final = cast("decimal(38,0)" if kind == "int" else number.kind, kind)
    assert final is not None
    convert = final

    def rounded(value: Any) -> Any:
        near = Decimal(value).quantize(step, context=EXACT)
        return convert(EXACT.quantize(near, Decimal(1).scaleb(-max(0, min(scale, places)))))

    return mapped(number, kind, rounded)


def _round_float(value: float, places: int) -> float:
    if not math.isfinite(value):
        return value
    near = Decimal(value).quantize(Decimal(1).scaleb(-places), context=_BINARY)
    return math.copysign(float(near), value)


_BINARY: Final = Context(prec=1100, rounding=ROUND_HALF_UP)
"""Enough digits for each float, which has an exact value as a decimal."""


def _whole(rounding: str, of_float: Callable[[float], float]) -> Callable[[Call], Typed]:
    def compile_(call: Call) -> Typed:
        (number,) = call.typed("int|decimal|float")
        if family(number.kind) != "decimal":
            return mapped(
                number.widened("float"),
                "float",
                lambda value: of_float(value) if math.isfinite(value) else value,
            )
        digits, _ = digits_of(number.kind)
        return mapped(
            number, f"decimal({digits},0)", lambda value: value.to_integral_value(rounding, context=EXACT)
        )

    return compile_


def _abs(call: Call) -> Typed:
    (number,) = call.typed("int|decimal|float")
    if family(number.kind) == "int":
        return mapped(number, "int", lambda value: int64(abs(value)))
    return mapped(
        number,
        number.kind or "int",
        lambda value: value.copy_abs() if isinstance(value, Decimal) else abs(value),
    )


def _extreme(sign: int) -> Callable[[Call], Typed]:
    def compile_(call: Call) -> Typed:
        parts = call.compiler.mixed(call.node, call.given)
        kind = parts[0].kind
        if kind == "json":
            call.refuse("JSON values have no order: use another column")
        key = sort_key(kind)
        values = [one.value for one in parts]
        choose = max if sign > 0 else min

        def value(rows: Rows) -> Any:
            found = [one for one in (each(rows) for each in values) if one is not None]
            return choose(found, key=key) if found else None

        return Typed(kind, all(one.nullable for one in parts), value, slots_of(parts))

    return compile_


def _coalesce(call: Call) -> Typed:
    parts = call.compiler.mixed(call.node, call.given)
    values = [one.value for one in parts]

    def value(rows: Rows) -> Any:
        return next((found for found in (one(rows) for one in values) if found is not None), None)

    return Typed(parts[0].kind, all(one.nullable for one in parts), value, slots_of(parts))


def _nullif(call: Call) -> Typed:
    one, other = call.given
    one = call.compiler.read(call.node, one, other.kind)
    left_, right_ = call.compiler.mixed(call.node, [one, other])
    key = sort_key(left_.kind) or (lambda found: found)
    first, wide, second = one.value, left_.value, right_.value

    def value(rows: Rows) -> Any:
        found, compared, excluded = first(rows), wide(rows), second(rows)
        if found is None or (excluded is not None and key(compared) == key(excluded)):
            return None
        return found

    return Typed(one.kind, True, value, slots_of([one, other]))


def _as_text(call: Call, one: Typed) -> Typed:
    if one.kind == "str":
        return one
    convert = cast(one.kind, "str")
    if convert is None:
        call.refuse(f"{one.kind} has no text: leave it out")
    return constant(None, "str") if not one.kind else mapped(one, "str", convert)


def _pipe(call: Call) -> Typed:
    if {one.kind for one in call.given} == {"bytes"}:
        return combined(call.given, "bytes", lambda first, second: first + second)
    return combined([_as_text(call, one) for one in call.given], "str", lambda first, second: first + second)


def _concat(call: Call) -> Typed:
    parts = [_as_text(call, one) for one in call.given]
    values = [one.value for one in parts]
    return Typed("str", False, lambda rows: "".join(one(rows) or "" for one in values), slots_of(parts))


def _concat_ws(call: Call) -> Typed:
    between, *parts = [_as_text(call, one) for one in call.given]
    values = [one.value for one in parts]

    def value(rows: Rows) -> str | None:
        mark = between.value(rows)
        if mark is None:
            return None
        found: str = mark.join(text for text in (one(rows) for one in values) if text is not None)
        return found

    return Typed("str", between.nullable, value, slots_of([between, *parts]))


def _list_to_text(call: Call) -> Typed:
    # Only lists of aggregates are lists; a JSON column may have any value.
    if not isinstance(call.node.this.unnest(), exp.Bracket | exp.Min | exp.Max):
        call.refuse("array_to_string takes a list of an aggregate: write array_agg(x ORDER BY y)[1:10] in it")
    parts = call.typed("json", "str")
    convert = {bool: cast("bool", "str"), float: cast("float", "str")}

    def joined(values: list[Any], between: str) -> str:
        found = [one for one in values if one is not None]
        return between.join((convert.get(type(one)) or str)(one) for one in found)

    return combined(parts, "str", joined)


def _utc(value: date) -> datetime:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


_PARTS: Final[dict[str, Callable[[datetime], int]]] = {
    "year": lambda one: one.year,
    "quarter": lambda one: (one.month + 2) // 3,
    "month": lambda one: one.month,
    "day": lambda one: one.day,
    "dayofweek": lambda one: one.isoweekday() % 7,
    "hour": lambda one: one.hour,
    "minute": lambda one: one.minute,
}
_DAYS: Final = {"year", "quarter", "month", "day", "dayofweek"}


def _part(name: str) -> Callable[[Call], Typed]:
    function = _PARTS[name]

    def compile_(call: Call) -> Typed:
        (one,) = call.typed("date|datetime" if name in _DAYS else "datetime")
        return mapped(one, "int", lambda value: function(_utc(value)))

    return compile_


def _extract(call: Call) -> Typed:
    name = str(call.node.this).lower()
    if name not in _PARTS:
        call.refuse(f"extract knows {', '.join(_PARTS)}, not {name}")
    return _part(name)(call)


def _date_trunc(call: Call) -> Typed:
    unit = call.node.args["unit"].name.lower()
    if unit not in _TRUNCATED:
        call.refuse(f"date_trunc knows {', '.join(_TRUNCATED)}, not {unit}")
    (one,) = call.typed("date|datetime")
    cut = _TRUNCATED[unit]
    return mapped(one, "datetime", lambda value: cut(_utc(value)))


def _day(one: datetime) -> datetime:
    return one.replace(hour=0, minute=0, second=0, microsecond=0)


_TRUNCATED: Final[dict[str, Callable[[datetime], datetime]]] = {
    "year": lambda one: _day(one).replace(month=1, day=1),
    "quarter": lambda one: _day(one).replace(month=one.month - (one.month - 1) % 3, day=1),
    "month": lambda one: _day(one).replace(day=1),
    "week": lambda one: _day(one) - timedelta(days=one.weekday()),
    "day": _day,
    "hour": lambda one: one.replace(minute=0, second=0, microsecond=0),
    "minute": lambda one: one.replace(second=0, microsecond=0),
    "second": lambda one: one.replace(microsecond=0),
}


def _of(compile_: Callable[[Call], Typed], parts: str) -> Function:
    return Function(compile_, parts)


_TEXTS: Final = "this expression"
FUNCTIONS: Final[dict[type[exp.Expr] | str, Function]] = {
    exp.Lower: _of(_simple("str", lower, "str"), "this"),
    exp.Upper: _of(_simple("str", upper, "str"), "this"),
    exp.Length: _of(_simple("int", len, "str"), "this"),
    exp.Trim: _of(_trim, "this expression position"),
    exp.Substring: _of(_simple("str", substring, "str", "int", "int"), "this start length"),
    exp.Left: _of(_simple("str", left, "str", "int"), _TEXTS),
    exp.Right: _of(_simple("str", right, "str", "int"), _TEXTS),
    exp.Replace: _of(_simple("str", replaced, "str", "str", "str"), "this expression replacement"),
    exp.StartsWith: _of(_simple("bool", str.startswith, "str", "str"), _TEXTS),
    exp.Contains: _of(_simple("bool", lambda text, part: part in text, "str", "str"), _TEXTS),
    exp.StrPosition: _of(_simple("int", lambda text, part: text.find(part) + 1, "str", "str"), "this substr"),
    exp.DPipe: _of(_pipe, "this expression safe"),
    exp.Concat: _of(_concat, "expressions safe coalesce"),
    exp.ConcatWs: _of(_concat_ws, "expressions safe coalesce"),
    exp.ArrayToString: _of(_list_to_text, _TEXTS),
    exp.Abs: _of(_abs, "this"),
    exp.Round: _of(_round, "this decimals"),
    exp.Floor: _of(_whole(ROUND_FLOOR, lambda value: float(math.floor(value))), "this"),
    exp.Ceil: _of(_whole(ROUND_CEILING, lambda value: float(math.ceil(value))), "this"),
    exp.IsNan: _of(_simple("bool", math.isnan, "float"), "this"),
    exp.Greatest: _of(_extreme(1), "this expressions ignore_nulls"),
    exp.Least: _of(_extreme(-1), "this expressions ignore_nulls"),
    exp.Coalesce: _of(_coalesce, "this expressions"),
    exp.Nullif: _of(_nullif, _TEXTS),
    exp.Year: _of(_part("year"), "this"),
    exp.Quarter: _of(_part("quarter"), "this"),
    exp.Month: _of(_part("month"), "this"),
    exp.Day: _of(_part("day"), "this"),
    exp.DayOfMonth: _of(_part("day"), "this"),
    exp.DayOfWeek: _of(_part("dayofweek"), "this"),
    exp.Hour: _of(_part("hour"), "this"),
    exp.Minute: _of(_part("minute"), "this"),
    exp.Extract: _of(_extract, "this expression"),
    exp.TimestampTrunc: _of(_date_trunc, "this unit"),
    exp.DateTrunc: _of(_date_trunc, "this unit"),
}
"""The functions, by the class of their node."""
