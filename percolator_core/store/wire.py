"""One connection to a server, and what goes over it.

An `Exchange` is what one caller sends at once: commands in order, answered in order. Every command that
this library sends may be sent twice without harm, so an exchange that breaks off is simply continued from
the first command whose reply is missing. Order matters inside an exchange (a read must not run before the
timestamp in front of it), so continuing means repeating everything behind that command too.

Replies find their caller by order alone. So whatever interrupts a conversation, be it Ctrl-C between two
bytes, ends the connection: no later reply can then go to the wrong caller.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from hiredis import pack_command
from redis.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    MaxConnectionsError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from percolator_core.errors import PercolatorError, StoreUnavailable

Command: TypeAlias = Sequence[bytes | str | int]

NONE: Final = 0
BEFORE: Final = 1
AFTER: Final = 2

LOST: Final = (RedisConnectionError, RedisTimeoutError, InvalidResponse, OSError)
"""The connection broke: whatever was not answered may or may not have been executed."""

_NOT_EXECUTED: Final = (NoScriptError, BusyLoadingError, ReadOnlyError, MaxConnectionsError)
_NOT_EXECUTED_WORDS: Final = ("BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY")


class Exchange:
    """Commands sent together by one caller, and their replies so far.

    ``stamp`` asks for a timestamp too: `BEFORE` the commands (the snapshot of what they read) or `AFTER`
    them (the commit timestamp of what they prewrote). The exchanges of one batch share one request to the
    oracle.
    """

    __slots__ = (
        "awaits",
        "caller",
        "deadline",
        "executed_maybe",
        "failure",
        "missing_script",
        "on_done",
        "packed",
        "replies",
        "stamp",
        "timestamp",
        "trouble",
    )

    def __init__(
        self,
        commands: Sequence[Command],
        stamp: int = NONE,
        on_done: Callable[[Exchange], None] | None = None,
    ) -> None:
        # Packed here, so that what cannot be packed fails its caller and not a batch of many callers.
        self.packed = [pack_command(command) for command in commands]  # type: ignore[arg-type]
        self.stamp = stamp
        self.on_done = on_done
        self.caller: Any = None
        """Whom ``on_done`` is to tell."""
        self.replies: list[Any] = []
        self.timestamp = 0
        self.awaits: _Stamps | None = None
        """The request that will bring this attempt's timestamp."""
        self.failure: Exception | None = None
        """A reply that no repetition mends."""
        self.trouble: Exception | None = None
        """Why the exchange broke off before its end; None while there is nothing to repeat."""
        self.missing_script = False
        self.executed_maybe = False
        """Whether the connection broke after the commands had been sent."""
        self.deadline = 0.0

    @property
    def done(self) -> bool:
        """Whether every command is answered, or one answer ends the matter."""
        if self.failure is not None:
            return True
        return len(self.replies) == len(self.packed) and (self.timestamp > 0 or self.stamp == NONE)

    def remaining(self) -> Sequence[bytes]:
        """The commands that still have to be sent."""
        return self.packed[len(self.replies) :] if self.replies else self.packed

    def conclude(self) -> None:
        """All replies of this attempt are in, such as they are."""
        if self.trouble is not None:
            self.break_off(self.trouble, sent=False)
        else:
            self._finish()

    def break_off(self, trouble: Exception, *, sent: bool) -> None:
        """This attempt failed; what was not answered has to be sent again."""
        self.trouble = trouble
        self.executed_maybe = self.executed_maybe or sent
        if self.stamp == AFTER:
            self.timestamp = 0  # a command is yet to be executed, and the timestamp must come behind it
        elif self.stamp == BEFORE and not self.timestamp:
            self.replies.clear()  # they were read at no known time
        self._finish()

    def fail(self, failure: Exception) -> None:
        """This attempt failed, and another one would too."""
        self.failure = failure
        self._finish()

    def _finish(self) -> None:
        """Tell the caller that this attempt is over."""
        self.awaits = None
        if self.on_done is not None:
            self.on_done(self)

    def result(self) -> list[Any]:
        """The replies; raises the error that ended the exchange."""
        if self.failure is not None:
            if isinstance(self.failure, StoreUnavailable):
                self.failure.executed_maybe = self.executed_maybe
            raise self.failure
        return self.replies

    def must_give_up(self, patience: float) -> bool:
        """Whether trouble has lasted longer than ``patience`` seconds; if so the exchange has failed."""
        now = time.monotonic()
        if not self.deadline:
            self.deadline = now + patience
        if now < self.deadline:
            return False
        self.failure = StoreUnavailable(
            f"the store did not answer for {patience:g} s ({self.trouble}): "
            "check that it runs and can be reached"
        )
        return True


class _Stamps:
    """One request to the oracle, for all exchanges of a batch that want a timestamp at the same end."""

    __slots__ = ("exchanges",)

    def __init__(self, exchanges: list[Exchange]) -> None:
        self.exchanges = exchanges
        for exchange in exchanges:
            exchange.awaits = self


class Wire:
    """A connection over which exchanges flow: batches out, replies in, in the same order."""

    def __init__(
        self, connect: Callable[[], AbstractConnection], timestamps: Callable[[int], Command]
    ) -> None:
        """``connect`` opens a connection; ``timestamps`` makes the request for a number of timestamps."""
        self._connect = connect
        self._timestamps = timestamps
        self._in_flight: deque[Exchange | _Stamps] = deque()
        self._connection: AbstractConnection | None = None

    @property
    def in_flight(self) -> int:
        """Replies that are still to come, counted in exchanges."""
        return len(self._in_flight)

    def run(self, exchange: Exchange) -> None:
        """Send one exchange and wait until this attempt is over. Failures are noted in it, not raised."""
        self.send([exchange])
        self.drain()

    def send(self, batch: Sequence[Exchange]) -> None:
        """Send a batch. Replies are taken in by `receive`."""
        sent = False
        try:
            if self._connection is None:
                self._connection = self._connect()
            sent = True
            self._write(self._connection, batch)
        except AuthenticationError as refused:
            for exchange in batch:
                exchange.fail(
                    StoreUnavailable(f"the store refuses the login ({refused}): check user and password")
                )
        except LOST as lost:
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
            if isinstance(entry, _Stamps):
                self._collect_stamps(entry)
            else:
                self._collect(entry)
            self._in_flight.popleft()
        except LOST as lost:
            self._lose(lost)
            return
        except BaseException:
            if not self._in_flight or self._in_flight[0] is not entry:
                self._in_flight.appendleft(entry)
            self._lose(_interrupted())
            raise
        if isinstance(entry, _Stamps):
            for exchange in entry.exchanges:
                if exchange.stamp == AFTER and exchange.awaits is entry:
                    exchange.conclude()
        elif entry.stamp != AFTER or entry.trouble is not None or entry.failure is not None:
            entry.conclude()

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

    def _write(self, connection: AbstractConnection, batch: Sequence[Exchange]) -> None:
        before = [exchange for exchange in batch if exchange.stamp == BEFORE and not exchange.timestamp]
        after = [exchange for exchange in batch if exchange.stamp == AFTER]
        packed: list[bytes] = [self._packed_request(before)] if before else []
        for exchange in batch:
            exchange.trouble = None
            packed += exchange.remaining()
        if after:
            packed.append(self._packed_request(after))
        connection.send_packed_command([b"".join(packed)], check_health=False)
        if before:
            self._in_flight.append(_Stamps(before))
        self._in_flight.extend(batch)
        if after:
            self._in_flight.append(_Stamps(after))

    def _packed_request(self, exchanges: Sequence[Exchange]) -> bytes:
        packed: bytes = pack_command(self._timestamps(len(exchanges)))  # type: ignore[arg-type]
        return packed

    def _collect(self, exchange: Exchange) -> None:
        for _ in range(len(exchange.packed) - len(exchange.replies)):
            reply = self._reply()
            if exchange.trouble is not None or exchange.failure is not None:
                continue
            if isinstance(reply, RedisError):
                _judge(exchange, reply)
            else:
                exchange.replies.append(reply)

    def _collect_stamps(self, stamps: _Stamps) -> None:
        reply = self._reply()
        if isinstance(reply, RedisError):
            for exchange in stamps.exchanges:
                if exchange.awaits is stamps:
                    _judge(exchange, reply)
            return
        timestamp = reply - len(stamps.exchanges)
        for exchange in stamps.exchanges:
            timestamp += 1
            # One that broke off meanwhile may be under way again: it must not take the old attempt's
            # timestamp.
            if exchange.awaits is stamps:
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
            if isinstance(entry, _Stamps):
                for exchange in entry.exchanges:
                    if exchange.awaits is entry:
                        exchange.break_off(lost, sent=True)
        for exchange in unsent:
            if exchange.trouble is not lost:
                exchange.break_off(lost, sent=sent)


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
    elif text.startswith("NOPERM") or "permissions" in text:
        exchange.failure = PercolatorError(
            f"the store's user may not do this ({text}): allow it in the server's access rules (ACL)"
        )
    else:
        exchange.failure = PercolatorError(f"the store answered: {text}")
