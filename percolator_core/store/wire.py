"""One connection to a server, and what goes over it.

Replies find their caller by order alone. So whatever interrupts a conversation, be it Ctrl-C between two
bytes, ends the connection: no later reply can then go to the wrong caller.
"""

from __future__ import annotations

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
    ClusterDownError,
    InvalidResponse,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from percolator_core.errors import PercolatorError, StoreUnavailable
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

_NOT_EXECUTED: Final = (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MaxConnectionsError,
    NoScriptError,
    ReadOnlyError,
    TryAgainError,
)
"""A cluster's MOVED is an `AskError` too, and MASTERDOWN a `ClusterDownError`."""

_FORBIDDEN: Final = ("NOPERM", "permissions", "The user executing the script can't")

_NOT_EXECUTED_WORDS: Final = (
    *("BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS"),
)

_DEMOTED_WORDS: Final = (
    "UNBLOCKED",
    "WAIT cannot be used with replica",
    "WAITAOF cannot be used with replica",
)
"""What a master says that became a replica while it waited for its own."""

IDLE: Final = 1.0
"""Seconds of silence after which a server may have lost its place: nothing fails over faster.

A connection that was idle is greeted again, for its server may have been a replica meanwhile, and have missed
timestamps that another one gave out. And a server that was cut off, or stopped, does not know at first that
it has been replaced: what it says after a silence counts only when others say that it still has its place.
"""


class Wire:
    """A connection over which exchanges flow: batches out, replies in, in the same order."""

    def __init__(
        self,
        connect: Callable[[], AbstractConnection],
        timestamps: Callable[[int], Command],
        greet: Callable[[AbstractConnection], None] | None = None,
        acknowledge: Callable[[bytes], Sequence[Command]] | None = None,
        has_its_place: Callable[[float], bool] | None = None,
    ) -> None:
        """``connect`` opens a connection; ``timestamps`` makes the request for a number of timestamps.

        ``greet`` greets an open connection again, where it makes a difference. ``acknowledge`` makes the
        commands behind durable exchanges, for the key of one of them: WAIT or WAITAOF is the last.
        ``has_its_place``, where the server can be replaced by another one, tells whether others said since a
        time (`time.monotonic`) that it has not been.
        """
        self._connect = connect
        self._timestamps = timestamps
        self._greet = greet
        self._acknowledge = acknowledge
        self._has_its_place = has_its_place
        self._in_flight: deque[Exchange | Trailer] = deque()
        self._connection: AbstractConnection | None = None
        self._used_at = 0.0
        self._heard_at = 0.0
        self._confirmed_at = 0.0
        self._out_of_reach: tuple[float, Exception] | None = None

    @property
    def in_flight(self) -> int:
        """Replies that are still to come, counted in exchanges."""
        return len(self._in_flight)

    def holds(self, exchange: Exchange) -> bool:
        """Whether the exchange has been sent, and its replies are still to come."""
        return exchange in self._in_flight

    @property
    def socket(self) -> Any:
        """What to poll while replies are in flight."""
        # redis-py has no public way to wait on several connections at once.
        assert self._connection is not None
        return self._connection._sock  # noqa: SLF001

    @property
    def buffered(self) -> bool:
        """Whether `receive` would not wait: it has the bytes, or needs none, or the connection has ended."""
        assert self._connection is not None
        entry = self._in_flight[0]
        if isinstance(entry, Exchange) and len(entry.replies) == len(entry.packed):
            return True
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
        except LOST as lost:
            if isinstance(lost, AuthenticationError):
                _refuse(batch, lost)
            else:
                self._lose(lost, batch, sent=sent)
        except PercolatorError as refused:  # such as a certificate that one side does not trust
            self._lose(_interrupted())
            for exchange in batch:
                exchange.fail(refused)
        except RedisError as refused:  # in answer to the greeting
            _refuse(batch, refused)
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
            if not self._in_flight or self._has_its_place is not None:
                self._used_at = self._heard_at = time.monotonic()
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
        else:
            entry.answered()

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
        if self._connection is not None and (self._greet is None or now - self._used_at <= IDLE):
            self._used_at = now
            return self._connection
        if self._connection is not None:
            self.drain()  # answers that nobody waited for may lie there since the last use
        if self._connection is None:
            self._connection = self._dial(now)
        elif self._greet is not None:
            self._greet(self._connection)
        self._used_at = self._heard_at = time.monotonic()
        if self._has_its_place is not None:
            self._confirm(self._heard_at)
        return self._connection

    def _dial(self, now: float) -> AbstractConnection:
        """A new connection, unless the last try has only just run into its time limit.

        A hub serves many servers, and all of its tasks wait while it dials.
        """
        if self._out_of_reach is not None and now < self._out_of_reach[0]:
            raise self._out_of_reach[1]
        try:
            connection = self._connect()
        except RedisTimeoutError as silent:
            over = time.monotonic()
            self._out_of_reach = (over + (over - now), silent)
            raise
        self._out_of_reach = None
        return connection

    def _confirm(self, since: float) -> None:
        """Raises unless others said after ``since`` that the server has its place."""
        assert self._has_its_place is not None
        if not self._has_its_place(since):
            raise RedisConnectionError("another server has taken its place")
        self._confirmed_at = since

    def _write(self, connection: AbstractConnection, batch: Sequence[Exchange]) -> None:
        before: list[Exchange] = []
        after: list[Exchange] = []
        durable: list[Exchange] = []
        packed: list[bytes] = []
        for exchange in batch:
            exchange.begin(self)
            packed += exchange.remaining()
            if exchange.stamp == AFTER:
                after.append(exchange)
            elif exchange.stamp == BEFORE and not exchange.timestamp:
                before.append(exchange)
            if exchange.durable and exchange.acknowledged is None:
                durable.append(exchange)
        if before:
            packed.insert(0, self._packed_request(before))
        trailers: list[Trailer] = []
        if durable:
            assert self._acknowledge is not None
            requests = self._acknowledge(durable[0].key)
            packed += [pack_command(request) for request in requests]  # type: ignore[arg-type]
            trailers.append(Acknowledgement(durable, len(requests)))
        if after:
            packed.append(self._packed_request(after))
        connection.send_packed_command([b"".join(packed)], check_health=False)
        # In the order of the replies.
        stamps = [Stamps(before)] if before else []
        trailers += [Stamps(after)] if after else []
        self._in_flight += [*stamps, *batch, *trailers]

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
        if isinstance(trailer, Acknowledgement):
            for _ in range(trailer.replies - 1):
                last = self._reply()
                reply = reply if isinstance(reply, RedisError) else last
        if isinstance(reply, RedisError):
            for exchange in trailer.current():
                _judge(exchange, reply)
                if isinstance(trailer, Acknowledgement):
                    # What it was to speak for has been executed. A master that becomes a replica answers so.
                    exchange.executed_maybe = True
        elif isinstance(trailer, Acknowledgement):
            # WAIT counts replicas, WAITAOF the disk and replicas.
            for exchange in trailer.current():
                exchange.acknowledged = (0, reply) if isinstance(reply, int) else (reply[0], reply[1])
        else:
            timestamp = reply - len(trailer.exchanges)
            for exchange in trailer.exchanges:
                timestamp += 1
                if trailer in exchange.awaits:
                    exchange.timestamp = timestamp

    def _reply(self) -> Any:
        assert self._connection is not None
        reply: Any
        try:
            reply = self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except (ResponseError, AuthenticationError, BusyLoadingError) as error:
            reply = error
        if self._has_its_place is not None:
            now = time.monotonic()
            if now - self._heard_at > IDLE:
                self._confirm(now)
            elif now - self._confirmed_at > IDLE:
                self._confirm(now - IDLE)  # one that is replaced in good health does not fall silent
        return reply

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


def _interrupted() -> Exception:
    return RedisConnectionError("the conversation was interrupted")


def _refuse(batch: Sequence[Exchange], error: RedisError) -> None:
    for exchange in batch:
        _judge(exchange, error)
        exchange.conclude()


def is_read_only(error: RedisError) -> bool:
    """Whether a replica refused to write; Redis 6.2 wraps the refusal in words of its own."""
    return isinstance(error, ReadOnlyError) or "-READONLY" in str(error)


def _judge(exchange: Exchange, error: RedisError) -> None:
    """Decide what an error reply means for its exchange."""
    text = str(error)
    if (
        isinstance(error, _NOT_EXECUTED)
        or text.startswith((*_NOT_EXECUTED_WORDS, *_DEMOTED_WORDS))
        or is_read_only(error)
    ):
        exchange.trouble = error
        exchange.missing_script = isinstance(error, NoScriptError)
    elif isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        exchange.failure = StoreUnavailable(
            "the store is out of memory and refuses writes: "
            "raise maxmemory, or collect garbage and drop tables"
        )
    elif text.startswith("MISCONF"):
        exchange.failure = StoreUnavailable(f"the store refuses writes ({text}): mend its disk")
    elif isinstance(error, AuthenticationError):
        exchange.failure = StoreUnavailable(f"the store refuses the login ({text}): check user and password")
    elif isinstance(error, NoPermissionError) or any(words in text for words in _FORBIDDEN):
        exchange.failure = PercolatorError(
            f"the store's user may not do this ({text}): allow it in the server's access rules (ACL); "
            "ACL LOG names the command"
        )
    else:
        exchange.failure = PercolatorError(f"the store answered: {text}")
