"""Row keys of the recipes' tables: a key with something behind it, so put together that no two are alike."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from percolator_core.observers import ObserverTransaction
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

AnyTransaction: TypeAlias = Transaction | ObserverTransaction
"""The user's own transaction, or the one that an observer is given."""

AnyReader: TypeAlias = Snapshot | ObserverTransaction
"""What can be read from: a snapshot or, being one, a transaction; or an observer's."""

LONGEST_KEY: Final = 65_000
"""Bytes of a key: with what a recipe puts behind it, it still is a row key."""

_KEY: Final = struct.Struct(">H")


def key_row(key: bytes) -> bytes:
    """The rows of a key begin with this, and those of no other key do: its length stands in front."""
    if len(key) > LONGEST_KEY:
        raise ValueError(
            f"a recipe's key has at most {LONGEST_KEY} bytes, not {len(key)}: use a digest of it"
        )
    return _KEY.pack(len(key)) + key


def split_row(row: bytes) -> tuple[bytes, bytes]:
    """The key of a row, and what stands behind it."""
    end = _KEY.size + _KEY.unpack_from(row)[0]
    return row[_KEY.size : end], row[end:]
