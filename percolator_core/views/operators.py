"""Compile the operators of SQL: arithmetic, comparisons, three-valued logic, CASE and CAST."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any, Final

from sqlglot import expressions as exp

from percolator_core.schema.types import column_type
from percolator_core.views.arithmetic import ARITHMETIC, negated
from percolator_core.views.compiling import Compiling
from percolator_core.views.kinds import NULL, cast, is_numeric, sort_key
from percolator_core.views.names import identity
from percolator_core.views.problems import Report
from percolator_core.views.scalar_functions import like
from percolator_core.views.typed import Rows, Typed, combined, constant, is_text, mapped, slots_of

_COMPARE: Final[dict[type[exp.Expr], Callable[[Any, Any], bool]]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
    exp.NullSafeEQ: operator.eq,
    exp.NullSafeNEQ: operator.ne,
}
_TYPES: Final = {
    "BOOLEAN": "bool",
    "BIGINT": "int",
    "DOUBLE": "float",
    "TEXT": "str",
    "VARCHAR": "str",
    "VARBINARY": "bytes",
    "TIMESTAMPTZ": "datetime",
    "DATE": "date",
    "UUID": "uuid",
}
_OTHER_TYPES: Final = {
    "FLOAT": "DOUBLE", "TIMESTAMPNTZ": "TIMESTAMPTZ", "INT": "BIGINT", "SMALLINT": "BIGINT",
    "TINYINT": "BIGINT", "INT128": "DECIMAL(38,0)",
}  # fmt: skip


def sql_kind(report: Report, to: exp.DataType) -> str:
    """Return the kind of an SQL type. Refuses a type that no column has."""
    name = to.this.value if hasattr(to.this, "value") else str(to.this)
    given = [str(one.this.this) if isinstance(one, exp.DataTypeParam) else str(one) for one in to.expressions]
    if name == "DECIMAL":
        found = f"decimal({','.join(given or ['18', '3'])}{',0' if len(given) == 1 else ''})"
        try:
            return column_type(found).name
        except ValueError as error:
            report.refuse(to, str(error))
    kind = _TYPES.get(name)
    if kind is None or to.args.get("nested") or given:
        mend = _OTHER_TYPES.get(name, f"one of {', '.join(dict.fromkeys(_TYPES))}, DECIMAL(p,s)")
        report.refuse(to.parent or to, f"a view has no values of the type {identity(to)}: use {mend}")
    return kind


def _arithmetic(self: Compiling, node: Any) -> Typed:
    left, right = self(node.this), self(node.expression)
    if isinstance(node, exp.Add | exp.Sub) and "date" in {left.kind, right.kind}:
        return _days(self, node, left, right)
    if is_text(left) or is_text(right):
        left, right = self.mixed(node, [left, right])
    for one in (left, right):
        if one.kind and not is_numeric(one.kind):
            self.report.refuse(node, f"{one.kind} has no arithmetic: write a CAST to a number")
    if NULL in {left.kind, right.kind}:
        kind = left.kind or right.kind or "int"
        left, right = left.widened(kind), right.widened(kind)
    try:
        kind, function, convert = ARITHMETIC[type(node)](left.kind, right.kind)
    except ValueError as error:
        self.report.refuse(node, str(error))
    if convert:
        left, right = left.widened(convert), right.widened(convert)
    return combined([left, right], kind, function)


def _days(self: Compiling, node: Any, left: Typed, right: Typed) -> Typed:
    left, right = self.read(node, left, "date"), self.read(node, right, "date")
    kinds = left.kind, right.kind
    if isinstance(node, exp.Sub) and kinds == ("date", "date"):
        return combined([left, right], "int", lambda one, other: (one - other).days)
    sign = -1 if isinstance(node, exp.Sub) else 1
    if kinds == ("date", "int"):
        return combined(
            [left, right], "date", lambda day, days: date.fromordinal(day.toordinal() + sign * days)
        )
    return self.report.refuse(node, f"{kinds[0]} and {kinds[1]} do not mix: write a day and a number of days")


def _negative(self: Compiling, node: Any) -> Typed:
    found = self(node.this)
    if found.kind and not is_numeric(found.kind):
        self.report.refuse(node, f"{found.kind} has no arithmetic: write a CAST to a number")
    if found.is_literal and found.literal is not None:
        return constant(negated(found.literal), found.kind)
    return mapped(found, found.kind or "int", negated)


def _comparison(self: Compiling, node: Any) -> Typed:
    if isinstance(node.this, tuple(_COMPARE)):
        self.report.refuse(node, "comparisons are not chained: join them with AND, or write parentheses")
    pair = self.mixed(node, [self(node.this), self(node.expression)])
    compare = compared(self, node, pair, _COMPARE[type(node)])
    if not isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        return compare
    test, (first, second) = compare.value, (one.value for one in pair)
    wanted = isinstance(node, exp.NullSafeEQ)

    def value(rows: Rows) -> bool:
        found: bool | None = test(rows)
        if found is None:
            return (first(rows) is None and second(rows) is None) is wanted
        return found

    return Typed("bool", False, value, compare.slots)


def compared(self: Compiling, node: exp.Expr, pair: list[Typed], test: Callable[[Any, Any], bool]) -> Typed:
    """Return the comparison of two values of one kind."""
    if pair[0].kind == "json":
        self.report.refuse(node, "JSON values have no order and no equality: compare another column")
    key = sort_key(pair[0].kind)
    return combined(pair, "bool", test if key is None else lambda one, other: test(key(one), key(other)))


def _connective(self: Compiling, node: Any) -> Typed:
    # A chain of hundreds of ORs is a deep tree on its left side.
    settled = isinstance(node, exp.Or)
    nodes = list(node.flatten(unnest=False))
    parts = [self.condition(one) for one in nodes]
    values = [one.value for one in parts]

    def value(rows: Rows) -> bool | None:
        answer: bool | None = not settled
        for one in values:
            found: bool | None = one(rows)
            if found is settled:
                return found
            if found is None:
                answer = None
        return answer

    return Typed("bool", any(one.nullable for one in parts), value, slots_of(parts))


def _is(self: Compiling, node: Any) -> Typed:
    inner, other = self(node.this), node.expression
    test = inner.value
    if isinstance(other, exp.Null):
        return Typed("bool", False, lambda rows: test(rows) is None, inner.slots)
    if not isinstance(other, exp.Boolean) or inner.kind not in {"bool", NULL}:
        self.report.refuse(node, "IS compares with NULL, or a bool with TRUE or FALSE: write =")
    wanted = bool(other.this)
    return Typed("bool", False, lambda rows: test(rows) is wanted, inner.slots)


def _in(self: Compiling, node: Any) -> Typed:
    if not node.expressions:
        self.report.refuse(node, "IN takes a list of values: join the table by its primary key", "in")
    wanted, *options = self.mixed(node, [self(node.this), *(self(one) for one in node.expressions)])
    tests = [compared(self, node, [wanted, one], operator.eq).value for one in options]
    parts = [wanted, *options]
    nullable = any(one.nullable for one in parts)
    if wanted.kind != "float" and all(one.is_literal for one in options):
        values = frozenset(one.literal for one in options if one.literal is not None)
        missing = None if any(one.literal is None for one in options) else False
        return mapped(wanted, "bool", lambda found: True if found in values else missing, nullable)

    def value(rows: Rows) -> bool | None:
        answer: bool | None = False
        for one in tests:
            found = one(rows)
            if found:
                return True
            if found is None:
                answer = None
        return answer

    return Typed("bool", nullable, value, slots_of(parts))


def _between(self: Compiling, node: Any) -> Typed:
    wanted, least, most = self.mixed(node, [self(node.args[one]) for one in ("this", "low", "high")])
    above = compared(self, node, [wanted, least], operator.ge).value
    below = compared(self, node, [wanted, most], operator.le).value

    def value(rows: Rows) -> bool | None:
        one, other = above(rows), below(rows)
        if one is False or other is False:
            return False
        return None if one is None or other is None else True

    parts = [wanted, least, most]
    return Typed("bool", any(one.nullable for one in parts), value, slots_of(parts))


def _case(self: Compiling, node: Any) -> Typed:
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    default = node.args.get("default" if isinstance(node, exp.Case) else "false")
    given = node.this if isinstance(node, exp.Case) else None
    tests = []
    for one in branches:
        if given is None:
            tests.append(self.condition(one.this))
        else:
            tests.append(compared(self, node, self.mixed(node, [self(given), self(one.this)]), operator.eq))
    results = [self(one.args["true"]) for one in branches]
    results.append(constant(None, NULL) if default is None else self(default))
    results = self.mixed(node, results)
    pairs = [(test.value, result.value) for test, result in zip(tests, results, strict=False)]
    otherwise = results[-1].value

    def value(rows: Rows) -> Any:
        for test, result in pairs:
            if test(rows):
                return result(rows)
        return otherwise(rows)

    return Typed(results[0].kind, any(one.nullable for one in results), value, slots_of([*tests, *results]))


def _cast(self: Compiling, node: Any) -> Typed:
    inner, kind = self(node.this), sql_kind(self.report, node.args["to"])
    if is_text(inner) and kind == "bytes":
        return self.read(node, inner, kind)
    convert = cast(inner.kind, kind)
    if convert is None:
        self.report.refuse(node, f"there is no conversion from {inner.kind} to {kind}: leave out the CAST")
    if inner.is_literal and not isinstance(node, exp.TryCast):
        try:
            return constant(None if inner.literal is None else convert(inner.literal), kind)
        except ValueError as error:
            self.report.refuse(node, f"{error}: write a value of the type {kind}")
    if not isinstance(node, exp.TryCast):
        return mapped(inner, kind, convert)
    return mapped(inner, kind, partial(_tried, convert), nullable=True)


def _tried(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except (ValueError, ArithmeticError):
        return None


def _not(self: Compiling, node: Any) -> Typed:
    return mapped(self.condition(node.this), "bool", operator.not_)


def _escape(self: Compiling, node: Any) -> Typed:
    if not isinstance(node.this, exp.Like | exp.ILike) or not node.expression.is_string:
        self.report.refuse(node, "ESCAPE follows LIKE, and is one character in quotes")
    self.only(node.this, "this expression negate")
    return like(
        self.report, node.this, self(node.this.this), self(node.this.expression), node.expression.this
    )


def _like(self: Compiling, node: Any) -> Typed:
    return like(self.report, node, self(node.this), self(node.expression))


_TWO: Final = "this expression"
OPERATORS: Final[dict[type[exp.Expr], tuple[Callable[[Compiling, Any], Typed], str]]] = {
    exp.Boolean: (lambda _self, node: constant(bool(node.this), "bool"), "this"),
    exp.Null: (lambda _self, _node: constant(None, NULL), ""),
    exp.Paren: (lambda self, node: self(node.this), "this"),
    exp.Neg: (_negative, "this"),
    exp.Not: (_not, "this"),
    exp.Is: (_is, _TWO),
    exp.In: (_in, "this expressions"),
    exp.Between: (_between, "this low high"),
    exp.Case: (_case, "this ifs default"),
    exp.If: (_case, "this true false"),
    exp.Cast: (_cast, "this to"),
    exp.TryCast: (_cast, "this to safe"),
    exp.Like: (_like, "this expression negate"),
    exp.ILike: (_like, "this expression negate"),
    exp.Escape: (_escape, _TWO),
    exp.And: (_connective, _TWO),
    exp.Or: (_connective, _TWO),
    exp.Div: (_arithmetic, "this expression typed safe"),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod), (_arithmetic, _TWO)),
    **dict.fromkeys(_COMPARE, (_comparison, _TWO)),
}
"""How each node is compiled, and the parts of it that are understood."""
