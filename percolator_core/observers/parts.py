"""Check the ready-made parts, such as counters and queues, that the functions of observers use.

A part declares the tables and columns that each of its methods needs. `uses` finds the calls in a function's
compiled code, so no observer has to run. It finds ``hits.add(…)`` if ``hits`` is a global variable of the
function's module, or of a module that it imports, also in the functions that it calls in its own project. A
call on any other object, such as an argument, is not found, and fails when it runs.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.observers.yaml_file import quoted
from percolator_core.tables.model import Table, definition_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from percolator_core.observers.declaration import ObserverDeclaration
    from percolator_core.observers.observer import Column
    from percolator_core.schema.definitions import TableDefinition

_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_BETWEEN: Final = frozenset({"CACHE", "PUSH_NULL", "PRECALL", "NOP", "EXTENDED_ARG"})


@dataclass(frozen=True, slots=True)
class Need:
    """The requirements of a part's method.

    ``raw`` are raw tables with the notify-only columns that they must have, ``models`` typed tables of the
    chain. The observer that calls the method observes one of the columns ``observes``, if there are any; with
    ``observes_any``, it observes a column of this table. It declares the ``writes`` that an observer
    observes, and does not declare a write to the table ``unwritten``.
    """

    raw: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    models: tuple[type[Table], ...] = ()
    observes: tuple[Column, ...] = ()
    observes_any: str = ""
    writes: tuple[Column, ...] = ()
    unwritten: str = ""

    def __add__(self, other: Need) -> Need:
        """Return the requirements of both; ``observes`` are those of one of them."""
        return Need(
            {**self.raw, **other.raw},
            self.models + other.models,
            self.observes or other.observes,
            self.observes_any or other.observes_any,
            self.writes + other.writes,
            self.unwritten or other.unwritten,
        )


class Part:
    """A ready-made part of a chain."""

    __slots__ = ()

    def _needs(self, method: str) -> Need:
        """Return the requirements of a method."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Known:
    """The tables and the observed columns of a chain."""

    tables: Mapping[str, TableDefinition]
    models: Mapping[str, type[Table]]
    observed: Mapping[Column, Collection[str]]


def uses(function: object) -> dict[str, Need]:
    """Return the calls of methods of parts in a function, such as ``hits.add``, with their requirements."""
    found: dict[str, Need] = {}
    seen: set[CodeType] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        one = getattr(one, "__wrapped__", getattr(one, "__func__", one))
        if not isinstance(one, FunctionType) or one.__code__ in seen:
            continue
        for code in _codes(one.__code__):
            seen.add(code)
            for name, value in _values(one, code):
                if isinstance(value, FunctionType) and _project(value) == _project(one):
                    waiting.append(value)
                elif isinstance(value, _Call):
                    found[f"{name}.{value.method}"] = value.part._needs(value.method)  # noqa: SLF001 - for this module
    return found


def problems_of(
    observer: ObserverDeclaration, function: object, known: Known
) -> Iterator[tuple[tuple[str], str]]:
    """Yield a field of the declaration and a message for each requirement that is not met."""
    said: set[str] = set()
    for call, need in uses(function).items():
        for place, what in (*_of_tables(need, known), *_of_observer(observer, need, known)):
            if what not in said:
                said.add(what)
                yield (place,), f"{call}: {what}"


def _of_tables(need: Need, known: Known) -> Iterator[tuple[str, str]]:
    for table, notify_only in need.raw.items():
        definition = known.tables.get(table)
        if definition is None:
            columns = f", with notify_only: [{', '.join(notify_only)}]" if notify_only else ""
            yield "function", f"the chain has no table {quoted(table)}; declare it under 'tables'{columns}"
            continue
        if definition.is_typed:
            model = known.models[table].__name__
            yield "function", f"needs a raw table, and {quoted(table)} is the typed table {model}"
        for column in notify_only:
            if column not in definition.notify_only:
                what = f"table {quoted(table)} lacks the notify-only column {quoted(column)}; add it"
                yield "function", what
    for wanted in need.models:
        if known.models.get(definition_of(wanted).name) is not wanted:
            yield (
                "function",
                f"{wanted.__name__} is no table of the chain; import it in a module of 'schemas'",
            )


def _of_observer(observer: ObserverDeclaration, need: Need, known: Known) -> Iterator[tuple[str, str]]:
    if need.observes and not set(need.observes) & set(observer.observe):
        yield "observe", f"is for an observer of {' or '.join(map('.'.join, need.observes))}"
    if need.observes_any and need.observes_any not in {table for table, _ in observer.observe}:
        yield "observe", f"is for an observer of columns of {need.observes_any}"
    if need.unwritten and need.unwritten in {table for table, _ in observer.writes}:
        what = f"would export values of {need.unwritten} before their commit; write them in another observer"
        yield "writes", what
    for table, column in need.writes:
        watchers = known.observed.get((table, column))
        definition = known.tables.get(table)
        declared = {(table, column)}
        if definition is not None and column not in definition.notify_only:
            declared.add((table, EVERY_COLUMN))
        if watchers and not declared & set(observer.writes):
            yield "writes", f"writes {table}.{column}, which {', '.join(watchers)} observes; declare it"


@dataclass(frozen=True, slots=True)
class _Call:
    part: Part
    method: str


def _values(function: FunctionType, code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yield the global objects that the code uses, and its calls of methods of parts, with their names."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    name, value = "", None
    for one in dis.get_instructions(code):
        if one.opname in _BETWEEN:
            continue
        if one.opname in _LOADS:
            name = str(one.argval)
            value = function.__globals__.get(name)
            if name in cells:
                value = _content(cells[name])
        elif one.opname in _ATTRIBUTES and isinstance(value, ModuleType):
            name, value = str(one.argval), vars(value).get(str(one.argval))
        elif one.opname in _ATTRIBUTES and isinstance(value, Part):
            value = _Call(value, str(one.argval))
        else:
            value = None
        if value is not None:
            yield name, value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # the variable has no value yet


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _project(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]
