"""The bytes of one connection: commands out, replies in.

redis-py opens the connection, with TLS and login, and greets the server. After that, pipelines are packed
already and replies need no decoding. To read them by redis-py would take more time than all the rest of a
round trip, so they are written to the socket and read by hiredis directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hiredis
from redis.connection import AbstractConnection, DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError

_CHUNK: Final = 1 << 16
"""Bytes of one read from the socket."""

_MORE: Final = object()


class Stream:
    """An open connection that has been greeted.

    After an exception, also after Ctrl-C, a part of a reply may be missing: close the stream.
    """

    __slots__ = ("_buffer", "_gets", "_reader", "connection", "ready", "socket")

    def __init__(self, connection: AbstractConnection) -> None:
        self.connection = connection
        """The connection of redis-py; use it only while no reply is owed."""
        self.socket: Any = connection._sock  # noqa: SLF001 - redis-py has no public way to it
        """The socket to poll while replies are owed and none is `ready`."""
        self._buffer = bytearray(_CHUNK)
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=_MORE
        )
        self._gets = self._reader.gets
        self.ready: Callable[[], bool] = self._reader.has_data
        """Returns True if bytes of a reply have arrived already."""
        if hasattr(self.socket, "pending"):
            self.ready = self._ready_with_tls

    def send(self, data: bytes) -> None:
        """Send packed commands.

        Raises:
            OSError, RedisTimeoutError: the connection was lost, or the server does not read.
        """
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise RedisTimeoutError("Timeout writing to socket") from None

    def read(self) -> Any:
        """Wait for the next reply and return it; an error reply is returned as a `RedisError`.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError, InvalidResponse: the connection was lost, the
            server was silent for too long, or does not speak the protocol.
        """
        reply = self._gets()
        while reply is _MORE:
            self._receive()
            reply = self._gets()
        return reply

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.disconnect()
        finally:
            self.socket.close()  # also if Ctrl-C comes in between

    def _ready_with_tls(self) -> bool:
        return self._reader.has_data() or self.socket.pending() > 0

    def _receive(self) -> None:
        try:
            length = self.socket.recv_into(self._buffer)
        except TimeoutError:
            raise RedisTimeoutError("Timeout reading from socket") from None
        if not length:
            raise RedisConnectionError("Connection closed by server.")
        self._reader.feed(self._buffer, 0, length)  # type: ignore[arg-type]  # it takes any buffer
