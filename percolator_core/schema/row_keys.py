"""Row keys of typed tables: the joined encoded values of the key columns. Keys sort like tuples of values.

A value of variable length ends with the mark ``00 01``. A zero byte within the value becomes ``00 FF``, so a
value sorts before all longer values that begin with it. The last column has no mark: a key of one text column
is that text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.types import ColumnType, column_type, encode_value, shown

ZERO: Final = b"\x00"
ESCAPED: Final = b"\x00\xff"
END: Final = b"\x00\x01"


class KeyCodec:
    """Converts between the key values of a table and its row keys."""

    __slots__ = ("_types", "columns")

    def __init__(self, definition: TableDefinition) -> None:
        self.columns = definition.key
        self._types: tuple[ColumnType, ...] = tuple(
            column_type(column.type) for column in definition.key_columns
        )

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return the row key of the values of all key columns, in the order of the key.

        Raises TypeError or ValueError if a value is not of its column's type, or their number is wrong.
        """
        if len(values) != len(self._types):
            raise ValueError(f"the key is ({', '.join(self.columns)}), but {len(values)} values are given")
        named = zip(self.columns, self._types, values, strict=True)
        return self.join([encode_value(name, kind.encode, value) for name, kind, value in named])

    def join(self, parts: Sequence[bytes]) -> bytes:
        """Return the row key of encoded values, or the common prefix of all keys that begin with them."""
        last = len(self._types) - 1
        if len(parts) == 1 and not last:
            return parts[0]
        return b"".join(
            part if kind.width is not None or position == last else part.replace(ZERO, ESCAPED) + END
            for position, (kind, part) in enumerate(zip(self._types, parts, strict=False))
        )

    def split(self, row: bytes) -> list[bytes]:
        """Return the encoded values of a row key. Raises ValueError if ``row`` is no key of this table."""
        last = len(self._types) - 1
        parts: list[bytes] = []
        at = 0
        for position, kind in enumerate(self._types):
            if kind.width is not None:
                end = at + kind.width
                part, at = row[at:end], end
                if len(part) != kind.width:
                    raise _no_key(row)
            elif position == last:
                part, at = row[at:], len(row)
            else:
                end = row.find(END, at)
                # A zero byte of the value is followed by 255, so the first mark is the end.
                if end < 0:
                    raise _no_key(row)
                marked, at = row[at:end], end + len(END)
                part = marked.replace(ESCAPED, ZERO)
                if len(marked) - len(part) != part.count(ZERO):
                    raise _no_key(row)
            parts.append(part)
        if at != len(row):
            raise _no_key(row)
        return parts

    def decode(self, row: bytes) -> tuple[Any, ...]:
        """Return the values of a row key. Raises as `split`."""
        parts = self.split(row)
        try:
            return tuple(kind.decode(part) for kind, part in zip(self._types, parts, strict=True))
        except (ValueError, OverflowError):
            raise _no_key(row) from None

    def describe(self, row: bytes) -> str:
        """Return the key's values as text for a message, or the bytes if ``row`` is no key of this table."""
        try:
            values = self.decode(row)
        except ValueError:
            return shown(row)
        return describe_key(dict(zip(self.columns, values, strict=True)))

    def bounds(
        self, equal: Sequence[bytes], low: bytes | None = None, high: bytes | None = None
    ) -> tuple[bytes, bytes | None]:
        """Return the inclusive lower and the exclusive upper bound of the keys that begin with ``equal``.

        ``equal`` has encoded values. ``low`` and ``high`` are inclusive bounds of the next column, and have
        the column's width, if it has one; None means no bound. If no key is possible, the returned upper
        bound may be below the lower bound. An upper bound of None means the end of the table.
        """
        front = self.join(equal) if equal else b""
        behind = len(equal)
        if behind == len(self._types):
            return front, front + b"\x00"
        start = front if low is None else front + self._open(behind, low)
        if high is None:
            return start, least_above(front)
        last = front + self._open(behind, high)
        if self._types[behind].width is not None:
            return start, least_above(last)
        if behind == len(self._types) - 1:
            return start, last + b"\x00"
        return start, least_above(last + END)

    def _open(self, position: int, part: bytes) -> bytes:
        """Return a value as part of a key, without the end mark."""
        if self._types[position].width is not None or position == len(self._types) - 1:
            return part
        return part.replace(ZERO, ESCAPED)


def _no_key(row: bytes) -> ValueError:
    return ValueError(f"{shown(row)} is no key of this table")


def describe_key(values: Mapping[str, Any]) -> str:
    """Return a text of key values for a message: ``shop='east', number=7``."""
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def least_above(prefix: bytes) -> bytes | None:
    """Return the least key above all keys with the prefix; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
