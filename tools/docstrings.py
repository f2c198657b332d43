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
    """Indents the continuation lines of items in docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Indent one object's docstring. griffe calls this method for each object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = indented(obj.docstring.value)


def indented(text: str) -> str:
    """Return the docstring with the continuation lines of items indented more than the items."""
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
