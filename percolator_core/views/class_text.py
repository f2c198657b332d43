"""The SQL of a `View` class: the text that a file with the same view would have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from sqlglot.dialects.duckdb import DuckDB

from percolator_core.errors import ConfigurationError
from percolator_core.schema.predicates import (
    ColumnExpression,
    Comparison,
    In,
    IsNull,
    Joined,
    Not,
    Predicate,
)
from percolator_core.schema.types import shown
from percolator_core.tables.model import Table, definition_of
from percolator_core.views.class_functions import Aggregate, SqlExpression

CLAUSES: Final = ("join", "left_join", "where")
"""The attributes of a `View` class that are no columns."""

_WORDS: Final = {phrase.partition(" ")[0] for phrase in DuckDB.Tokenizer.KEYWORDS}
"""Names that are a word of SQL."""

Models = dict[str, type[Table]]
"""The models that a view reads, by table."""


@dataclass
class ClassText:
    """The SQL, and for each of its lines the attribute of the class that it comes from, or an empty text."""

    lines: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    models: Models = field(default_factory=dict)

    @property
    def sql(self) -> str:
        """The whole text."""
        return "\n".join(self.lines) + "\n"

    def add(self, line: str, attribute: str = "") -> None:
        """Add text. It begins on a new line."""
        for one in line.split("\n"):
            self.lines.append(one)
            self.attributes.append(attribute)


def class_text(name: str, columns: Mapping[str, Any], clauses: Mapping[str, Any]) -> ClassText:
    """Return the SQL of a view.

    Raises ConfigurationError, which names the attribute, if an attribute cannot be a part of a view.
    """
    writer = _Writer(columns, clauses)
    made = ClassText(models=writer.models)
    made.add(f"CREATE VIEW {_name(name)} AS")
    made.add("SELECT")
    groups = []
    texts = {attribute: writer.of(attribute, value) for attribute, value in columns.items()}
    for number, (attribute, text) in enumerate(texts.items()):
        if not isinstance(columns[attribute], Aggregate):
            # A number, because the name may be that of a column of the table as well.
            groups.append((text if text == _name(attribute) else str(number + 1), attribute))
        alias = "" if text == _name(attribute) else f" AS {_name(attribute)}"
        made.add(f"  {text}{alias}{',' if number < len(texts) - 1 else ''}", attribute)
    source, joins = writer.joins()
    made.add(f"FROM {_name(source)}")
    for line, attribute in joins:
        made.add(line, attribute)
    if "where" in clauses:
        made.add(f"WHERE {writer.of('where', clauses['where'])}", "where")
    if len(groups) < len(columns):
        for number, (text, attribute) in enumerate(groups):
            comma = "," if number < len(groups) - 1 else ""
            made.add(f"{'  ' if number else 'GROUP BY '}{text}{comma}", attribute)
    return made


@dataclass(frozen=True, slots=True)
class _Join:
    attribute: str
    table: str
    needs: frozenset[str]
    condition: Predicate


class _Writer:
    def __init__(self, columns: Mapping[str, Any], clauses: Mapping[str, Any]) -> None:
        self.models: Models = {}
        for attribute, value in (*columns.items(), *clauses.items()):
            for model in _models(value):
                try:
                    known = self.models.setdefault(definition_of(model).name, model)
                except (ConfigurationError, TypeError) as error:
                    raise _refused(attribute, str(error)) from None
                if known is not model:
                    raise _refused(attribute, f"{known!r} and {model!r} have one table: use one model")
        if not columns or not self.models:
            raise ConfigurationError("has no column of a model: write one, such as name = Product.name")
        self._joins = [
            _join(attribute, one)
            for attribute in ("join", "left_join")
            for one in _listed(clauses.get(attribute, ()))
        ]

    def of(self, attribute: str, value: Any) -> str:
        """Return the SQL of an attribute's value."""
        try:
            return self._text(value)
        except (TypeError, ValueError) as error:
            raise _refused(attribute, str(error)) from None

    def joins(self) -> tuple[str, list[tuple[str, str]]]:
        """Return the first table, and a line for each joined one with its attribute."""
        joined = [one.table for one in self._joins]
        [first, *more] = [name for name in self.models if name not in joined] or [""]
        if not first or more or len(set(joined)) < len(joined):
            tables = ", ".join(sorted(self.models))
            raise ConfigurationError(
                f"reads {tables}: join all but one of them, each once and by its key on the right side, such "
                "as join = Order.customer == Customer.id"
            )
        lines, known, pending = [], {first}, list(self._joins)
        while pending:
            ready = next((one for one in pending if one.needs <= known), None)
            if ready is None:
                raise _refused(pending[0].attribute, f"no join leads from {first} to {pending[0].table}")
            pending.remove(ready)
            known.add(ready.table)
            word = "JOIN" if ready.attribute == "join" else "LEFT JOIN"
            condition = self.of(ready.attribute, ready.condition)
            lines.append((f"{word} {_name(ready.table)} ON {condition}", ready.attribute))
        return first, lines

    def _text(self, value: Any) -> str:
        match value:
            case ColumnExpression():
                return self._column(value.model, value.name)
            case SqlExpression():
                return value.text
            case Aggregate():
                argument = "*" if value.operand is None else self._text(value.operand)
                text = f"{value.function}({'DISTINCT ' if value.distinct else ''}{argument})"
                return text if value.where is None else f"{text} FILTER (WHERE {self._text(value.where)})"
            case Predicate():
                return self._predicate(value)
        raise TypeError(
            f"{shown(value)} is no column: give a column of a model, an aggregate such as count(), or sql(…)"
        )

    def _predicate(self, one: Predicate) -> str:
        match one:
            case Joined():
                return f" {one.how.upper()} ".join(self._part(part) for part in one.parts)
            case Not(part=IsNull() as null):
                return f"{self._column(null.model, null.column)} IS NOT NULL"
            case Not():
                return f"NOT {self._part(one.part)}"
            case IsNull():
                return f"{self._column(one.model, one.column)} IS NULL"
            case In():
                values = ", ".join(map(self._value, one.values))
                return f"{self._column(one.model, one.column)} IN ({values})" if values else "FALSE"
            case Comparison(op="^="):
                return f"starts_with({self._column(one.model, one.column)}, {self._value(one.value)})"
            case Comparison():
                op = "<>" if one.op == "!=" else one.op
                return f"{self._column(one.model, one.column)} {op} {self._value(one.value)}"
        raise TypeError(f"{one!r} is no predicate of a view")

    def _part(self, one: Predicate) -> str:
        text = self._predicate(one)
        return f"({text})" if isinstance(one, Joined | Not) else text

    def _column(self, model: type | None, name: str) -> str:
        if not (isinstance(model, type) and issubclass(model, Table)):
            raise TypeError(f"{name}: a column of a model is needed, such as Product.{name}")
        definition = definition_of(model)
        return _name(name) if len(self.models) == 1 else f"{_name(definition.name)}.{_name(name)}"

    def _value(self, value: Any) -> str:
        if isinstance(value, SqlExpression):
            return f"({value.text})"
        if isinstance(value, ColumnExpression):
            return self._column(value.model, value.name)
        return _literal(value.value if isinstance(value, Enum) else value)


def _models(value: Any) -> Iterator[type]:
    """Yield the models of all columns in a value."""
    model = getattr(value, "model", None)
    if isinstance(model, type):
        yield model
    for part in _parts(value):
        yield from _models(part)


def _parts(value: Any) -> Sequence[Any]:
    match value:
        case list() | tuple():
            return value
        case Joined():
            return value.parts
        case Not():
            return (value.part,)
        case Comparison():
            return (value.value,)
        case Aggregate():
            return (value.operand, value.where)
    return ()


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _join(attribute: str, condition: Any) -> _Join:
    """Return a join: the joined table is that of the columns on the right side."""
    parts = condition.parts if isinstance(condition, Joined) and condition.how == "and" else (condition,)
    right = {
        definition_of(model).name
        for part in parts
        if isinstance(part, Comparison) and part.op == "=" and isinstance(part.value, ColumnExpression)
        for model in _models(part.value)
    }
    if len(right) != 1:
        raise _refused(
            attribute, "write the joined model's key on the right side, such as Order.customer == Customer.id"
        )
    [table] = right
    needs = frozenset(definition_of(one).name for one in _models(condition)) - {table}
    return _Join(attribute, table, needs, condition)


def _refused(attribute: str, what: str) -> ConfigurationError:
    return ConfigurationError(f".{attribute}: {what}")


def _name(name: str) -> str:
    """Return a name as SQL, in quotes only where it needs them."""
    if name.isidentifier() and name.isascii() and name.upper() not in _WORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literal(value: Any) -> str:
    """Return a value as SQL. A text takes the type of what it is compared with. Raises TypeError."""
    match value:
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}"
        case float():
            return repr(value) if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"
        case str():
            return _quoted(value)
        case bytes():
            hexadecimal = "".join(rf"\x{one:02X}" for one in value)
            return f"CAST('{hexadecimal}' AS BLOB)"
        case datetime() if value.tzinfo is None:
            raise TypeError(f"{value} has no time zone: give an aware datetime")
        case datetime() | date() | UUID():
            return _quoted(str(value))
    raise TypeError(f"{shown(value)} cannot be compared with a column of a view")
