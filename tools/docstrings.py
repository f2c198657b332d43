# ruff: noqa: INP001
"""Make our docstrings readable for griffe, which makes the pages of the API from them.

In our sections ``Raises:`` and ``Args:``, the continuation lines of an item may have the indentation of the
item. griffe requires a deeper indentation.
"""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_SECTION: Final = re.compile(r"(Args|Raises|Returns|Yields):")
_ITEM: Final = re.compile(r"    \*{0,2}[A-Za-z_][\w.]*(, \*{0,2}[A-Za-z_][\w.]*)*: ")


class Continuations(griffe.Extension):
    """Indents the further lines of items in docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = indented(obj.docstring.value)


def indented(text: str) -> str:
    """The docstring with the further lines of items indented below them."""
    lines, section = [], ""
    for line in text.splitlines():
        found = _SECTION.fullmatch(line)
        if found is not None:
            section = found[1]
        elif line and not line.startswith(" "):
            section = ""
        elif section in {"Args", "Raises"} and re.match(r"    \S", line) and not _ITEM.match(line):
            line = f"    {line}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines)
