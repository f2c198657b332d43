"""Import the code of a project: the functions of its observers, and the models of its typed tables.

Modules are searched in the current directory first, as many Python command-line tools do. So the commands of
a project have to run in its top folder.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PydanticUserError

from percolator_core.errors import ConfigurationError
from percolator_core.observers.yaml_file import did_you_mean, quoted
from percolator_core.tables.model import Table, definition_of, is_table

if TYPE_CHECKING:
    from types import ModuleType

ObserverFunction = Callable[[Any, Any], object]
"""Called as ``function(transaction, cell)``; the return value is ignored."""

Models = dict[str, type[Table]]
"""Models by table name."""


class BrokenModule(ValueError):
    """A module of the project exists, but its import fails.

    ``cause`` is the error and the line that raised it: the same for all modules that import this one.
    """

    def __init__(self, module: str, error: BaseException, why: str) -> None:
        super().__init__(f"importing {quoted(module)} failed: {why}")
        lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        self.cause = (type(error).__name__, str(error), lines[-1:])


def import_function(name: str) -> ObserverFunction:
    """Import ``module:function`` as `import_module` does.

    Raises ValueError if there is no such function, or it cannot be called with a transaction and a cell.
    """
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name)
    try:
        function = getattr(module, attribute)
    except AttributeError:
        functions = [
            key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
        ]
        mend = did_you_mean(attribute, functions) or "; define it as 'def process(t, cell)', or fix the name"
        raise ValueError(f"module {quoted(module_name)} has no {quoted(attribute)}{mend}") from None
    check_function(name, function)
    return function  # type: ignore[no-any-return]  # an attribute of a module is Any


def not_imported(name: str) -> ObserverFunction:
    """Return the function of an observer of a chain that was loaded without code: it raises RuntimeError."""

    def function(_transaction: Any, _cell: Any) -> object:
        raise RuntimeError(f"{name} was not imported: load the chain with import_functions=True to run it")

    return function


def import_models(name: str) -> Models:
    """Return the models of tables in a module, also those that it imports.

    Raises ValueError if the module cannot be imported or has no table, two of its models have the same table,
    or a model is invalid.
    """
    module = import_module(name)
    found: Models = {}
    for model in [one for one in vars(module).values() if isinstance(one, type) and is_table(one)]:
        try:
            table = definition_of(model).name
        except (ConfigurationError, PydanticUserError, NameError) as error:
            # The first line of a pydantic error states the problem.
            why = str(error).partition("\n")[0]
            raise ValueError(f"{model.__name__} of {quoted(name)}: {why}; fix that model") from None
        if "." in table:
            raise ValueError(
                f"{model.__name__} of {quoted(name)} is the table {quoted(table)}, which has a dot, so no "
                f"observer could name it; rename it, for instance to {quoted(table.replace('.', '_'))}"
            )
        first = found.setdefault(table, model)
        if first is not model:
            raise ValueError(
                f"{first.__name__} and {model.__name__} of {quoted(name)} are both the table "
                f"{quoted(table)}; give one of them another name"
            )
    if not found:
        raise ValueError(
            f"module {quoted(name)} has no table; write one, such as "
            "'class Document(Table, name=\"documents\")', or import it there"
        )
    return found


def import_module(name: str) -> ModuleType:
    """Import a module of the project; put the current directory on ``sys.path`` if it is not on it.

    Raises ValueError if the module does not exist, BrokenModule if its import fails.
    """
    _search_current_directory()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            mend = _hidden_by(missing) or _nearest_module(missing)
            if not mend:
                mend = f"; modules are searched from the current directory, {Path.cwd()}: "
                mend += "run the command in the project's top folder"
            raise ValueError(f"there is no module {quoted(missing)}{mend}") from None
        raise BrokenModule(
            name,
            error,
            f"there is no module {quoted(missing)}; install it, or, if it belongs to the project, run the "
            f"command in the project's top folder: the current directory is {Path.cwd()}",
        ) from None
    except (Exception, SystemExit) as error:
        raise BrokenModule(name, error, f"{type(error).__name__}: {error}; fix that module") from error


def _search_current_directory() -> None:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


def _hidden_by(missing: str) -> str:
    """Return a hint if an imported package hides the project's folder that has the module."""
    place = Path(*missing.split("."))
    if not (place.is_dir() or place.with_name(f"{place.name}.py").is_file()):
        return ""
    for folder in reversed(place.parents[:-1]):
        other = getattr(sys.modules.get(".".join(folder.parts)), "__file__", None)
        if other is not None and Path(other).parent.resolve() != folder.resolve():
            first = "has no __init__.py: add one, an empty file is enough"
            if (folder / "__init__.py").exists():
                first = "did not exist at the time of that import: start a new process"
            return f"; {other} hides the folder {folder.resolve()}, which {first}"
    return ""


def _nearest_module(missing: str) -> str:
    """Return a hint at a module with a similar name."""
    package, _, last = missing.rpartition(".")
    if not package:
        return did_you_mean(last, [found.name for found in pkgutil.iter_modules([str(Path.cwd())])])
    path = getattr(sys.modules.get(package), "__path__", None)
    if path is None:
        return f"; {quoted(package)} is a module, not a package"
    siblings = [f"{package}.{found.name}" for found in pkgutil.iter_modules(path)]
    return did_you_mean(missing, siblings)


def check_function(name: str, function: object) -> None:
    """Raise ValueError unless this is a function of two arguments, not asynchronous and no generator."""
    if not callable(function):
        kind = type(function).__name__
        raise ValueError(f"{quoted(name)} is of type {kind}, not a function; name a 'def process(t, cell)'")
    if inspect.isclass(function):
        raise ValueError(f"{quoted(name)} is a class; name a function, 'def process(t, cell)'")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(
            f"{quoted(name)} is asynchronous; observers are plain functions, write 'def', not 'async def'"
        )
    if inspect.isgeneratorfunction(function):
        raise ValueError(f"{quoted(name)} is a generator and would not run; remove its 'yield'")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions in C have no signature; a wrong one fails when it is called
    try:
        signature.bind(None, None)
    except TypeError:
        parameters = f"({', '.join(signature.parameters)})" if signature.parameters else "no parameters"
        raise ValueError(
            f"{quoted(name)} takes {parameters}; it is called with a transaction and a cell: "
            f"write 'def {name.rpartition(':')[2]}(t, cell)'"
        ) from None
