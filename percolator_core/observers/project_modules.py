"""Import modules of several projects in one process, such as a task of Airflow or a process of Spark.

Several projects may have modules of the same name: nearly every one has a package ``observers``. So the
modules of one project are removed before the next project is imported.

When Python reads the ``__path__`` of a package without ``__init__.py``, it also reads the path of the parent
package. If that path has changed, Python searches for the package again. So all modules are inspected before
the first one is removed, and before `sys.path` is restored.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_core.runtime.process import Lock

if TYPE_CHECKING:
    from os import PathLike
    from types import ModuleType

LIBRARY: Final = frozenset({"percolator_core", "percolator_airflow", "pyspark_percolator"})
"""The packages of this library; they never belong to a project, even in the library's repository."""

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, which do not belong to a project either."""

_lock: Final = Lock()
"""`in_project` holds this lock, because a process has only one current directory and one `sys.path`."""

_entered: Final[list[str]] = []
"""The entered projects, from the outermost to the innermost."""


@contextmanager
def in_project(project: str | PathLike[str]) -> Iterator[None]:
    """Make the folder ``project`` the current directory, and import from it first, during the block.

    Afterwards the current directory, `sys.path` and the loaded modules are as before:

    - Modules that the block imported from the project, or from folders that it added to `sys.path`, are
      removed.
    - Modules from other places with the name of one of the project's modules are hidden during the block.
    - Modules that were loaded from this project before the block are used by the block, and are kept.

    Only one thread is in a project at a time; other threads wait. A block may enter a second project.
    """
    given = str(Path(project).absolute())
    with _lock, chdir(given):
        paths, here = list(sys.path), str(Path.cwd())
        # Remove the outer project: its packages with __init__.py would hide this project's packages that have
        # none.
        sys.path[:] = [here, *(one for one in paths if one not in _entered)]
        _entered.append(here)
        hidden: dict[str, ModuleType] = {}
        before: dict[str, ModuleType] = {}
        try:
            importlib.invalidate_caches()
            hidden = take_out(shadowed_modules(here))
            before = dict(sys.modules)
            yield
        finally:
            # Use both paths of the project: `here` is the real path, but other code may import by a path with
            # a symbolic link.
            folders = {here, given, *(one for one in sys.path if one not in paths)}
            take_out(modules_of(folders, but=before))
            _entered.pop()
            sys.path[:] = paths
            _put_back(hidden)


def modules_of(folders: Collection[str], but: Mapping[str, ModuleType] | None = None) -> list[str]:
    """Return the names of the loaded modules from these folders; a package includes all modules below it.

    The folders are spelled as in `sys.path`. ``but`` has loaded modules to leave out. A package without
    ``__init__.py`` that also has a folder elsewhere is left out, but its modules from these folders are not.
    """
    # sys.path may contain objects of any type, which Python ignores.
    own = [folder for folder in map(str, folders) if Path(folder).name not in _INSTALLED]
    but = {} if but is None else but
    # Copy sys.modules, because other threads may import modules at the same time.
    loaded = {
        name: module
        for name, module in list(sys.modules.items())
        if but.get(name) is not module and name.partition(".")[0] not in LIBRARY
    }
    return _with_all_below(loaded, lambda name: _comes_from(name, loaded[name], own))


def shadowed_modules(project: str) -> list[str]:
    """Return the names of the loaded modules that the project would replace, and of all modules below them.

    ``project`` is the absolute path of the project's folder, as in `sys.path`.
    """
    try:
        own = {entry.name.partition(".")[0] for entry in Path(project).iterdir()}
    except OSError:
        return []  # the first import reports that
    own -= LIBRARY | sys.stdlib_module_names
    loaded = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in own}
    return _with_all_below(loaded, lambda name: _is_shadowed(name, loaded, project))


def take_out(names: Iterable[str]) -> dict[str, ModuleType]:
    """Remove modules from `sys.modules` and from the packages above them; return the removed modules."""
    taken: dict[str, ModuleType] = {}
    for name in names:
        module = sys.modules.pop(name, None)
        if module is None:
            continue
        taken[name] = module
        parent, _, leaf = name.rpartition(".")
        above = _contents(sys.modules.get(parent))
        if above.get(leaf) is module:
            del above[leaf]  # otherwise `from package import module` still finds it
    return taken


def _put_back(taken: Mapping[str, ModuleType]) -> None:
    sys.modules.update(taken)
    for name, module in taken.items():
        parent, _, leaf = name.rpartition(".")
        _contents(sys.modules.get(parent)).setdefault(leaf, module)


def _with_all_below(names: Iterable[str], chosen: Callable[[str], bool]) -> list[str]:
    """Return the chosen modules, and all modules of chosen packages; a package precedes its modules."""
    found: dict[str, None] = {}
    for name in sorted(names):
        if name.rpartition(".")[0] in found or chosen(name):
            found[name] = None
    return list(found)


def _comes_from(name: str, module: ModuleType, folders: Collection[str]) -> bool:
    places = [Path(place) for place in _places(module)]
    top = name.partition(".")[0]
    return bool(places) and all(
        any(place.parent == Path(folder) or place.is_relative_to(Path(folder, top)) for folder in folders)
        for place in places
    )


def _is_shadowed(name: str, loaded: Mapping[str, ModuleType], project: str) -> bool:
    parent = name.rpartition(".")[0]
    path = _path(loaded.get(parent)) if parent else None
    spec = None if path == [] else PathFinder.find_spec(name, path)
    if spec is None:
        return False
    found = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    here = _places(loaded[name])
    if not found or not here or not Path(found[0]).is_relative_to(project):
        return False
    return os.path.realpath(found[0]) != os.path.realpath(here[0])


def _places(module: ModuleType) -> list[str]:
    """Return the file of the module, or the folders of a package without ``__init__.py``."""
    file = _contents(module).get("__file__")
    return [file] if isinstance(file, str) else _path(module)


def _path(module: ModuleType | None) -> list[str]:
    # Python raises KeyError if the package above has been removed.
    with suppress(KeyError, TypeError):
        return [one for one in _contents(module).get("__path__", ()) if isinstance(one, str)]
    return []


def _contents(module: ModuleType | None) -> dict[str, Any]:
    # sys.modules may contain any object, also None. getattr(module, name) could import other modules.
    found: dict[str, Any] = getattr(module, "__dict__", {})
    return found
