"""The times of the files with a chain's declarations, to detect a change."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from percolator_core.observers.declaration import CHAIN_FILE, ChainDeclaration
from percolator_core.observers.explain import validate
from percolator_core.observers.python_file import find_file
from percolator_core.observers.yaml_file import Problems, read_yaml
from percolator_core.views.files import view_files

if TYPE_CHECKING:
    from pathlib import Path


def stamps(folder: Path) -> frozenset[tuple[str, int]]:
    """Return the files of a chain's declarations and their modification times (ns).

    These are its YAML files, its views, and the modules with its observers and functions of views; not the
    modules that those import.
    """
    found = set()
    files = [*folder.glob("*.y*ml"), *view_files(folder)]
    with suppress(OSError):
        files += _modules_of(folder, (folder / CHAIN_FILE).stat().st_mtime_ns)
    for file in files:
        # Another process may remove the file at this moment.
        with suppress(OSError):
            found.add((file.name if file.parent == folder else str(file), file.stat().st_mtime_ns))
    return frozenset(found)


@lru_cache(maxsize=256)
def _modules_of(folder: Path, _stamp: int) -> tuple[Path, ...]:
    """Return the files of the modules that ``chain.yaml`` names under ``observers`` and ``views``."""
    problems = Problems()
    file = read_yaml(folder / CHAIN_FILE, problems)
    chain = None if file is None else validate(ChainDeclaration, file, problems)
    names = () if chain is None else (*chain.observers, *chain.views)
    return tuple(place for name in names if (place := find_file(name, folder)) is not None)
