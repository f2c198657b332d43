"""A chain's folder, and the project from which its functions are imported.

Functions are imported from the current directory, as on the command line. Airflow chooses the current
directory of a task, so the task changes to the project while it uses the chain's code.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain
from percolator_core.observers.project_modules import in_project

if TYPE_CHECKING:
    from os import PathLike

_PACKAGE: Final = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class ChainFolder:
    """The absolute paths of a chain's folder and its project; ``declared`` is the chain without its code."""

    path: Path
    project: Path
    declared: Chain

    @classmethod
    def of(cls, path: str | PathLike[str], project: str | PathLike[str] | None = None) -> ChainFolder:
        """Read the chain in the folder ``path``, without its code and without a store.

        Args:
            path: the folder with chain.yaml, relative to the current directory.
            project: the folder from which the functions are imported. With None, the chain's folder and its
                parents are searched for the module of the first function. If no folder has that module, for
                example because it is installed, the search continues with the next functions, then with the
                schemas. If nothing is found, the project is the parent of the chain's folder.

        Raises:
            ConfigurationError: the chain's declarations are invalid (one line for each mistake), or
                ``project`` is not a folder.
        """
        folder = Path(path).expanduser().absolute()
        if project is not None and not Path(project).expanduser().is_dir():
            raise ConfigurationError(f"the project {str(project)!r} is not a folder: correct the path")
        declared = Chain.load(folder, import_functions=False)
        place = Path(project).expanduser().absolute() if project is not None else _project(folder, declared)
        return cls(folder, place, declared)

    @classmethod
    def of_task(cls, task: Any, path: str, project: str | None = None) -> ChainFolder:
        """Read the chain of a task (see `of`); folders are relative to the folder of its DAG file."""
        here = Path(task.dag.folder) if task.has_dag() and task.dag.fileloc else Path.cwd()
        place = None if project is None else here / Path(project).expanduser()
        return cls.of(here / Path(path).expanduser(), place)

    @property
    def name(self) -> str:
        """The chain's name."""
        return self.declared.name

    @contextmanager
    def imported(self) -> Iterator[Chain]:
        """Load the chain with its code, inside `in_project`, because other tasks may share the process.

        Raises:
            ConfigurationError: the chain does not match its code.
        """
        with in_project(self.project):
            yield Chain.load(self.path)


def folder_of_caller() -> Path:
    """Return the folder of the file that calls this package; without such a file, the current directory."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    file = None if frame is None else frame.f_globals.get("__file__")
    return Path(file).absolute().parent if file else Path.cwd()


def located(here: Path, path: str | PathLike[str]) -> str:
    """Return an absolute path for a path in a DAG file; ``here`` is the file's folder."""
    asked = here / Path(path).expanduser()
    plain = os.path.normpath(asked)
    # The folder of the DAG files may be a symbolic link: then a path with .. starts at the link's target.
    return plain if Path(plain).exists() or not asked.exists() else str(asked.resolve())


def _project(folder: Path, chain: Chain) -> Path:
    functions = [observer.function_name for observer in chain.observers.values()]
    for name in (*functions, *chain.schemas):
        parts = name.partition(":")[0].split(".")
        for place in (folder, *folder.parents):
            module = place.joinpath(*parts)
            if module.with_name(f"{module.name}.py").is_file() or (module / "__init__.py").is_file():
                return place
    return folder.parent
