"""Refuses servers that evict keys when their memory is full, or have done so.

One check is not enough: ``maxmemory-policy`` can change at any time, and a promoted replica has its own. So a
process checks each server on every new connection, and before the first request after `INTERVAL` seconds. If
requests are in flight on the connection, the check is sent in front of the next batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.store.packing import Command
from percolator_core.store.request import Trailer, pack
from percolator_core.store.server_info import ServerInfo, read_info

INTERVAL: Final = 2.0
"""Seconds until a server is checked again. A check costs it two short replies."""

_COMMANDS: Final[Sequence[Command]] = ((b"INFO", b"memory"), (b"INFO", b"stats"))
_PACKED: Final = b"".join(map(pack, _COMMANDS))


class EvictingStore(StoreUnavailable):
    """A server evicts keys, or has done so."""


def refuse_eviction(info: ServerInfo, name: str) -> None:
    """Raise EvictingStore for a server that evicts keys, or has done so.

    ``name`` is what the message calls the server.
    """
    evicts = info.eviction != "noeviction"
    if not evicts and not info.evicted_keys:
        return
    lost = f"has evicted {info.evicted_keys} keys since it started, so that rows may be lost"
    mend = "restore them from a backup, or accept the loss, and then run CONFIG RESETSTAT"
    if not evicts:
        raise EvictingStore(f"{name} {lost}: {mend}")
    policy = f"{name} evicts keys when memory is full (maxmemory-policy {info.eviction})"
    if info.evicted_keys:
        raise EvictingStore(f"{policy} and {lost}: set maxmemory-policy noeviction, {mend}")
    raise EvictingStore(f"{policy}, which would lose data silently: set maxmemory-policy noeviction")


def is_about_eviction(error: PercolatorError) -> bool:
    """Return True if a request or a connection failed because a server evicts keys, or has done so."""
    return isinstance(error, EvictingStore) or isinstance(error.__cause__, EvictingStore)


class EvictionCheck:
    """The regular check of one server, shared by all connections of a process to it.

    ``due`` is the time of the next check (`time.monotonic`). No lock guards it: two threads may check.
    """

    __slots__ = ("_name", "due")

    def __init__(self, name: str) -> None:
        """``name`` is what messages call the server."""
        self._name = name
        self.due = 0.0

    def run(self, connection: AbstractConnection) -> None:
        """Check over a connection without replies in flight. After an exception, close the connection.

        Raise EvictingStore as `refuse_eviction`, RedisError if the server refuses the check.
        """
        connection.send_packed_command([_PACKED])
        self.judge([connection.read_response(disable_decoding=True) for _ in _COMMANDS])
        self.postpone()

    def request(self) -> tuple[bytes, PendingCheck]:
        """Return the bytes to send in front of a batch, and the check that receives the replies."""
        self.postpone()
        return _PACKED, PendingCheck(self)

    def postpone(self) -> None:
        """Make the next check due in `INTERVAL` seconds."""
        self.due = time.monotonic() + INTERVAL

    def judge(self, replies: Sequence[bytes]) -> None:
        """Raise EvictingStore if the replies say that the server evicts keys, or has done so."""
        refuse_eviction(read_info(b"".join(replies)), self._name)


class PendingCheck(Trailer):
    """A check that is in flight in front of a batch. No caller waits for it."""

    __slots__ = ("_check",)

    replies = len(_COMMANDS)

    def __init__(self, check: EvictionCheck) -> None:
        super().__init__([])
        self._check = check

    def take_in(self, replies: list[Any]) -> None:
        """Judge the replies.

        Raises:
            RedisConnectionError: the server evicts keys, or has done so. Requests in flight on this
                connection are repeated on a new one, which is checked before they are sent.
        """
        if any(isinstance(reply, RedisError) for reply in replies):
            self._check.due = 0.0  # for example because the server is busy: check again
            return
        try:
            self._check.judge(replies)
        except EvictingStore as refused:
            raise RedisConnectionError(str(refused)) from refused
