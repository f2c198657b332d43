"""Columns of a row group, for reads of single values.

A value is decoded from the column's buffers. That takes a fraction of the time that an Arrow scalar would
take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from percolator_core.schema.types import ColumnType

if TYPE_CHECKING:
    import pyarrow as pa

_STEP: Final = 8
"""Every eighth key is kept as a Python object. A search looks at these keys first, because that is fast."""

_KEY_BYTES: Final = 60
"""Estimated memory of a key that is kept as a Python object, without the key's own bytes."""

_VIEW_BYTES: Final = 500
"""Estimated memory of the objects that belong to one array."""

_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1


class Keys(Sequence[bytes]):
    """A column of keys in ascending order; `bisect` can search in it."""

    def __init__(self, array: pa.Array) -> None:
        _, offsets, data = array.buffers()
        self.array = array
        self._count = len(array)
        self._data = memoryview(data or b"")
        self._offsets = memoryview(offsets or bytes(4)).cast("i")[array.offset :]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: Any) -> Any:
        return bytes(self._data[self._offsets[position] : self._offsets[position + 1]])

    def find(self, key: bytes) -> int:
        """Return the first position of a key, or -1."""
        end, count = bisect_left(self._some, key) * _STEP, self._count
        position = bisect_left(self, key, max(0, end - _STEP), min(end, count))
        return position if position < count and self[position] == key else -1

    @property
    def size(self) -> int:
        """Estimated memory in bytes."""
        keys: int = self.array.nbytes
        return keys + keys // _STEP + _KEY_BYTES * (self._count // _STEP + 1) + _VIEW_BYTES

    @cached_property
    def _some(self) -> list[bytes]:
        return [self[position] for position in range(0, len(self), _STEP)]


class Values:
    """A column from which single values are read in the encoding of the store."""

    __slots__ = ("_read", "array")

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self._read: Callable[[int], bytes | None] | None = None

    def value(self, kind: ColumnType, position: int) -> bytes | None:
        """Return an encoded value; None means null. ``kind`` has to be the column's type in every call."""
        read = self._read
        if read is None:
            read = self._read = _reader(kind, self.array)
        return read(position)

    @property
    def size(self) -> int:
        """Estimated memory in bytes."""
        values: int = self.array.nbytes
        return values + _VIEW_BYTES


def _reader(kind: ColumnType, array: pa.Array) -> Callable[[int], bytes | None]:
    """Return a function that returns the encoded value at a position."""
    if kind.width is None:
        read = _texts(array)
    elif kind.name in {"int", "datetime", "float"}:
        read = _words(array, kind.name == "float")
    else:

        def read(position: int) -> bytes:
            value = array[position].as_py()
            return kind.encode(UUID(value) if kind.name == "uuid" else value)

    if not array.null_count:
        return read
    valid, offset = memoryview(array.buffers()[0]), array.offset

    def read_valid(position: int) -> bytes | None:
        bit = position + offset
        return read(position) if valid[bit >> 3] >> (bit & 7) & 1 else None

    return read_valid


def _texts(array: pa.Array) -> Callable[[int], bytes]:
    _, offsets, data = array.buffers()
    content, ends = memoryview(data or b""), memoryview(offsets).cast("i")[array.offset :]

    def read(position: int) -> bytes:
        return bytes(content[ends[position] : ends[position + 1]])

    return read


def _words(array: pa.Array, is_float: bool) -> Callable[[int], bytes]:
    words = memoryview(array.buffers()[1]).cast("Q")[array.offset :]

    def read(position: int) -> bytes:
        word = words[position]
        # Equal to `ColumnType.encode`. The array was made from encoded values, so zero and NaN have one form.
        return (word ^ (_ALL if is_float and word & _SIGN else _SIGN)).to_bytes(8, "big")

    return read
