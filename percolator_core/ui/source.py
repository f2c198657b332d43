"""The source of an observer's function, found by its name; no code of the project is imported."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from percolator_core.errors import ConfigurationError

LARGEST: Final = 1_000_000
"""A larger file is not read."""


@dataclass(frozen=True, slots=True)
class Source:
    """A function: its file, the number of its first line, and its lines."""

    file: Path
    line: int
    text: str


def find_source(name: str, folder: Path) -> Source:
    """Return the source of the function ``module:function``.

    The module is searched in the chain's folder and in all folders above it, because the project is one of
    them; then in the current folder and in the folders of `sys.path`.

    Raises:
        ConfigurationError: there is no such file on this machine, or the file has no such function.
    """
    module, _, function = name.partition(":")
    parts = module.split(".")
    places = [folder, *folder.parents, Path.cwd(), *(Path(one) for one in sys.path if one)]
    names = (Path(*parts[:-1], f"{parts[-1]}.py"), Path(*parts, "__init__.py"))
    files = (place / one for place in places for one in names)
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        raise ConfigurationError(
            f"the module {module} is not on the machine that serves the pages: put the project there"
        )
    if file.stat().st_size > LARGEST:
        raise ConfigurationError(f"{file} is too large for this page: open it in an editor")
    try:
        text = file.read_text(encoding="utf-8")
        node = next(
            one
            for one in ast.parse(text).body
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == function
        )
    except (OSError, ValueError, SyntaxError, StopIteration):
        raise ConfigurationError(f"{file} has no function {function!r} that can be shown") from None
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return Source(file, first, "\n".join(text.splitlines()[first - 1 : node.end_lineno]))
