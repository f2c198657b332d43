"""Split many row keys into their key columns with numpy, as `KeyCodec.split` splits one key.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.row_keys import END, ESCAPED, ZERO, KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow_values import of_bytes, texts

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class KeyParts:
    """Splits a column of row keys into the values of the key columns.

    Raises ValueError if a row key is no key of the table.
    """

    def __init__(self, definition: TableDefinition, keys: pa.BinaryArray) -> None:
        self._definition = definition
        self._kinds = [column_type(column.type) for column in definition.key_columns]
        self._keys = keys
        _, offsets, joined = keys.buffers()
        self._joined = b"" if joined is None else joined
        self._bytes = np.frombuffer(self._joined, np.uint8)
        self._offsets = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
        self._starts: list[Numbers] = []
        self._ends: list[Numbers] = []
        self._find()

    def column(self, name: str) -> pa.Array:
        """Return a key column in Arrow. Raises pyarrow.ArrowInvalid for text that is not UTF-8."""
        part = self._definition.key.index(name)
        kind, starts, ends = self._kinds[part], self._starts[part], self._ends[part]
        if kind.width is not None:
            return of_bytes(kind, gathered(self._joined, starts, kind.width))
        if len(self._kinds) == 1:
            return texts(kind, self._keys)
        found = pieces(self._joined, starts, ends)
        if part < len(self._kinds) - 1 and self._zeros(part).any():
            found = compute.replace_substring(found, pattern=ESCAPED, replacement=ZERO)
        return texts(kind, found)

    def _find(self) -> None:
        """Find the bounds of all parts."""
        at, ends = self._offsets[:-1], self._offsets[1:]
        last = len(self._kinds) - 1
        for part, kind in enumerate(self._kinds):
            self._starts.append(at)
            if kind.width is not None:
                stop = at = at + kind.width
            elif part == last:
                stop = at = np.maximum(at, ends)  # a part that is too long stays too long
            else:
                stop = self._next_mark(at)
                at = stop + len(END)
            self._ends.append(stop)
        bad = at != ends
        for part, kind in enumerate(self._kinds[:-1]):
            if kind.width is None and not bad.any():
                # In a valid key, 255 follows each zero byte of the value.
                bad |= self._zeros(part) != self._count(self._pairs(ESCAPED), part)
        if bad.any():
            KeyCodec(self._definition).split(self._keys[int(bad.argmax())].as_py())

    def _pairs(self, pair: bytes) -> Numbers:
        """Return all positions of a pair of bytes."""
        return np.flatnonzero((self._bytes[:-1] == pair[0]) & (self._bytes[1:] == pair[1]))

    def _next_mark(self, at: Numbers) -> Numbers:
        """Return the position of the first end mark at or after each position, or the end of all keys."""
        marks = np.append(self._pairs(END), len(self._bytes)).astype(np.int64)
        return marks[np.minimum(np.searchsorted(marks, at), len(marks) - 1)]

    def _zeros(self, part: int) -> Numbers:
        """Return, for each key, the number of zero bytes in this part of the key."""
        return self._count(np.flatnonzero(self._bytes == ZERO[0]), part)

    def _count(self, positions: Numbers, part: int) -> Numbers:
        """Return, for each key, how many of the positions are in this part of the key."""
        found: Numbers = np.searchsorted(positions, self._ends[part])
        return found - np.searchsorted(positions, self._starts[part])


def keys_of(joined: bytes, offsets: Numbers) -> pa.BinaryArray:
    """Return a column whose values are the bytes from each offset to the next."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def pieces(joined: bytes, starts: Numbers, ends: Numbers, valid: Numbers | None = None) -> pa.Array:
    """Return the bytes from each start to its end, null where ``valid`` is False. Starts and ends ascend."""
    count = len(starts)
    # Every second element is a piece; the other elements are the bytes between pieces.
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[1::2] = starts
    offsets[2::2] = ends
    numbers = np.arange(1, 2 * count, 2, dtype=np.int32)
    return keys_of(joined, offsets).take(pa.array(numbers, mask=None if valid is None else ~valid))


def offsets_of(lengths: Numbers) -> Numbers:
    """Return the offsets of consecutive pieces with these lengths: 0, and then the end of each piece.

    Raises ValueError if they have 2 GiB or more.
    """
    if lengths.sum(dtype=np.int64) > np.iinfo(np.int32).max:
        raise ValueError("rows that are converted together have 2 GiB or more")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gathered(joined: bytes, starts: Numbers, width: int) -> Bytes:
    """For each start, return as a row the ``width`` bytes of ``joined`` that begin there.

    If they would begin before ``joined`` or end after it, the row has arbitrary bytes.
    """
    if len(joined) < width:
        return np.zeros((len(starts), width), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(joined, np.uint8), width)
    found: Bytes = windows[np.clip(starts, 0, len(windows) - 1)]
    return found
