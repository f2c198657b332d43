"""Commands as they go over a connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from hiredis import Reader, pack_command

Command: TypeAlias = Sequence[bytes | str | int] | bytes
"""A command by its parts, or packed already."""

NUMBERS: Final = tuple(b"%d" % number for number in range(1024))
"""Small numbers as text: it takes longer to make them than to look them up."""

_BYTES_ONLY: Final = (b"HMGET", b"GET")
"""Commands in which no number stands: the ordinary reads."""


def pack(command: Sequence[bytes | str | int]) -> bytes:
    """A command as it is sent.

    hiredis runs signal handlers while it turns a number into text, and crashes if one raises: so numbers are
    made text before.
    """
    if command[0] not in _BYTES_ONLY:
        command = tuple([b"%d" % part if type(part) is int else part for part in command])
    packed: bytes = pack_command(command)  # type: ignore[arg-type]
    return packed


def pack_fields(first: bytes, second: bytes) -> bytes:
    """Two fields of a hash, for `pack_read`."""
    return b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(first), first, len(second), second)


READ: Final = b"*4\r\n$5\r\nHMGET\r\n$%d\r\n%b\r\n%b"
"""What `pack_read` fills in: the length of the key, the key, the fields."""


def pack_read(key: bytes, fields: bytes) -> bytes:
    """HMGET of two fields that were packed before: the command that most transactions send most."""
    return READ % (len(key), key, fields)


def parts(command: Command) -> Sequence[bytes | str | int]:
    """A command by its parts, also one that is packed."""
    if not isinstance(command, bytes):
        return command
    reader = Reader()
    reader.feed(command)
    found: list[bytes] = reader.gets()
    return found


def first_key(command: Command) -> bytes | str | int | None:
    """The key that tells where on a cluster a command goes."""
    command = parts(command)
    position = 3 if command[0] == b"EVALSHA" else 1
    return command[position] if len(command) > position else None
