"""One connection to a server, and what goes over it.

Replies find their caller by order alone. So whatever interrupts a conversation, be it Ctrl-C between two
bytes, ends the connection: no later reply can then go to the wrong caller.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from hiredis import pack_command
from redis.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.store.exchange import (
    AFTER,
    BEFORE,
    Acknowledgement,
    Command,
    Exchange,
    Stamps,
    Trailer,
)

LOST: Final = (RedisConnectionError, RedisTimeoutError, InvalidResponse, OSError)
"""The connection broke: whatever was not answered may or may not have been executed."""

_NOT_EXECUTED: Final = (AskError, BusyLoadingError, MaxConnectionsError, NoScriptError, ReadOnlyError)
"""A cluster's MOVED is an `AskError` too."""

_NOT_EXECUTED_WORDS: Final = ("BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY")

IDLE: Final = 1.0
"""Seconds after which a connection is greeted again: meanwhile its server may have been a replica, and have
missed timestamps that another one gave out."""


class Wire:
    """A connection over which exchanges flow: batches out, replies in, in the same order."""

    def __init__(
        self,
        connect: Callable[[], AbstractConnection],
        timestamps: Callable[[int], Command],
        greet: Callable[[AbstractConnection], None] | None = None,
        acknowledge: Command | None = None,
    ) -> None:
        """``connect`` opens a connection; ``timestamps`` makes the request for a number of timestamps.

        ``greet`` greets an open connection again, where it makes a difference. ``acknowledge`` is the command
        behind durable exchanges: WAIT or WAITAOF.
        """
        self._connect = connect
        self._timestamps = timestamps
        self._greet = greet
        self._acknowledge = acknowledge
        self._in_flight: deque[Exchange | Trailer] = deque()
        self._connection: AbstractConnection | None = None
        self._used_at = 0.0

    @property
    def in_flight(self) -> int:
        """Replies that are still to come, counted in exchanges."""
        return len(self._in_flight)

    @property
    def socket(self) -> Any:
        """What to poll while replies are in flight."""
        # redis-py has no public way to wait on several connections at once.
        assert self._connection is not None
        return self._connection._sock  # noqa: SLF001

    @property
    def buffered(self) -> bool:
        """Whether something can be read: bytes that were taken in already, or the end of the connection."""
        assert self._connection is not None
        try:
            return self._connection.can_read(0)
        except LOST:
            return True

    @property
    def silent_for(self) -> float:
        """Seconds since anything was sent or came in."""
        return time.monotonic() - self._used_at

    def run(self, exchange: Exchange) -> None:
        """Send one exchange and wait until this attempt is over. Failures are noted in it, not raised."""
        self.send([exchange])
        self.drain()

    def send(self, batch: Sequence[Exchange]) -> None:
        """Send a batch. Replies are taken in by `receive`."""
        sent = False
        try:
            connection = self._open()
            sent = True
            self._write(connection, batch)
        except AuthenticationError as refused:
            for exchange in batch:
                exchange.fail(
                    StoreUnavailable(f"the store refuses the login ({refused}): check user and password")
                )
        except LOST as lost:
            if (distrust := _distrusted(lost)) is not None:
                for exchange in batch:
                    exchange.fail(distrust)
            else:
                self._lose(lost, batch, sent=sent)
        except RedisError as refused:  # in answer to the greeting
            for exchange in batch:
                _judge(exchange, refused)
                exchange.conclude()
        except BaseException:
            self._lose(_interrupted(), batch, sent=sent)
            raise

    def receive(self) -> None:
        """Take in the replies to the oldest exchange in flight, and tell its caller."""
        entry = self._in_flight[0]
        try:
            if isinstance(entry, Exchange):
                self._collect(entry)
            else:
                self._collect_trailer(entry)
            self._in_flight.popleft()
            self._used_at = time.monotonic()
        except LOST as lost:
            self._lose(lost)
            return
        except BaseException:
            if not self._in_flight or self._in_flight[0] is not entry:
                self._in_flight.appendleft(entry)
            self._lose(_interrupted())
            raise
        if isinstance(entry, Exchange):
            entry.collected = True
            if not entry.awaits or entry.trouble is not None or entry.failure is not None:
                entry.conclude()
            return
        for exchange in entry.current():
            exchange.awaits.remove(entry)
            if exchange.collected and not exchange.awaits:
                exchange.conclude()

    def send_unawaited(self, exchange: Exchange) -> None:
        """Send now; its replies are taken in before those of the next exchange. It may get lost."""
        if self._connection is not None:  # a new one is no place to start with work that nobody waits for
            self.send([exchange])

    def drain(self) -> None:
        """Take in everything in flight."""
        while self._in_flight:
            self.receive()

    def close(self) -> None:
        """Drop the connection; another one comes with the next batch."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def break_off(self, reason: str) -> None:
        """Hang up on a server that is no longer the right one; what is in flight is sent again elsewhere."""
        self._lose(RedisConnectionError(reason))

    def _open(self) -> AbstractConnection:
        now = time.monotonic()
        if self._connection is None:
            self._connection = self._connect()
        elif self._greet is not None and not self._in_flight and now - self._used_at > IDLE:
            self._greet(self._connection)
        self._used_at = now
        return self._connection

    def _write(self, connection: AbstractConnection, batch: Sequence[Exchange]) -> None:
        for exchange in batch:
            exchange.trouble, exchange.collected, exchange.wire = None, False, self
        before = [exchange for exchange in batch if exchange.stamp == BEFORE and not exchange.timestamp]
        after = [exchange for exchange in batch if exchange.stamp == AFTER]
        durable = [exchange for exchange in batch if exchange.durable]
        packed: list[bytes] = [self._packed_request(before)] if before else []
        for exchange in batch:
            packed += exchange.remaining()
        if durable:
            assert self._acknowledge is not None
            packed.append(pack_command(self._acknowledge))  # type: ignore[arg-type]
        if after:
            packed.append(self._packed_request(after))
        connection.send_packed_command([b"".join(packed)], check_health=False)
        if before:
            self._in_flight.append(Stamps(before))
        self._in_flight.extend(batch)
        if durable:
            self._in_flight.append(Acknowledgement(durable))
        if after:
            self._in_flight.append(Stamps(after))

    def _packed_request(self, exchanges: Sequence[Exchange]) -> bytes:
        packed: bytes = pack_command(self._timestamps(len(exchanges)))  # type: ignore[arg-type]
        return packed

    def _collect(self, exchange: Exchange) -> None:
        missing = len(exchange.packed) - len(exchange.replies)
        for _ in range(missing):
            reply = self._reply()
            if exchange.trouble is not None or exchange.failure is not None:
                continue
            if isinstance(reply, RedisError):
                _judge(exchange, reply)
            else:
                exchange.replies.append(reply)

    def _collect_trailer(self, trailer: Trailer) -> None:
        reply = self._reply()
        current = trailer.current()
        if isinstance(reply, RedisError):
            for exchange in current:
                _judge(exchange, reply)
        elif isinstance(trailer, Acknowledgement):
            # WAIT counts replicas, WAITAOF the disk and replicas.
            for exchange in current:
                exchange.acknowledged = (0, reply) if isinstance(reply, int) else (reply[0], reply[1])
        else:
            timestamp = reply - len(trailer.exchanges)
            for exchange in trailer.exchanges:
                timestamp += 1
                if trailer in exchange.awaits:
                    exchange.timestamp = timestamp

    def _reply(self) -> Any:
        assert self._connection is not None
        try:
            return self._connection.read_response(disable_decoding=True)
        except AuthenticationError as error:
            return error
        except ResponseError as error:
            return error

    def _lose(self, lost: Exception, unsent: Sequence[Exchange] = (), *, sent: bool = False) -> None:
        """The connection broke: everything in flight has to be sent again.

        So has ``unsent``, a batch that was about to follow and of which a part may have been ``sent``.
        """
        entries, self._in_flight = self._in_flight, deque()
        self.close()
        for entry in entries:
            if isinstance(entry, Exchange):
                entry.break_off(lost, sent=True)
        # An exchange that is answered, but for its timestamp, stands in no entry of its own any more.
        for entry in entries:
            if isinstance(entry, Trailer):
                for exchange in entry.current():
                    exchange.break_off(lost, sent=True)
        for exchange in unsent:
            if exchange.trouble is not lost:
                exchange.break_off(lost, sent=sent)


def _distrusted(lost: BaseException | None) -> ConfigurationError | None:
    """What to tell when a connection broke because a certificate is not trusted; None when not so."""
    while lost is not None:
        if isinstance(lost, ssl.SSLCertVerificationError):
            return ConfigurationError(
                f"the store's certificate is not trusted ({lost.verify_message}): "
                "name its authority with ?ssl_ca_certs=FILE, and connect by the host name it was made for"
            )
        lost = lost.__cause__ or lost.__context__
    return None


def _interrupted() -> Exception:
    return RedisConnectionError("the conversation was interrupted")


def is_read_only(error: RedisError) -> bool:
    """Whether a replica refused to write; Redis 6.2 wraps the refusal in words of its own."""
    return isinstance(error, ReadOnlyError) or "-READONLY" in str(error)


def _judge(exchange: Exchange, error: RedisError) -> None:
    """Decide what an error reply means for its exchange."""
    text = str(error)
    if isinstance(error, _NOT_EXECUTED) or text.startswith(_NOT_EXECUTED_WORDS) or is_read_only(error):
        exchange.trouble = error
        exchange.missing_script = isinstance(error, NoScriptError)
    elif isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        exchange.failure = StoreUnavailable(
            "the store is out of memory and refuses writes: "
            "raise maxmemory, or collect garbage and drop tables"
        )
    elif text.startswith(("MISCONF", "NOREPLICAS")):
        exchange.failure = StoreUnavailable(
            f"the store refuses writes ({text}): mend its disk or its replicas"
        )
    elif isinstance(error, AuthenticationError):
        exchange.failure = StoreUnavailable(f"the store refuses the login ({text}): check user and password")
    elif isinstance(error, NoPermissionError) or text.startswith("NOPERM") or "permissions" in text:
        exchange.failure = PercolatorError(
            f"the store's user may not do this ({text}): allow it in the server's access rules (ACL)"
        )
    else:
        exchange.failure = PercolatorError(f"the store answered: {text}")
