"""The interface of the compiler of expressions, for the compilers of single operators and functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlglot import expressions as exp

from percolator_core.views.problems import Report
from percolator_core.views.typed import Typed


class Compiling(Protocol):
    """Compiles the parts of a node."""

    report: Report

    def __call__(self, node: exp.Expr) -> Typed:
        """Return the compiled expression. Raises `Refusal`."""

    def condition(self, node: exp.Expr) -> Typed:
        """Return the compiled expression, which has to be a bool."""

    def only(self, node: exp.Expr, parts: str) -> None:
        """Refuse a node that has other parts than these."""

    def mixed(self, node: exp.Expr, parts: Sequence[Typed]) -> list[Typed]:
        """Return the values with their common type; a text literal takes the type of the others."""

    def read(self, node: exp.Expr, one: Typed, kind: str) -> Typed:
        """Return a text literal as a constant of the kind, and everything else as it is."""
