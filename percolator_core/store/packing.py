"""Commands in the protocol of Redis: the ordinary read in its packed form, and the parts of packed commands.

`percolator_core.store.request` packs all other commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from hiredis import Reader

Command: TypeAlias = Sequence[bytes | str | int] | bytes
"""The parts of a command, or the packed command."""

NUMBERS: Final = tuple(b"%d" % number for number in range(1024))
"""Small numbers as text: to look them up is faster than to format them."""


def pack_fields(first: bytes, second: bytes) -> bytes:
    """Pack two fields of a hash for `pack_read`."""
    return b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(first), first, len(second), second)


READ: Final = b"*4\r\n$5\r\nHMGET\r\n$%d\r\n%b\r\n%b"
"""The command of `pack_read`, with places for the length of the key, the key, and the fields."""


def pack_read(key: bytes, fields: bytes) -> bytes:
    """Pack an HMGET of two packed fields: the most frequent command of most transactions."""
    return READ % (len(key), key, fields)


def parts(command: Command) -> Sequence[bytes | str | int]:
    """Return the parts of a command, also of a packed one."""
    if not isinstance(command, bytes):
        return command
    reader = Reader()
    reader.feed(command)
    found: list[bytes] = reader.gets()
    return found


def first_key(command: Command) -> bytes | str | int | None:
    """Return the key that decides to which server of a cluster a command goes."""
    command = parts(command)
    position = 3 if command[0] == b"EVALSHA" else 1
    return command[position] if len(command) > position else None
