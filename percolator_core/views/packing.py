"""Packed values of views: contributions, deltas, states, and keys that sort.

`pack` makes one value of a list of bytes, ints and nulls, in the format of MessagePack. Ints have no limit,
and their trailing zero bytes take no space, so a float as a multiple of 2**-1074 is short. `sortable` makes a
key whose bytes sort as an ORDER BY says.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgpack

from percolator_core.schema.row_keys import END, ESCAPED, ZERO

Packable: TypeAlias = "bytes | int | Sequence[Packable] | None"

_LARGE: Final = 1
"""The type of an int of more than 64 bits: the number of zero bytes at its end, then its other bytes."""

_ZEROS: Final = struct.Struct(">H")
_INVERTED: Final = bytes(255 - one for one in range(256))


def pack(items: Sequence[Packable]) -> bytes:
    """Return the packed form of a list of bytes, ints, None and lists of these."""
    packed: bytes = msgpack.packb(items, default=_pack_large)
    return packed


def unpack(packed: bytes) -> list[Any]:
    """Return the list that `pack` packed. Raises ValueError for other bytes."""
    items: list[Any] = msgpack.unpackb(packed, ext_hook=_unpack_large)
    return items


def _pack_large(number: int) -> msgpack.ExtType:
    zeros = ((number & -number).bit_length() - 1) // 8
    rest = number >> (8 * zeros)
    return msgpack.ExtType(
        _LARGE, _ZEROS.pack(zeros) + rest.to_bytes(rest.bit_length() // 8 + 1, "little", signed=True)
    )


def _unpack_large(_: int, data: bytes) -> int:
    [zeros] = _ZEROS.unpack_from(data)
    number = int.from_bytes(data[_ZEROS.size :], "little", signed=True)
    return number << (8 * int(zeros))


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
