"""Row keys of the recipes' tables: a key and a suffix, which `split_row` separates again."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from percolator_core.observers import ObserverTransaction
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

AnyTransaction: TypeAlias = Transaction | ObserverTransaction
"""A transaction of the user, or of an observer."""

AnyReader: TypeAlias = Snapshot | ObserverTransaction
"""A snapshot, a transaction (a subclass of Snapshot), or a transaction of an observer."""

LONGEST_KEY: Final = 65_000
"""A key has at most this many bytes, so that key and suffix together fit into a row key."""

_KEY: Final = struct.Struct(">H")


def key_row(key: bytes) -> bytes:
    """Return the prefix of a key's rows. It begins with the key's length, so no other key has this prefix."""
    if len(key) > LONGEST_KEY:
        raise ValueError(
            f"a recipe's key has at most {LONGEST_KEY} bytes, not {len(key)}: use a digest of it"
        )
    return _KEY.pack(len(key)) + key


def split_row(row: bytes) -> tuple[bytes, bytes]:
    """Split a row key into the key and the suffix."""
    end = _KEY.size + _KEY.unpack_from(row)[0]
    return row[_KEY.size : end], row[end:]
