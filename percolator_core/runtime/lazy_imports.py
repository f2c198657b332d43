"""Imports the public names of a package when they are first used.

Otherwise an import of the package would import everything that any of its names needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and the ``__dir__`` of a package (PEP 562).

    Args:
        package: its ``__name__``.
        homes: for each module of the package, the public names that come from it. A module of another
            package has its full name.
    """
    root = package.partition(".")[0]
    home_of = {
        name: module if module.startswith(f"{root}.") else f"{package}.{module}"
        for module, names in homes.items()
        for name in names
    }
    here = sys.modules[package].__dict__

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = here[name] = getattr(import_module(home_of[name]), name)
        return value

    return get, lambda: sorted({*here, *here["__all__"]})
