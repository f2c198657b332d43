"""One connection to a server, over which batches of exchanges are sent and their replies read.

Replies find their caller by order alone. So every interruption, even Ctrl-C between two bytes, ends the
connection: no later reply can then go to the wrong caller.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
from redis.connection import AbstractConnection, DefaultParser
from redis.exceptions import AuthenticationError, InvalidResponse, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from percolator_core.errors import PercolatorError
from percolator_core.store.eviction import EvictionCheck
from percolator_core.store.packing import Command
from percolator_core.store.refusals import LOST, as_answer
from percolator_core.store.request import (
    AFTER,
    Acknowledgement,
    Exchange,
    Stamps,
    Trailer,
    interrupted,
    pack,
)

IDLE: Final = 1.0
"""Seconds of silence after which a server may have been replaced: no failover is faster.

A connection that was idle is greeted again: its server may have been a replica for a time, and have missed
timestamps that another server gave out. A server that was cut off or stopped does not know that it has been
replaced. So a reply after a silence counts only if sentinels or other servers confirm the server.
"""

_CHUNK: Final = 1 << 16
"""Bytes of one read from the socket."""

_MORE: Final = object()


class Stream:
    """An open connection that has been greeted.

    redis-py opens it, with TLS and login. Reading replies with redis-py would take longer than the rest of a
    round trip. So this class writes packed commands to the socket, and reads the replies with hiredis. After
    an exception, also after Ctrl-C, a part of a reply may be missing: close the stream.
    """

    __slots__ = ("_buffer", "_gets", "_reader", "connection", "ready", "socket")

    def __init__(self, connection: AbstractConnection) -> None:
        self.connection = connection
        """The connection of redis-py; use it only while no reply is in flight."""
        self.socket: Any = connection._sock  # noqa: SLF001 - redis-py has no public way to it
        """The socket to poll while replies are in flight and none is `ready`."""
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
        """Send packed commands. Raises OSError or RedisTimeoutError if the connection is lost."""
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise RedisTimeoutError("Timeout writing to socket") from None

    def read(self) -> Any:
        """Wait for the next reply and return it, an error reply as a `RedisError`.

        Raises one of `LOST`, also if the server is silent for too long or does not speak the protocol.
        """
        gets = self._gets
        reply = gets()
        while reply is _MORE:
            self._receive()
            reply = gets()
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


class Pipeline:
    """A connection that sends batches of exchanges and reads the replies in the same order."""

    def __init__(
        self,
        connect: Callable[[], Stream],
        timestamps: Callable[[int], bytes],
        greet: Callable[[AbstractConnection], None] | None = None,
        acknowledge: Callable[[bytes], Sequence[Command]] | None = None,
        has_its_place: Callable[[float], bool] | None = None,
        *,
        eviction: EvictionCheck | None = None,
    ) -> None:
        """``connect`` opens a connection; ``timestamps`` packs a request for a number of timestamps.

        ``greet`` greets an open connection again; None if that is not needed. ``acknowledge`` takes the key
        of one durable exchange, and returns the commands that follow all durable exchanges. The last command
        is WAIT or WAITAOF. For a replaceable server, ``has_its_place`` takes a time (`time.monotonic`), and
        returns True if sentinels or other servers have confirmed since then that the server was not replaced.
        ``eviction`` is the regular check that the server evicts no keys.
        """
        self._connect = connect
        self._timestamps = timestamps
        self._greet = greet
        self._acknowledge = acknowledge
        self._has_its_place = has_its_place
        self._eviction = eviction
        self._in_flight: deque[Exchange | Trailer] = deque()
        self._stream: Stream | None = None
        self._used_at = 0.0
        self._heard_at = 0.0
        self._confirmed_at = 0.0
        self._out_of_reach: tuple[float, Exception] | None = None

    def in_flight(self) -> int:
        """Return the number of exchanges and trailers whose replies are still to come."""
        return len(self._in_flight)

    def holds(self, exchange: Exchange) -> bool:
        """Return True if the exchange has been sent and its replies are still to come."""
        return exchange in self._in_flight

    @property
    def socket(self) -> Any:
        """The socket to poll while replies are in flight."""
        assert self._stream is not None
        return self._stream.socket

    def has_reply(self) -> bool:
        """Return True if `receive` would not wait long: bytes of the reply are here, or none are needed."""
        assert self._stream is not None
        ready, entry = self._stream.ready, self._in_flight[0]
        return ready() or (type(entry) is Exchange and len(entry.replies) == len(entry.packed))

    @property
    def silent_for(self) -> float:
        """Seconds since the last bytes were sent or came in."""
        return time.monotonic() - self._used_at

    def run(self, exchange: Exchange) -> None:
        """Send one exchange and wait until this attempt is over. A failure is stored in the exchange."""
        self.send([exchange])
        self.drain()

    def send(self, batch: Sequence[Exchange]) -> None:
        """Send a batch, whose replies `receive` reads."""
        sent = False
        try:
            stream = self._open()
            sent = True
            self._write(stream, batch)
        except LOST as lost:
            if isinstance(lost, AuthenticationError):
                self._lose(interrupted())
                _refuse(batch, lost)
            else:
                self._lose(lost, batch, sent=sent)
        except PercolatorError as refused:  # such as a certificate that one side does not trust
            self._lose(interrupted())
            for exchange in batch:
                exchange.fail(refused)
        except RedisError as refused:  # a reply to the greeting, after which more replies may come
            self._lose(interrupted())
            _refuse(batch, refused)
        except BaseException:
            self._lose(interrupted(), batch, sent=sent)
            raise

    def receive(self) -> None:
        """Read the replies to the oldest exchange in flight, and call its caller back."""
        entry = self._in_flight[0]
        try:
            if type(entry) is Exchange:
                self._collect(entry)
            else:
                entry.take_in([self._reply() for _ in range(entry.replies)])  # type: ignore[arg-type]
            self._in_flight.popleft()
            if not self._in_flight or self._has_its_place is not None:
                self._used_at = self._heard_at = time.monotonic()
        except LOST as lost:
            self._lose(lost)
            return
        except BaseException:
            if not self._in_flight or self._in_flight[0] is not entry:
                self._in_flight.appendleft(entry)
            self._lose(interrupted())
            raise
        if type(entry) is not Exchange:
            entry.answered()  # type: ignore[union-attr]
        elif not entry.awaits or entry.trouble is not None or entry.failure is not None:
            entry.conclude()
        else:
            entry.collected = True

    def receive_buffered(self, has_time: Callable[[], bool]) -> None:
        """Read further replies that have come in, while ``has_time`` returns True."""
        while self._in_flight and has_time() and self.has_reply():
            self.receive()

    def send_unawaited(self, exchange: Exchange) -> None:
        """Send an exchange that may get lost. Its replies are read before those of the next exchange."""
        if self._stream is not None:  # no connection is opened for an exchange that nobody waits for
            self.send([exchange])

    def abandon(self) -> list[Exchange]:
        """Close the connection without a callback; return the exchanges whose attempt was not over."""
        entries, self._in_flight = self._in_flight, deque()
        self.close()
        found = [entry for entry in entries if isinstance(entry, Exchange)]
        for entry in entries:
            if isinstance(entry, Trailer):
                found += entry.current()
        return found

    def drain(self) -> None:
        """Read all replies in flight."""
        while self._in_flight:
            self.receive()

    def close(self) -> None:
        """Close the connection; the next batch opens another one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def leave(self) -> None:
        """Close this process's end of the connection in a forked child: the connection is the parent's."""
        if self._stream is not None:
            self._stream.socket.close()

    def break_off(self, reason: str) -> None:
        """Close the connection to a replaced server; exchanges in flight are sent again elsewhere."""
        self._lose(RedisConnectionError(reason))

    def _open(self) -> Stream:
        now = time.monotonic()
        # While replies are in flight, the check is sent in front of the batch, without a wait.
        check = self._eviction if self._eviction is not None and not self._in_flight else None
        greet = self._greet is not None and now - self._used_at > IDLE
        if self._stream is not None and not greet and (check is None or now < check.due):
            self._used_at = now
            return self._stream
        if self._stream is not None:
            self.drain()  # replies to unawaited exchanges may still be unread
        if self._stream is None:
            self._stream, check = self._new_stream(now), self._eviction
        elif greet:
            assert self._greet is not None
            self._greet(self._stream.connection)
        if check is not None:
            check.run(self._stream.connection)
        self._used_at = self._heard_at = time.monotonic()
        if self._has_its_place is not None:
            self._confirm(self._heard_at)
        return self._stream

    def _new_stream(self, now: float) -> Stream:
        """Open a connection. For some time after an attempt that timed out, raise its error at once instead.

        While a hub connects, all of its tasks wait, also those that need other servers.
        """
        if self._out_of_reach is not None and now < self._out_of_reach[0]:
            raise RedisTimeoutError(str(self._out_of_reach[1]))
        try:
            stream = self._connect()
        except RedisTimeoutError as silent:
            over = time.monotonic()
            self._out_of_reach = (over + (over - now), silent)
            raise
        self._out_of_reach = None
        return stream

    def _confirm(self, since: float) -> None:
        """Raise unless it was confirmed after ``since`` that the server was not replaced."""
        assert self._has_its_place is not None
        if not self._has_its_place(since):
            raise RedisConnectionError("another server has taken its place")
        self._confirmed_at = since

    def _write(self, stream: Stream, batch: Sequence[Exchange]) -> None:
        before: list[Exchange] = []
        after: list[Exchange] = []
        durable: list[Exchange] = []
        packed: list[bytes] = []
        for exchange in batch:
            packed += exchange.begin(self)
            if exchange.stamp:
                if exchange.stamp >= AFTER:
                    after.append(exchange)
                elif not exchange.timestamp:
                    before.append(exchange)
            if exchange.durable and exchange.acknowledged is None:
                durable.append(exchange)
        if before:
            packed.insert(0, self._timestamps(len(before)))
        trailers: list[Trailer] = []
        if durable:
            assert self._acknowledge is not None
            requests = self._acknowledge(durable[0].key)
            packed += [pack(request) for request in requests]
            trailers.append(Acknowledgement(durable, len(requests)))
        if after:
            packed.append(self._timestamps(len(after)))
        # This list is in the order of the replies.
        stamps: list[Trailer] = [Stamps(before)] if before else []
        if self._eviction is not None and self._used_at >= self._eviction.due:
            request, check = self._eviction.request()
            packed.insert(0, request)
            stamps.insert(0, check)
        stream.send(b"".join(packed))
        trailers += [Stamps(after)] if after else []
        self._in_flight += [*stamps, *batch, *trailers]

    def _collect(self, exchange: Exchange) -> None:
        replies = exchange.replies
        left = len(exchange.packed) - len(replies)
        # True already here if the timestamp in front of the commands was refused.
        refused = exchange.trouble is not None or exchange.failure is not None
        stream = self._stream
        assert stream is not None
        while left:
            left -= 1
            reply = stream.read() if self._has_its_place is None else self._reply()
            if refused:
                continue
            if isinstance(reply, RedisError):
                exchange.refuse(as_answer(reply))
                refused = True
            else:
                replies.append(reply)

    def _reply(self) -> Any:
        """Read the next reply, or error, from a server that was not replaced."""
        assert self._stream is not None
        reply = self._stream.read()
        if self._has_its_place is not None:
            now = time.monotonic()
            if now - self._heard_at > IDLE:
                self._confirm(now)
            elif now - self._confirmed_at > IDLE:
                self._confirm(now - IDLE)  # a healthy server may be replaced while it answers
        return reply

    def _lose(self, lost: Exception, unsent: Sequence[Exchange] = (), *, sent: bool = False) -> None:
        """Close a lost connection and break off all exchanges in flight, so that they are sent again.

        ``unsent`` is the current batch, broken off too; ``sent`` is True if a part of it may have been sent.
        """
        entries, self._in_flight = self._in_flight, deque()
        self.close()
        for entry in entries:
            if isinstance(entry, Exchange):
                entry.break_off(lost, sent=True)
        # An exchange that waits only for a trailer's reply is not in flight itself.
        for entry in entries:
            if isinstance(entry, Trailer):
                for exchange in entry.current():
                    exchange.break_off(lost, sent=True)
        broken_off = {id(entry) for entry in entries}
        for exchange in unsent:
            if id(exchange) not in broken_off:
                exchange.break_off(lost, sent=sent)


def _refuse(batch: Sequence[Exchange], error: RedisError) -> None:
    for exchange in batch:
        exchange.refuse(error)
        exchange.conclude()
