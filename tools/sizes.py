# ruff: noqa: INP001
"""Fail if a module has over 400 lines, or a function over 50.

``tools/lint.sh`` checks the packages with it; ``sizes.py FOLDER...`` checks other folders. A function's lines
include its signature and nested functions, but not its docstring, which describes each argument and error.
Tests are not measured.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MODULE_LINES: Final = 400
FUNCTION_LINES: Final = 50
PACKAGES: Final = (
    "percolator_core",
    "percolator_bench",
    "percolator_torture",
    "plugins",
    "observers",
    "schemas",
    "pyspark_percolator",
    "tools",
)
ROOT: Final = Path(__file__).resolve().parents[1]


def too_long(root: Path, folders: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, int]]:
    """Yield each module or function over its limit, as ``path`` or ``path:function``, with its length.

    A Lua script counts as a module.
    """
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".py", ".lua"}:
                continue
            name = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8")
            if (lines := len(text.splitlines())) > MODULE_LINES:
                yield name, lines
            if path.suffix == ".py":
                for function, lines in _functions(ast.parse(text)):
                    if lines > FUNCTION_LINES:
                        yield f"{name}:{function}", lines


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node) else 0)
            yield from _functions(node, f"{name}.")
        else:
            yield from _functions(node, inside)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main(folders: list[str]) -> int:
    """Print each module or function over its limit; return 1 if there is any."""
    found = list(too_long(ROOT, tuple(folders) or PACKAGES))
    for name, lines in found:
        limit = FUNCTION_LINES if ":" in name else MODULE_LINES
        print(f"{name} has {lines} lines: split it, {limit} are the limit", file=sys.stderr)  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
