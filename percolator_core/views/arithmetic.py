"""Arithmetic of ints, decimals and floats, as in DuckDB."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

from sqlglot import expressions as exp

from percolator_core.views.kinds import EXACT, decimal_kind, digits_of, int64

Operation: TypeAlias = Callable[[Any, Any], Any]
Chosen: TypeAlias = tuple[str, Operation, str]
"""The kind of the result, the function, and the kind to which both values are converted before, or ''."""


def negated(value: Any) -> Any:
    """Return the value with the other sign. Raises ValueError if it does not fit into 64 bits."""
    if isinstance(value, Decimal):
        return value.copy_negate() if value else value
    return -value if isinstance(value, float) else int64(-value)


def _sum(ints: Operation, decimals: Operation, floats: Operation) -> Callable[[str, str], Chosen]:
    def choose(left: str, right: str) -> Chosen:
        if "float" in {left, right}:
            return "float", floats, "float"
        if left == right == "int":
            return "int", lambda one, other: int64(ints(one, other)), ""
        (digits, places), (more_digits, more_places) = digits_of(left), digits_of(right)
        most = max(places, more_places)
        kind = decimal_kind(max(digits - places, more_digits - more_places) + most + 1, most)
        return kind, decimals, ""

    return choose


def _product(left: str, right: str) -> Chosen:
    if "float" in {left, right}:
        return "float", lambda one, other: one * other, "float"
    if left == right == "int":
        return "int", lambda one, other: int64(one * other), ""
    (digits, places), (more_digits, more_places) = digits_of(left), digits_of(right)
    return decimal_kind(digits + more_digits, places + more_places), EXACT.multiply, ""


def _quotient(_left: str, _right: str) -> Chosen:
    return "float", divided, "float"


def divided(one: float, other: float) -> float:
    """Return the quotient by the rules of IEEE 754, which allow a division by zero."""
    if other:
        return one / other
    if not one or math.isnan(one):
        return math.nan
    return math.copysign(math.inf, one) * math.copysign(1.0, other)


def _truncated(one: int, other: int) -> int:
    if not other:
        raise ZeroDivisionError(f"division by zero: {one} // 0")
    found = abs(one) // abs(other)
    return int64(found if (one < 0) == (other < 0) else -found)


def _whole_quotient(left: str, right: str) -> Chosen:
    if not left == right == "int":
        raise ValueError(f"// is for ints, not for {left} and {right}: write floor(a / b)")
    return "int", _truncated, ""


def _int_rest(one: int, other: int) -> int:
    if not other:
        raise ZeroDivisionError(f"division by zero: {one} % 0")
    rest = abs(one) % abs(other)
    return -rest if one < 0 else rest


def _float_rest(one: float, other: float) -> float:
    return math.nan if not other or math.isinf(one) else math.fmod(one, other)


def _rest(left: str, right: str) -> Chosen:
    if "float" in {left, right}:
        return "float", _float_rest, "float"
    if left == right == "int":
        return "int", _int_rest, ""
    (digits, places), (more_digits, more_places) = digits_of(left), digits_of(right)
    most = max(places, more_places)
    step = Decimal(1).scaleb(-most)

    def rest(one: Any, other: Any) -> Decimal:
        if not other:
            raise ZeroDivisionError(f"division by zero: {one} % {other}")
        return EXACT.remainder(Decimal(one), Decimal(other)).quantize(step, context=EXACT)

    return decimal_kind(max(digits - places, more_digits - more_places) + most, most), rest, ""


ARITHMETIC: Final[dict[type[exp.Expr], Callable[[str, str], Chosen]]] = {
    exp.Add: _sum(lambda one, other: one + other, EXACT.add, lambda one, other: one + other),
    exp.Sub: _sum(lambda one, other: one - other, EXACT.subtract, lambda one, other: one - other),
    exp.Mul: _product,
    exp.Div: _quotient,
    exp.IntDiv: _whole_quotient,
    exp.Mod: _rest,
}
"""How each operator works on two kinds; raises ValueError with a remedy if it does not."""
