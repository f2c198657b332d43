"""Python functions that views call by name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import expressions as exp
from sqlglot import parse_one

from percolator_core.errors import ConfigurationError
from percolator_core.schema.types import column_type
from percolator_core.tables.annotations import type_of, unwrapped
from percolator_core.views.kinds import common_kind
from percolator_core.views.problems import Report
from percolator_core.views.scalar_functions import FUNCTIONS
from percolator_core.views.typed import Rows, Typed, slots_of


@dataclass(frozen=True, slots=True)
class ViewFunction:
    """A Python function for views. It must return the same value for the same arguments, always.

    ``parameters`` are the types of the arguments and whether each may be None. If an argument is null and may
    not be None, the result is null, and the function is not called. With another ``revision``, views that
    call the function count as changed.
    """

    name: str
    function: Callable[..., Any]
    revision: int
    parameters: tuple[tuple[str, bool], ...]
    kind: str
    nullable: bool

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], revision: int = 1) -> ViewFunction:
        """Read the types from the annotations of a function.

        Raises ConfigurationError if an annotation is missing or no type of a column, or if SQL has a function
        of that name.
        """
        where = f"function {name!r} of views"
        parsed = (
            parse_one(f"SELECT {name}(1)", dialect="duckdb").expressions[0] if name.isidentifier() else None
        )
        if not isinstance(parsed, exp.Anonymous) or name.lower() in FUNCTIONS:
            raise ConfigurationError(f"{where}: SQL has a function or a word of that name: rename it")
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise ConfigurationError(f"{where}: its annotations cannot be read: {error}") from None
        parameters = inspect.signature(function).parameters
        for parameter in parameters.values():
            if parameter.kind not in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
                raise ConfigurationError(
                    f"{where}: {parameter.name!r} gets no argument: write plain parameters"
                )
        names = list(parameters)
        for one in (*names, "return"):
            if one not in hints:
                raise ConfigurationError(f"{where}: {one!r} has no type: annotate it, such as 'text: str'")
        kinds = [_kind(hints[one], f"{where}, {one}") for one in (*names, "return")]
        return cls(name, function, revision, tuple(kinds[:-1]), *kinds[-1])


def _kind(annotation: Any, where: str) -> tuple[str, bool]:
    metadata: list[Any] = []
    plain, nullable = unwrapped(annotation, metadata)
    kind, convert, restore = type_of(plain, metadata, where)
    if convert is not None or restore is not None:
        raise ConfigurationError(f"{where}: use a plain type such as str, not {plain.__name__}")
    return kind, nullable


def caller(report: Report, functions: Mapping[str, ViewFunction]) -> Callable[..., Typed | None]:
    """Return the function that compiles calls of Python functions; it returns None for another function."""
    known = {name.lower(): one for name, one in functions.items()}

    def call(node: exp.Anonymous, given: Sequence[Typed]) -> Typed | None:
        found = known.get(node.name.lower())
        if found is None:
            return None
        if len(given) != len(found.parameters):
            report.refuse(node, f"{found.name} takes {len(found.parameters)} arguments, not {len(given)}")
        parts = []
        for one, (kind, _) in zip(given, found.parameters, strict=True):
            if common_kind(one.kind, kind) != kind:
                report.refuse(node, f"{found.name} takes {kind}, not {one.kind}: write a CAST")
            parts.append(one.widened(kind))
        return _compiled(found, parts)

    return call


def _compiled(found: ViewFunction, parts: Sequence[Typed]) -> Typed:
    values = [one.value for one in parts]
    strict = [not takes_none for _, takes_none in found.parameters]
    encode = column_type(found.kind).encode
    function = found.function

    def value(rows: Rows) -> Any:
        arguments = [one(rows) for one in values]
        if any(one is None and is_strict for one, is_strict in zip(arguments, strict, strict=True)):
            return None
        try:
            made = function(*arguments)
            if made is not None:
                encode(made)  # refuses a value of another type
        except Exception as error:
            # Whatever the function raises, only this row has no result.
            raise ValueError(f"{found.name}: {type(error).__name__}: {error}") from error
        if made is None and not found.nullable:
            raise ValueError(f"{found.name} returned None: annotate it as '-> … | None'")
        return made

    skipped = any(one.nullable and is_strict for one, is_strict in zip(parts, strict, strict=True))
    return Typed(found.kind, found.nullable or skipped, value, slots_of(parts))
