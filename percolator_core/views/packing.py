"""Packed values of views: contributions, deltas, states, and keys that sort.

`pack` makes one value of a list of bytes, ints and nulls. Ints have no limit, and their trailing zero bytes
take no space, so a float as a multiple of 2**-1074 is short. `sortable` makes a key whose bytes sort as an
ORDER BY says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from percolator_core.schema.row_keys import END, ESCAPED, ZERO

Packable: TypeAlias = "bytes | int | Sequence[Packable] | None"

_NULL: Final = 0
_BYTES: Final = 1
_POSITIVE: Final = 2
_NEGATIVE: Final = 3
_LIST: Final = 4
_SMALL: Final = 128
"""An int below 128 is one byte, from 128 on."""

_INVERTED: Final = bytes(255 - one for one in range(256))


def pack(items: Sequence[Packable]) -> bytes:
    """Return the packed form of a list of bytes, ints, None and lists of these."""
    out = bytearray()
    for item in items:
        _pack(item, out)
    return bytes(out)


def _pack(item: Packable, out: bytearray) -> None:
    if item is None:
        out.append(_NULL)
    elif isinstance(item, bytes):
        out.append(_BYTES)
        _length(len(item), out)
        out += item
    elif isinstance(item, int):
        if 0 <= item < _SMALL:
            out.append(_SMALL + item)
            return
        out.append(_POSITIVE if item > 0 else _NEGATIVE)
        item = abs(item)
        zeros = ((item & -item).bit_length() - 1) // 8
        item >>= 8 * zeros
        size = (item.bit_length() + 7) // 8
        _length(zeros, out)
        _length(size, out)
        out += item.to_bytes(size, "little")
    else:
        out.append(_LIST)
        _length(len(item), out)
        for one in item:
            _pack(one, out)


def _length(number: int, out: bytearray) -> None:
    while number >= _SMALL:
        out.append(_SMALL | (number & (_SMALL - 1)))
        number >>= 7
    out.append(number)


def unpack(packed: bytes) -> list[Any]:
    """Return the list that `pack` packed. Raises ValueError or IndexError for other bytes."""
    items: list[Any] = []
    at = 0
    while at < len(packed):
        item, at = _unpack(packed, at)
        items.append(item)
    return items


def _unpack(packed: bytes, at: int) -> tuple[Any, int]:
    tag = packed[at]
    at += 1
    if tag >= _SMALL:
        return tag - _SMALL, at
    if tag == _NULL:
        return None, at
    count, at = _read_length(packed, at)
    if tag == _LIST:
        items = []
        for _ in range(count):
            item, at = _unpack(packed, at)
            items.append(item)
        return items, at
    if tag == _BYTES:
        return packed[at : at + count], at + count
    if tag not in {_POSITIVE, _NEGATIVE}:
        raise ValueError(f"byte {at - 1} begins no packed value")
    size, at = _read_length(packed, at)
    number = int.from_bytes(packed[at : at + size], "little") << (8 * count)
    return number if tag == _POSITIVE else -number, at + size


def _read_length(packed: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = packed[at]
        at += 1
        number |= (byte & (_SMALL - 1)) << shift
        if byte < _SMALL:
            return number, at
        shift += 7


def sortable(value: bytes | None, descending: bool = False, nulls_first: bool = False) -> bytes:
    """Return an encoded value as a part of a key that sorts by it; no part is the beginning of another.

    ``descending`` inverts the order of the values, but not the place of nulls.
    """
    if value is None:
        return b"\x00" if nulls_first else b"\x02"
    part = value.replace(ZERO, ESCAPED) + END
    return b"\x01" + (part.translate(_INVERTED) if descending else part)


def split_sortable(key: bytes) -> list[bytes | None]:
    """Return the encoded values of the ascending parts of `sortable` that ``key`` consists of."""
    values: list[bytes | None] = []
    at = 0
    while at < len(key):
        if key[at] != 1:
            values.append(None)
            at += 1
            continue
        end = key.index(END, at + 1)
        values.append(key[at + 1 : end].replace(ESCAPED, ZERO))
        at = end + len(END)
    return values
