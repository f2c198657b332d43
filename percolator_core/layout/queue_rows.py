"""The row keys of a queue: a key with its length in front, and a suffix.

::

    slice   >H len key   key   >Q number        its row is notified
    item    slice   >Q start_ts   >Q sequence
"""

from __future__ import annotations

import struct
from typing import Final

LONGEST_KEY: Final = 65_000
"""A key has at most this many bytes, so that key and suffix together fit into a row key."""

_KEY: Final = struct.Struct(">H")
_NUMBER: Final = struct.Struct(">Q")
_ITEM: Final = struct.Struct(">QQ")


def key_row(key: bytes) -> bytes:
    """Return the prefix of a key's rows. It begins with the key's length, so no other key has this prefix."""
    if len(key) > LONGEST_KEY:
        raise ValueError(f"a key has at most {LONGEST_KEY} bytes, not {len(key)}: use a digest of it")
    return _KEY.pack(len(key)) + key


def split_row(row: bytes) -> tuple[bytes, bytes]:
    """Split a row key into the key and the suffix."""
    end = _KEY.size + _KEY.unpack_from(row)[0]
    return row[_KEY.size : end], row[end:]


def slice_row(key: bytes, number: int) -> bytes:
    """Return the prefix of the row keys of a slice. It is also the key of the row that is notified."""
    return key_row(key) + _NUMBER.pack(number)


def split_slice(row: bytes) -> tuple[bytes, int]:
    """Return the key and the number of a slice."""
    key, number = split_row(row)
    return key, _NUMBER.unpack(number)[0]


def item_row(row_of_slice: bytes, start_ts: int, sequence: int) -> bytes:
    """Return the row key of an item. The sequence distinguishes the items of one transaction."""
    return row_of_slice + _ITEM.pack(start_ts, sequence)


def slice_of_item(row: bytes) -> bytes:
    """Return the row of an item's slice."""
    return row[: -_ITEM.size]
