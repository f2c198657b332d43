"""``@observer``: declare an observer at its function, with the keys of the YAML file as arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

import yaml

from percolator_core.errors import ConfigurationError
from percolator_core.observers.yaml_file import YamlFile
from percolator_core.schema.predicates import ColumnExpression
from percolator_core.tables.model import Table, column_of, definition_of

_MARK: Final = "__percolator_observer__"

F = TypeVar("F", bound=Callable[[Any, Any], object])


class ObserverSettings(TypedDict, total=False):
    """The arguments of `observer`; the keys of an observer's YAML file describe them."""

    name: str
    description: str
    mode: Literal["strong", "weak"]
    reads: Any
    writes: Any
    retry: Mapping[str, Any]
    timeout: str
    settle: str
    feedback: bool
    order: Literal["oldest", "most_notified"]
    executor: Literal["hub", "threads", "processes"]
    revision: int


@dataclass(frozen=True, slots=True)
class Marked:
    """The declaration that a function carries: the data of a YAML file, with the function's file and line."""

    data: Mapping[str, Any]
    path: str
    line: int

    def file(self, function: str) -> YamlFile:
        """Return the declaration of ``module:function`` as a file."""
        node = yaml.MappingNode("tag:yaml.org,2002:map", [])
        return YamlFile(self.path, {**self.data, "function": function}, node, self.line)


def observer(*observe: Any, **settings: Unpack[ObserverSettings]) -> Callable[[F], F]:
    """Declare that a function observes columns: ``@observer("offers.price", writes=["averages.*"])``.

    The function stays as it is. A chain finds it by ``observers: MODULE`` in ``chain.yaml``, or gets it in
    `Chain.of`. Then the declaration is checked, as that of a YAML file.

    Args:
        observe: columns, as text or as ``Offer.price``. In ``reads`` and ``writes``, which are one column or
            a list, a model means all columns of its table.
        settings: the other keys of a YAML file, with the same values: ``timeout="60s"``,
            ``retry={"attempts": 3}``. ``name`` is the observer's name, by default the function's name;
            ``description`` is by default the first line of the docstring.

    Raises:
        ConfigurationError: the function has a declaration already.
    """
    data: dict[str, Any] = {"version": 1, "observe": [_named(one, "") for one in observe]}
    for key, value in settings.items():
        if key in {"reads", "writes"}:
            some = value if isinstance(value, list | tuple) else [value]
            data[key] = [_named(one, ".*") for one in some]
        else:
            data["observer" if key == "name" else key] = value

    def declare(function: F) -> F:
        if hasattr(function, _MARK):
            raise ConfigurationError(
                f"{function.__qualname__} is declared as an observer twice: give one declaration all columns"
            )
        code: Any = getattr(function, "__code__", None)
        documented = (function.__doc__ or "").strip().partition("\n")[0]
        named = {"observer": getattr(function, "__name__", ""), **data}
        if documented:
            named.setdefault("description", documented)
        path, line = ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
        setattr(function, _MARK, Marked(named, path or function.__module__, line))
        return function

    return declare


def marked(value: object) -> Marked | None:
    """Return the declaration of a function, None if it has none."""
    found = getattr(value, "__dict__", {}).get(_MARK) if callable(value) else None
    return found if isinstance(found, Marked) else None


M = TypeVar("M")


def declared_in(module: object, names: Iterable[str], mark_of: Callable[[object], M | None]) -> dict[str, M]:
    """Return the declarations of a module's own functions, without those with these ``names``.

    ``mark_of`` returns the declaration of an object, None if it has none.
    """
    own = {name: value for name, value in vars(module).items() if name not in set(names)}
    taken = {id(getattr(module, name, None)) for name in names}
    return {
        name: found
        for name, value in own.items()
        if (found := mark_of(value)) is not None
        and id(value) not in taken
        and getattr(value, "__module__", None) == getattr(module, "__name__", "")
    }


def _named(column: object, of_table: str) -> Any:
    """Return ``offers.price`` for ``Offer.price``; for a model, its table's name with ``of_table`` behind."""
    if isinstance(column, ColumnExpression):
        model, name = column_of(column)
        return f"{definition_of(model).name}.{name}"
    if isinstance(column, type) and issubclass(column, Table):
        return definition_of(column).name + of_table
    return column
