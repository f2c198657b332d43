"""Collect the declarations of observers in Python: from the modules of a chain, or from functions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from percolator_core.observers.decorator import declared_in, marked
from percolator_core.observers.imports import ObserverFunction, check_function, import_module
from percolator_core.observers.python_file import NotRead, find_file, read_observers
from percolator_core.observers.yaml_file import Problems, YamlFile, quoted


class Read(NamedTuple):
    """A declaration that is not validated yet, and the function if it is known."""

    path: Path
    file: YamlFile
    function: ObserverFunction | None = None


def of_modules(
    modules: Iterable[str], chain_file: YamlFile, folder: Path, import_functions: bool, problems: Problems
) -> list[Read]:
    """Read the declarations of modules; add each reason why one cannot be read to ``problems``."""
    found: list[Read] = []
    for position, name in enumerate(modules):
        place = ("observers", position)
        try:
            module = import_module(name) if import_functions else None
        except ValueError as error:
            problems.add(chain_file.problem(place, str(error)), getattr(error, "cause", None))
            continue
        own = getattr(module, "__file__", None)
        file = find_file(name, folder) if own is None else Path(own)
        if file is None:
            what = (
                f"there is no module {quoted(name)} in the folders above {folder}, or on the path of Python"
            )
            problems.add(chain_file.problem(place, what))
            continue
        read = _of_module(name, module, _shown(file), folder, problems)
        if read is None:
            what = f"module {quoted(name)} has no observer; write '@observer(…)' above a function"
            problems.add(chain_file.problem(place, what))
        found += read or ()
    return found


def _of_module(
    name: str, module: ModuleType | None, file: Path, folder: Path, problems: Problems
) -> list[Read] | None:
    """Return the declarations of a module, None if it has none."""
    try:
        found = read_observers(name, file, folder)
    except NotRead as error:
        problems.add(f"{file}:{error.line}: {error}" if error.line else f"{file}: {error}")
        return []
    for unread in found.unread:
        problems.add(f"{file}:{unread.line}: {unread}")
    hidden = {} if module is None else declared_in(module, found.names)
    for function, mark in hidden.items():
        problems.add(
            f"{file}:{mark.line}: {function} is declared by code that has to run first; write the decorator "
            "above a def at the top level of the module"
        )
    if not found.names and not hidden:
        return None
    return [Read(file, one) for one in found.files]


def of_functions(observers: Iterable[object], problems: Problems) -> list[Read]:
    """Return the declarations of functions, and of all functions that modules declare."""
    found: list[Read] = []
    for one in observers:
        if isinstance(one, ModuleType):
            found += of_functions([getattr(one, name) for name in declared_in(one, ())], problems)
            continue
        mark, function = marked(one), one
        name = getattr(one, "__qualname__", repr(one))
        if mark is None:
            problems.add(f"{name} is no observer; write '@observer(…)' above the function")
            continue
        assert callable(function)
        file = mark.file(f"{getattr(one, '__module__', '')}:{getattr(one, '__name__', '')}")
        try:
            check_function(name, function)
        except ValueError as error:
            problems.add(file.problem(("function",), str(error)))
        if mark.data.get("executor") == "processes":
            what = "processes load a chain from its folder, and this chain has none; use threads"
            problems.add(file.problem(("executor",), what))
        found.append(Read(Path(mark.path), file, function))
    return found


def _shown(file: Path) -> Path:
    """Return the path relative to the current directory, if it is below it."""
    with suppress(ValueError):
        return file.absolute().relative_to(Path.cwd())
    return file
