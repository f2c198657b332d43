"""Compile scalar SQL expressions to functions of rows, with the semantics of DuckDB.

Only what has a handler here or in `scalar_functions` is compiled, and a handler lists the parts of a node
that it understands; everything else is refused with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from sqlglot import expressions as exp

from percolator_core.views.kinds import NULL, cast, common_kind, int64, read_literal
from percolator_core.views.names import identity, shortened
from percolator_core.views.operators import OPERATORS
from percolator_core.views.problems import Report
from percolator_core.views.scalar_functions import FUNCTIONS, Call
from percolator_core.views.typed import Typed, constant, is_text

Resolve = Callable[[exp.Column], Typed]
PythonCall = Callable[[exp.Anonymous, Sequence[Typed]], Typed | None]

VOLATILE: Final = frozenset(
    [
        "now",
        "random",
        "uuid",
        "gen_random_uuid",
        "current_date",
        "current_time",
        "current_timestamp",
        "today",
        "get_current_time",
        "rand",
        "currentdate",
        "currenttime",
        "currenttimestamp",
        "localtime",
        "localtimestamp",
        "setseed",
        "nextval",
        "currval",
        "transaction_timestamp",
        "uuidv4",
        "uuidv7",
        "currentdatetime",
        "currentuser",
        "currentschema",
    ]
)


class Compiler:
    """Compiles the expressions of one SELECT.

    ``resolve`` returns the expression of a column. ``known`` has expressions that are already compiled, by
    their `identity`: in a SELECT with groups these are the group's expressions and the aggregates.
    """

    def __init__(
        self,
        report: Report,
        resolve: Resolve,
        python: PythonCall,
        known: Mapping[str, Typed] | None = None,
    ) -> None:
        self.report = report
        self._resolve = resolve
        self._python = python
        self._known = known or {}

    def __call__(self, node: exp.Expr) -> Typed:
        """Return the compiled expression. Raises `Refusal`."""
        if self._known:
            found = self._known.get(identity(node))
            if found is not None:
                return found
        handler = _LEAVES.get(type(node)) or OPERATORS.get(type(node))
        if handler is None:
            return self._function(node)
        method, parts = handler
        self.only(node, parts)
        return method(self, node)

    def condition(self, node: exp.Expr) -> Typed:
        """Return the compiled expression, which has to be a bool."""
        found = self(node)
        if found.kind not in {"bool", NULL}:
            self.report.refuse(node, f"a condition is a bool, and this is {found.kind}: write a comparison")
        return found

    def only(self, node: exp.Expr, parts: str) -> None:
        """Refuse a node that has other parts than these, so that none is overlooked."""
        for name, value in node.args.items():
            if value not in (None, False, []) and name not in parts.split():
                self.report.refuse(node, f"{shortened(node)} is not supported in a view: leave out {name!r}")

    def mixed(self, node: exp.Expr, parts: Sequence[Typed]) -> list[Typed]:
        """Return the values with their common type; a text literal takes the type of the others."""
        others = [one for one in parts if one.kind and not is_text(one)]
        kind = NULL
        for one in others or parts:
            found = common_kind(kind, one.kind)
            if found is None:
                self.report.refuse(node, f"{kind} and {one.kind} do not mix: write a CAST for one of them")
            kind = found
        return [self.read(node, one, kind).widened(kind) for one in parts]

    def read(self, node: exp.Expr, one: Typed, kind: str) -> Typed:
        """Return a text literal as a constant of the kind, and everything else as it is."""
        if not is_text(one) or kind in {"str", NULL}:
            return one
        try:
            return constant(read_literal(one.literal, kind), kind)
        except ValueError as error:
            self.report.refuse(node, f"{error}: write a value of the type {kind}")

    def _function(self, node: exp.Expr) -> Typed:
        name = node.name if isinstance(node, exp.Anonymous) else identity(node).partition("(")[0].lower()
        if name.lower() in VOLATILE:
            self.report.refuse(
                node,
                f"{name}() differs from call to call, and a row is computed only when it changes: store the "
                "value in a column",
                name,
            )
        if isinstance(node, exp.Anonymous):
            made = self._python(node, [self(one) for one in node.expressions])
            if made is not None:
                return made
            found = FUNCTIONS.get(name.lower())
            parts = node.expressions
        else:
            found = FUNCTIONS.get(type(node))
            parts = [] if found is None else found.arguments(node)
        if found is None:
            self._unknown(node)
        self.only(node, found.parts)
        given = [self(one) for one in parts]
        return found.compile(Call(self.report, node, given, self))

    def _unknown(self, node: exp.Expr) -> NoReturn:
        what = f"{shortened(node)} is not supported in a view"
        if isinstance(node, exp.Window):
            mend = "only QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) <= n is, without other windows"
        elif isinstance(node, exp.AggFunc | exp.Filter | exp.IgnoreNulls):
            mend = "an aggregate stands in the SELECT list or in HAVING, and not in another aggregate"
        elif isinstance(node, exp.Query | exp.Subquery | exp.Exists):
            mend = "join the table by its primary key"
        elif isinstance(node, exp.Star):
            mend = "* stands alone in the SELECT list, or in count(*)"
        elif isinstance(node, exp.Placeholder | exp.Parameter):
            mend = "a view has no parameters: write the value"
        elif isinstance(node, exp.Anonymous):
            self.report.refuse(
                node,
                f"there is no function {node.this!r}: use one of SQL, or declare it in Python with "
                "'@view_function()', in a module that 'views' in chain.yaml names",
            )
        else:
            mend = "write it with the supported functions, or as a Python function"
        self.report.refuse(node, f"{what}: {mend}")


def _column(self: Compiler, node: Any) -> Typed:
    return self._resolve(node)


def _literal(self: Compiler, node: Any) -> Typed:
    text = node.this
    if node.is_string:
        return constant(text, "str")
    text = text.replace("_", "")
    if text.isdigit():
        try:
            return constant(int64(int(text)), "int")
        except ValueError:
            self.report.refuse(node, f"{text} does not fit into 64 bits: write {text}.0 for a decimal")
    whole, _, places = text.partition(".")
    digits = len(whole.lstrip("0")) + len(places)
    if "e" in text.lower() or digits > 38:
        return constant(float(text), "float")
    kind = f"decimal({max(digits, 1)},{len(places)})"
    convert = cast("str", kind)
    assert convert is not None
    return constant(convert(text), kind)


_LEAVES: Final[dict[type[exp.Expr], tuple[Callable[[Compiler, Any], Typed], str]]] = {
    exp.Column: (_column, "this table"),
    exp.Literal: (_literal, "this is_string"),
}
