"""Conditions on cells: a name, an operator and a value, such as ``revision<2``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

ROW: Final = "row"
REVISION: Final = "revision"

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "^=": lambda found, wanted: found.startswith(wanted),
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
"""The operators of conditions; ``^=`` means: starts with."""

_CONDITION: Final = re.compile(
    rf"\s*(.+?)\s*({'|'.join(map(re.escape, OPERATORS))})\s*(.*)", re.DOTALL | re.ASCII
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a cell.

    ``name`` is ``row`` (the row key), ``revision`` (of the code that observed the cell last, 0 if none did)
    or a column of the same row; ``op`` is a key of `OPERATORS`. ``value`` is an int for a revision, else
    bytes. A row without the column does not meet the condition.
    """

    name: str
    op: str
    value: bytes | int

    @classmethod
    def parse(cls, text: str, to_bytes: Callable[[str], bytes] = str.encode) -> Condition:
        """Parse a text such as ``revision<2``, ``row ^= https:`` or ``language=en``.

        Raises:
            ValueError: the text is no condition.
        """
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no condition: write NAME OP VALUE, OP one of {' '.join(OPERATORS)}"
            )
        name, op, value = found.groups()
        if name != REVISION:
            return cls(name, op, to_bytes(value))
        if op == "^=" or not re.fullmatch(r"[0-9]{1,10}\s*", value):
            raise ValueError(f"{text!r}: a revision is a number, so write for instance {REVISION}<2")
        return cls(name, op, int(value))

    @staticmethod
    def name_in(text: str) -> str | None:
        """Return the name in the text of a condition, None if the text is no condition."""
        found = _CONDITION.fullmatch(text)
        return None if found is None else found[1]

    def holds(self, found: bytes | int | None) -> bool:
        """Return True if a value meets the condition; None, for no value, does not."""
        return found is not None and OPERATORS[self.op](found, self.value)
