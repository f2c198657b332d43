"""The modules of a project in a process that outlives it: a task of Airflow, a Python process of Spark.

A process of the command line belongs to one project for its whole life, and needs none of this. Where one
process runs the code of several projects, one after another, these may have modules of the same name: nearly
every project has a package ``observers``. So the modules of one are removed before the next is imported.

A package may do without ``__init__.py``. Whenever the ``__path__`` of such a package is read, Python asks the
package above it for its own path, and searches again when that has changed. So all modules are looked at
before the first one is removed, and before `sys.path` is restored.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from os import PathLike
    from types import ModuleType

LIBRARY: Final = frozenset({"percolator_core", "percolator_airflow", "pyspark_percolator"})
"""The packages of this library: never a project's own, not even in the library's repository."""

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of these names hold installed packages, which no project owns either."""

_lock = threading.RLock()
"""Held while a project is entered: the current directory and `sys.path` belong to the whole process."""

_entered: Final[list[str]] = []
"""The projects whose blocks have not ended, each within the one before."""


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - a thread that held it is not in the new process
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def in_project(project: str | PathLike[str]) -> Iterator[None]:
    """Make the folder ``project`` the current directory, and import from it first, until the block ends.

    Afterwards the current directory, `sys.path` and the loaded modules are as before. Modules that the block
    has imported from the project, or from folders that it added to `sys.path`, are removed. Modules that were
    loaded before from elsewhere, and have the name of one of the project's, are hidden within the block.
    Modules that were loaded before from this very project are used as they are, and stay.

    Of several threads one is in a project at a time; the others wait. A block may enter a second project.
    """
    given = str(Path(project).absolute())
    with _lock, chdir(given):
        paths, here = list(sys.path), str(Path.cwd())
        # Without the outer project: its packages with __init__.py would be found before those here without.
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
            # The current directory is known by its real name; other code may know the project by a link.
            folders = {here, given, *(one for one in sys.path if one not in paths)}
            take_out(modules_of(folders, but=before))
            _entered.pop()
            sys.path[:] = paths
            _put_back(hidden)


def modules_of(folders: Collection[str], but: Mapping[str, ModuleType] | None = None) -> list[str]:
    """The names of the loaded modules that were imported from these folders, and of all below them.

    A package without ``__init__.py`` that has a part elsewhere is not among them; its modules from here are.

    Args:
        folders: as they stand, or stood, in `sys.path`. Folders of installed packages do not count.
        but: modules by name that are left out.
    """
    # By str: anything may stand in sys.path, and Python ignores it.
    own = [folder for folder in map(str, folders) if Path(folder).name not in _INSTALLED]
    but = {} if but is None else but
    # A copy: other threads may import meanwhile.
    loaded = {
        name: module
        for name, module in list(sys.modules.items())
        if but.get(name) is not module and name.partition(".")[0] not in LIBRARY
    }
    return _with_all_below(loaded, lambda name: _comes_from(name, loaded[name], own))


def shadowed_modules(project: str) -> list[str]:
    """The names of the loaded modules in whose place Python would now find one of the project, and all below.

    Args:
        project: the project's folder, absolute, as it stands in `sys.path`.
    """
    try:
        own = {entry.name.partition(".")[0] for entry in Path(project).iterdir()}
    except OSError:
        return []  # the first import says so
    own -= LIBRARY | sys.stdlib_module_names
    loaded = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in own}
    return _with_all_below(loaded, lambda name: _is_shadowed(name, loaded, project))


def take_out(names: Iterable[str]) -> dict[str, ModuleType]:
    """Remove modules from `sys.modules`, and from the packages above them; returns those that were there."""
    taken: dict[str, ModuleType] = {}
    for name in names:
        module = sys.modules.pop(name, None)
        if module is None:
            continue
        taken[name] = module
        parent, _, leaf = name.rpartition(".")
        above = _contents(sys.modules.get(parent))
        if above.get(leaf) is module:
            del above[leaf]  # else `from package import module` would still find it
    return taken


def _put_back(taken: Mapping[str, ModuleType]) -> None:
    sys.modules.update(taken)
    for name, module in taken.items():
        parent, _, leaf = name.rpartition(".")
        _contents(sys.modules.get(parent)).setdefault(leaf, module)


def _with_all_below(names: Iterable[str], chosen: Callable[[str], bool]) -> list[str]:
    """The chosen ones, and every module of a chosen package; a package stands before its modules."""
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
    """The file of the module; of a package without ``__init__.py`` its folders."""
    file = _contents(module).get("__file__")
    return [file] if isinstance(file, str) else _path(module)


def _path(module: ModuleType | None) -> list[str]:
    # If the package above has been removed already, Python raises KeyError.
    with suppress(KeyError, TypeError):
        return [one for one in _contents(module).get("__path__", ()) if isinstance(one, str)]
    return []


def _contents(module: ModuleType | None) -> dict[str, Any]:
    # Anything may stand in sys.modules, also None. By getattr(module, name) some would import others.
    found: dict[str, Any] = getattr(module, "__dict__", {})
    return found
