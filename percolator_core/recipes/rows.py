"""Row keys of the recipes' tables: a key and a suffix, in a unique encoding."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from percolator_core.observers import ObserverTransaction
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

AnyTransaction: TypeAlias = Transaction | ObserverTransaction
"""A transaction of the user, or of an observer."""

AnyReader: TypeAlias = Snapshot | ObserverTransaction
"""A snapshot, a transaction (which is a snapshot), or a transaction of an observer."""

LONGEST_KEY: Final = 65_000
"""Bytes of a key, so that it still fits into a row key with the suffix of a recipe."""

_KEY: Final = struct.Struct(">H")


def key_row(key: bytes) -> bytes:
    """The prefix of the rows of a key, and of no other key: it begins with the key's length."""
    if len(key) > LONGEST_KEY:
        raise ValueError(
            f"a recipe's key has at most {LONGEST_KEY} bytes, not {len(key)}: use a digest of it"
        )
    return _KEY.pack(len(key)) + key


def split_row(row: bytes) -> tuple[bytes, bytes]:
    """Split a row key into the key and the suffix."""
    end = _KEY.size + _KEY.unpack_from(row)[0]
    return row[_KEY.size : end], row[end:]
