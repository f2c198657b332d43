"""The source of an observer's function, found by its name; no code of the project is imported."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_core.observers.python_file import find_file

LARGEST: Final = 1_000_000
"""A larger file is not read."""


@dataclass(frozen=True, slots=True)
class Source:
    """A function: its file, the number of its first line, and its lines."""

    file: Path
    line: int
    text: str


def find_source(name: str, folder: Path) -> Source:
    """Return the source of the function ``module:function``; `find_file` finds the module.

    Raises:
        ConfigurationError: there is no such file on this machine, or the file has no such function.
    """
    module, _, function = name.partition(":")
    file = find_file(module, folder)
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
