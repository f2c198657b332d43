"""A chain's folder as tasks of Airflow use it, and the project that its functions are imported from.

Functions are imported from the current directory, as on the command line. A task runs in a directory of
Airflow's choosing, so it enters the project for as long as it needs the chain's code.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """A chain's folder and its project's, both absolute; ``declared`` is the chain without its code."""

    path: Path
    project: Path
    declared: Chain

    @classmethod
    def of(cls, path: str | PathLike[str], project: str | PathLike[str] | None = None) -> ChainFolder:
        """Read the chain in the folder ``path``; imports none of its code and touches no store.

        Args:
            path: the folder with chain.yaml; a relative one is looked for from the current directory.
            project: the folder that its functions are imported from. When None, the nearest one, from the
                chain's upwards, in which the module of the first function is a file; if there is none, as
                when that one is installed, of the next function, then of the schemas; else the one above
                the chain's.

        Raises:
            ConfigurationError: with one line for each thing that is wrong with the chain's declarations, or
                ``project`` is no folder.
        """
        folder = Path(path).expanduser().absolute()
        if project is not None and not Path(project).expanduser().is_dir():
            raise ConfigurationError(f"the project {str(project)!r} is not a folder: mend the path")
        declared = Chain.load(folder, import_functions=False)
        place = Path(project).expanduser().absolute() if project is not None else _project(folder, declared)
        return cls(folder, place, declared)

    @classmethod
    def of_task(cls, task: Any, path: str, project: str | None = None) -> ChainFolder:
        """As `of`, for a task of Airflow: relative folders are looked for from the folder of its DAG file."""
        here = Path(task.dag.folder) if task.has_dag() and task.dag.fileloc else Path.cwd()
        place = None if project is None else here / Path(project).expanduser()
        return cls.of(here / Path(path).expanduser(), place)

    @property
    def name(self) -> str:
        """The chain's name."""
        return self.declared.name

    @contextmanager
    def imported(self) -> Iterator[Chain]:
        """The chain with its code; the project is the current directory meanwhile.

        Afterwards all is as before, also what was imported from the project: where several tasks share one
        process, as in ``dag.test()``, another project's modules may have the same names. In several threads
        one project is entered at a time, and the others wait.

        Raises:
            ConfigurationError: something is wrong with the chain, now that its code is known.
        """
        with in_project(self.project):
            yield Chain.load(self.path)


def folder_of_caller() -> Path:
    """The folder of the file that calls this package; the current directory if there is no such file."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    file = None if frame is None else frame.f_globals.get("__file__")
    return Path(file).absolute().parent if file else Path.cwd()


def located(here: Path, path: str | PathLike[str]) -> str:
    """A path of a DAG file in the folder ``here``, absolute."""
    asked = here / Path(path).expanduser()
    plain = os.path.normpath(asked)
    # Where the folder of the DAG files is a link, what is beside it is beside what the link leads to.
    return plain if Path(plain).exists() or not asked.exists() else str(asked.resolve())


def stamps(folder: Path) -> frozenset[tuple[str, int]]:
    """A chain's YAML files, each with when it changed (ns): whoever keeps a chain reads it again by them."""
    found = set()
    for file in folder.glob("*.y*ml"):
        # It may go while we look.
        with suppress(OSError):
            found.add((file.name, file.stat().st_mtime_ns))
    return frozenset(found)


def _project(folder: Path, chain: Chain) -> Path:
    functions = [observer.function_name for observer in chain.observers.values()]
    for name in (*functions, *chain.schemas):
        parts = name.partition(":")[0].split(".")
        for place in (folder, *folder.parents):
            module = place.joinpath(*parts)
            if module.with_name(f"{module.name}.py").is_file() or (module / "__init__.py").is_file():
                return place
    return folder.parent
