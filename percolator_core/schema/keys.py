"""Row keys of typed tables: the values of the key's columns, put together so that keys sort as the tuples do.

A column whose bytes may have any length ends with a mark, unless it is the last one: a zero within it
becomes ``00 FF``, the end is ``00 01``, which is less than whatever may follow in a longer value. So a key of
one text column is that text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from percolator_core.schema.definition import TableDefinition
from percolator_core.schema.types import ColumnType, column_type, encode_value, shown

_ZERO: Final = b"\x00"
_ESCAPED: Final = b"\x00\xff"
END: Final = b"\x00\x01"


class KeyCodec:
    """Makes row keys of a table's key values, and the other way round."""

    __slots__ = ("_types", "columns")

    def __init__(self, definition: TableDefinition) -> None:
        self.columns = definition.key
        self._types: tuple[ColumnType, ...] = tuple(
            column_type(column.type) for column in definition.key_columns
        )

    def encode(self, values: Sequence[Any]) -> bytes:
        """The row key of all values of the key, in its order.

        Raises:
            TypeError, ValueError: a value is none of its column's type; the message begins with the column.
            ValueError: there are not as many values as the key has columns.
        """
        if len(values) != len(self._types):
            raise ValueError(f"the key is ({', '.join(self.columns)}), of which {len(values)} are given")
        return self.join([self.encode_part(position, value) for position, value in enumerate(values)])

    def encode_part(self, position: int, value: Any) -> bytes:
        """The bytes of one value, without what ends it. Raises as `encode`."""
        return encode_value(self.columns[position], self._types[position], value)

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The row key of encoded values; of fewer than all, what keys begin with that have them."""
        last = len(self._types) - 1
        if len(parts) == 1 and not last:
            return parts[0]
        return b"".join(
            part if kind.width is not None or position == last else part.replace(_ZERO, _ESCAPED) + END
            for position, (kind, part) in enumerate(zip(self._types, parts, strict=False))
        )

    def split(self, row: bytes) -> list[bytes]:
        """The encoded values in a row key.

        Raises:
            ValueError: it is no key of this table; joining what was split gives the same row key.
        """
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
                # A zero that belongs to the value is followed by 255, so the first end mark is the end.
                if end < 0:
                    raise _no_key(row)
                marked, at = row[at:end], end + len(END)
                part = marked.replace(_ESCAPED, _ZERO)
                if len(marked) - len(part) != part.count(_ZERO):
                    raise _no_key(row)
            parts.append(part)
        if at != len(row):
            raise _no_key(row)
        return parts

    def decode(self, row: bytes) -> tuple[Any, ...]:
        """The values in a row key. Raises as `split`."""
        parts = self.split(row)
        try:
            return tuple(kind.decode(part) for kind, part in zip(self._types, parts, strict=True))
        except (ValueError, OverflowError):
            raise _no_key(row) from None

    def describe(self, row: bytes) -> str:
        """A row by its key, for a person; what is no key of this table as bytes."""
        try:
            values = self.decode(row)
        except ValueError:
            return shown(row)
        return describe_key(dict(zip(self.columns, values, strict=True)))

    def bounds(
        self,
        equal: Sequence[bytes],
        low: bytes | None = None,
        high: bytes | None = None,
    ) -> tuple[bytes, bytes | None]:
        """``(low, high)``, inclusive and exclusive, of the keys whose first columns are ``equal``, encoded.

        ``low`` and ``high``, both inclusive, bound the column behind these; None leaves a side open. They are
        of the column's width, if it has one, and else any bytes. Where no key can be within, the upper bound
        may be below the lower one. An upper bound of None is the end of the table.
        """
        front = self.join(equal) if equal else b""
        behind = len(equal)
        if behind == len(self._types):
            return front, front + b"\x00"
        start = front if low is None else front + self._open(behind, low)
        if high is None:
            return start, least_above(front)
        last = front + self._open(behind, high)
        if behind == len(self._types) - 1 and self._types[behind].width is None:
            return start, last + b"\x00"
        if self._types[behind].width is None:
            last += END
        return start, least_above(last)

    def _open(self, position: int, part: bytes) -> bytes:
        """A value as it stands in a key, without the mark of its end."""
        if self._types[position].width is not None or position == len(self._types) - 1:
            return part
        return part.replace(_ZERO, _ESCAPED)


def _no_key(row: bytes) -> ValueError:
    return ValueError(f"{shown(row)} is no key of this table")


def describe_key(values: Mapping[str, Any]) -> str:
    """Values of a key by column, for a person: ``shop='east', number=7``."""
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def least_above(prefix: bytes) -> bytes | None:
    """The least key greater than every key with the prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def encode_key(definition: TableDefinition, values: Iterable[Any]) -> bytes:
    """The row key of these values; for one key. Raises as `KeyCodec.encode`."""
    return KeyCodec(definition).encode(tuple(values))
