"""Collect the declarations in Python: from the modules of a chain, or from functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from percolator_core.observers.decorator import declared_in, marked
from percolator_core.observers.imports import ObserverFunction, check_function, import_module
from percolator_core.observers.python_file import Declarations, NotRead, find_file, read_observers
from percolator_core.observers.yaml_file import Problems, YamlFile, quoted


class Read(NamedTuple):
    """A declaration that is not validated yet, and the function if it is known."""

    path: Path
    file: YamlFile
    function: ObserverFunction | None = None


class Kind(NamedTuple):
    """A kind of declarations in Python, which the key ``key`` of ``chain.yaml`` names by their modules.

    ``mark_of`` returns the declaration of an object, None if it has none. ``missing`` says what a module
    lacks that has no declaration.
    """

    key: str
    read: Callable[[str, Path, Path], Declarations]
    mark_of: Callable[[object], Any]
    missing: str


_OBSERVERS: Final = Kind(
    "observers", read_observers, marked, "has no observer; write '@observer(…)' above a function"
)


def of_modules(
    modules: Iterable[str], chain_file: YamlFile, folder: Path, import_functions: bool, problems: Problems
) -> list[Read]:
    """Read the observers of modules; add each reason why one cannot be read to ``problems``."""
    found = read_modules(_OBSERVERS, modules, chain_file, folder, import_functions, problems)
    return [Read(file, one) for file, one, _ in found]


def read_modules(  # noqa: PLR0917
    kind: Kind,
    modules: Iterable[str],
    chain_file: YamlFile,
    folder: Path,
    import_functions: bool,
    problems: Problems,
) -> Iterator[tuple[Path, YamlFile, ModuleType | None]]:
    """Yield the file, the data and the imported module of each declaration in modules.

    Adds each reason why one cannot be read to ``problems``.
    """
    for position, name in enumerate(modules):
        place = (kind.key, position)
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
        shown = _shown(file)
        read = _of_module(kind, name, module, shown, folder, problems)
        if read is None:
            problems.add(chain_file.problem(place, f"module {quoted(name)} {kind.missing}"))
        for one in read or ():
            yield shown, one, module


def _of_module(  # noqa: PLR0917
    kind: Kind, name: str, module: ModuleType | None, file: Path, folder: Path, problems: Problems
) -> list[YamlFile] | None:
    """Return the declarations of a module, None if it has none."""
    try:
        found = kind.read(name, file, folder)
    except NotRead as error:
        problems.add(f"{file}:{error.line}: {error}" if error.line else f"{file}: {error}")
        return []
    for unread in found.unread:
        problems.add(f"{file}:{unread.line}: {unread}")
    hidden = {} if module is None else declared_in(module, found.names, kind.mark_of)
    for function, mark in hidden.items():
        problems.add(
            f"{file}:{mark.line}: {function} is declared by code that has to run first; write the decorator "
            "above a def at the top level of the module"
        )
    return found.files if found.names or hidden else None


def of_functions(observers: Iterable[object], problems: Problems) -> list[Read]:
    """Return the declarations of functions, and of all functions that modules declare."""
    found: list[Read] = []
    for one in observers:
        if isinstance(one, ModuleType):
            found += of_functions([getattr(one, name) for name in declared_in(one, (), marked)], problems)
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
