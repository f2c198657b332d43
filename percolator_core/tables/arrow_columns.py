"""Conversion of whole columns with numpy: encoded values to Arrow and back, and row keys to key columns.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date
from itertools import pairwise
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import compute

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.row_keys import END, ESCAPED, ZERO, KeyCodec
from percolator_core.schema.types import FIRST_TIME, LAST_TIME, NAN, SIGN, ColumnType, column_type, shown
from percolator_core.tables.arrow_values import arrow_type

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_DAYS: Final = tuple((one - date(1970, 1, 1)).days for one in (date.min, date.max))


def of_values(kind: ColumnType, values: Sequence[bytes | None]) -> pa.Array:
    """Return the Arrow column of encoded values; None means null."""
    if kind.width is None:
        return texts(kind, pa.array(values, pa.binary()))
    blank = bytes(kind.width)
    joined = b"".join([blank if value is None else value for value in values])
    valid = np.array([value is not None for value in values], bool)
    return of_bytes(kind, np.frombuffer(joined, np.uint8).reshape(-1, kind.width), valid)


def texts(kind: ColumnType, found: pa.Array) -> pa.Array:
    """Return the Arrow column of encoded text or bytes. Raises pyarrow.ArrowInvalid if text is not UTF-8."""
    return found if kind.name == "bytes" else found.cast(pa.string())


def of_bytes(kind: ColumnType, found: Bytes, valid: Numbers | None = None) -> pa.Array:
    """Return the Arrow column of encoded values of a fixed width; each row of ``found`` is one value."""
    mask = None if valid is None or bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if kind.name == "uuid":
        return _uuids(found, mask)
    values = _DECODED[kind.family](np.ascontiguousarray(found))
    return pa.Array.from_buffers(arrow_type(kind.name), len(found), [mask, pa.py_buffer(values)])


def _bools(found: Bytes) -> Numbers:
    return np.packbits(found[:, 0] != 0, bitorder="little")


def _ints(found: Bytes) -> Numbers:
    return found.view(">u8")[:, 0].astype(np.uint64) ^ np.uint64(SIGN)


def _floats(found: Bytes) -> Numbers:
    words = found.view(">u8")[:, 0].astype(np.uint64)
    return np.where(words >= SIGN, words ^ np.uint64(SIGN), ~words)


def _days(found: Bytes) -> Numbers:
    return found.view(">u4")[:, 0].astype(np.uint32) ^ np.uint32(1 << 31)


def _decimals(found: Bytes) -> Numbers:
    words = found.view(">u8").astype(np.uint64)
    words[:, 0] ^= np.uint64(SIGN)
    if words.shape[1] == 1:
        return np.stack([words[:, 0], (words[:, 0].view(np.int64) >> 63).view(np.uint64)], axis=1)
    return np.ascontiguousarray(words[:, ::-1])


_DECODED: Final[dict[str, Callable[[Any], Any]]] = {
    "bool": _bools,
    "int": _ints,
    "float": _floats,
    "datetime": _ints,
    "date": _days,
    "decimal": _decimals,
}

_TEXT_OF_UUID: Final = 36


def _uuids(found: Bytes, mask: Any) -> pa.Array:
    digits = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
    pairs = digits[found].reshape(-1, 32)
    text = np.full((len(found), _TEXT_OF_UUID), ord("-"), np.uint8)
    for start, end, dashes in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        text[:, start + dashes : end + dashes] = pairs[:, start:end]
    offsets = np.arange(0, _TEXT_OF_UUID * len(found) + 1, _TEXT_OF_UUID, dtype=np.int32)
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(found), buffers)


class Refused(ValueError):
    """A value at ``position`` does not fit the column."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position


def encoded(kind: ColumnType, nullable: bool, found: pa.Array) -> list[bytes | None]:
    """Return the encoded values of an Arrow column; None means null.

    Raises Refused for a value that does not fit, and TypeError for an Arrow type that does not.
    """
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    if not nullable and found.null_count:
        raise Refused(found.is_null().index(True).as_py(), "the value cannot be null")
    if pa.types.is_null(found.type):
        return [None] * len(found)
    if not any(getattr(pa.types, f"is_{one}")(found.type) for one in _ACCEPTED[kind.family]):
        raise TypeError(f"{found.type} is no {kind.name}: cast the column to {arrow_type(kind.name)}")
    if pa.types.is_timestamp(found.type) and found.type.tz is None:
        raise TypeError(f"{found.type} has no time zone: cast the column to {arrow_type(kind.name)}")
    if not len(found):
        return []  # an empty column may have no buffers
    how = _ENCODED.get(f"decimal {kind.width}" if kind.digits else kind.name)
    if how is None:
        return _one_by_one(kind, found)
    try:
        # An integer that is too large for an exact float is rounded, as `ColumnType.encode` does.
        whole = kind.name == "float" and pa.types.is_integer(found.type)
        values = how(found.cast(arrow_type(kind.name), safe=not whole))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _one_by_one(kind, found)
    return _with_nulls(values, found) if found.null_count else values


def stored(kind: ColumnType, found: pa.Array) -> list[bytes | None]:
    """Return the encoded values from which an Arrow column was made; None means null."""
    if kind.width is not None:
        return encoded(kind, True, found)
    return found.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


_TEXT: Final = ("string", "large_string", "string_view")
_ACCEPTED: Final = {
    "bool": ("boolean",),
    "int": ("integer",),
    "float": ("floating", "integer"),
    "str": _TEXT,
    "bytes": ("binary", "large_binary", "binary_view", "fixed_size_binary"),
    "datetime": ("timestamp",),
    "date": ("date",),
    "decimal": ("decimal", "integer"),
    "uuid": (*_TEXT, "binary", "fixed_size_binary"),
    "json": _TEXT,
}


def _with_nulls(values: list[bytes | None], found: pa.Array) -> list[bytes | None]:
    return [
        value if valid else None
        for value, valid in zip(values, found.is_valid().to_numpy(zero_copy_only=False).tolist(), strict=True)
    ]


def _one_by_one(kind: ColumnType, found: pa.Array) -> list[bytes | None]:
    """Encode values one by one, for types that Arrow lacks, or to find the value that does not fit."""
    read = _READ.get(kind.name)
    values: list[bytes | None] = []
    for position, scalar in enumerate(found):
        try:
            value = scalar.as_py()
            values.append(None if value is None else kind.encode(read(value) if read else value))
        except (TypeError, ValueError, ArithmeticError) as error:
            raise Refused(position, str(error)) from None
    return values


def _uuid(value: str | bytes) -> UUID:
    return UUID(value) if isinstance(value, str) else UUID(bytes=value)


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(value)} is no JSON: {error}") from None


def _time(value: Any) -> Any:
    if getattr(value, "nanosecond", 0):
        raise ValueError(f"{value} has nanoseconds: round it to microseconds")
    return value


_READ: Final[dict[str, Callable[[Any], Any]]] = {"uuid": _uuid, "json": _json, "datetime": _time}


def _raw(found: pa.Array, dtype: str, width: int = 1) -> Numbers:
    """Return the memory of a column's values; the value of a null is arbitrary."""
    values = np.frombuffer(found.buffers()[1], dtype)
    return values[found.offset * width : (found.offset + len(found)) * width]


def _cut(words: Numbers, width: int) -> list[bytes | None]:
    """Split the memory of numbers into values of ``width`` bytes."""
    pieces: list[bytes | None] = np.frombuffer(words.tobytes(), f"V{width}").tolist()
    return pieces


def _check(name: str, found: pa.Array, values: Numbers, bounds: Sequence[int]) -> None:
    """Raise Refused for the first value out of bounds."""
    bad = ((values < bounds[0]) | (values > bounds[1])) & found.is_valid().to_numpy(zero_copy_only=False)
    if bad.any():
        raise Refused(int(bad.argmax()), f"the {name} is not within the years 1 to 9999 in UTC")


def _encode_bools(found: pa.Array) -> list[bytes | None]:
    return _cut(_raw(found.fill_null(False).cast(pa.uint8()), "u1"), 1)


def _encode_ints(found: pa.Array) -> list[bytes | None]:
    return _cut((_raw(found, "u8") ^ np.uint64(SIGN)).astype(">u8"), 8)


def float_words(found: pa.Array) -> Numbers:
    """Return the encoded values of floats as unsigned numbers; the number for a null is arbitrary."""
    # 0.0 and -0.0 are encoded alike, and so are all NaNs.
    with np.errstate(invalid="ignore"):
        numbers = _raw(found, "f8") + 0.0
    words = np.where(np.isnan(numbers), np.uint64(NAN), numbers.view(np.uint64))
    return np.where(words >= SIGN, ~words, words ^ np.uint64(SIGN))


def _encode_floats(found: pa.Array) -> list[bytes | None]:
    return _cut(float_words(found).astype(">u8"), 8)


def _encode_texts(found: pa.Array) -> list[bytes | None]:
    _, offsets, data = found.buffers()
    ends = np.frombuffer(offsets, np.int32)[found.offset : found.offset + len(found) + 1].tolist()
    joined = b"" if data is None else data.to_pybytes()
    return [joined[start:end] for start, end in pairwise(ends)]


def _encode_datetimes(found: pa.Array) -> list[bytes | None]:
    _check("datetime", found, _raw(found, "i8"), (FIRST_TIME, LAST_TIME))
    return _encode_ints(found)


def _encode_dates(found: pa.Array) -> list[bytes | None]:
    _check("date", found, _raw(found, "i4"), _DAYS)
    return _cut((_raw(found, "u4") ^ np.uint32(1 << 31)).astype(">u4"), 4)


def _encode_small_decimals(found: pa.Array) -> list[bytes | None]:
    # 18 digits and the sign fit into the lower half of the 16 bytes.
    return _cut((_raw(found, "u8", 2)[::2] ^ np.uint64(SIGN)).astype(">u8"), 8)


def _encode_decimals(found: pa.Array) -> list[bytes | None]:
    turned = _raw(found, "u8", 2).reshape(-1, 2)[:, ::-1] ^ np.array([SIGN, 0], np.uint64)
    return _cut(turned.astype(">u8"), 16)


_ENCODED: Final[dict[str, Callable[[Any], list[bytes | None]]]] = {
    "bool": _encode_bools,
    "int": _encode_ints,
    "float": _encode_floats,
    "str": _encode_texts,
    "bytes": _encode_texts,
    "datetime": _encode_datetimes,
    "date": _encode_dates,
    "decimal 8": _encode_small_decimals,
    "decimal 16": _encode_decimals,
}


class KeyParts:
    """Splits a column of row keys into key columns. Raises ValueError if one is no key of the table."""

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
        self._find_parts()

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

    def _find_parts(self) -> None:
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
