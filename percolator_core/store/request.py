"""An exchange: the commands that one caller sends together, and the replies so far.

Every command of this library may be sent twice without harm. So an exchange that broke off is continued from
the first command whose reply is missing. The order inside an exchange matters (a read must not run before the
timestamp in front of it), so all later commands are repeated too.

An attempt ends with `conclude`, `break_off` or `fail`, each of which notifies the caller. Then the exchange
is `done`, or has a ``trouble`` to repair, after which another attempt may begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis.exceptions import AskError, MovedError, NoScriptError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.store.packing import Command, first_key
from percolator_core.store.refusals import as_answer, judge

if TYPE_CHECKING:
    from percolator_core.store.pipeline import Pipeline

NONE: Final = 0
BEFORE: Final = 1
AFTER: Final = 2
SPARE: Final = 3
"""Like `AFTER`, but optional: the commands are not sent again only because the timestamp is missing."""

_REDIRECTIONS: Final = 3
"""Limit of redirections without a pause in between. Servers that disagree could redirect without end."""


_SHORT: Final = 1024
_LENGTHS: Final = tuple(b"\r\n$%d\r\n" % length for length in range(_SHORT))
"""The bytes in front of a part that is shorter than `_SHORT`, by its length."""


def pack(command: Sequence[bytes | str | int]) -> bytes:
    """Return the bytes of a command. Raises ValueError for no parts, TypeError for a part of another type.

    hiredis would take longer, and crash if a signal handler raised while it formats a number.
    """
    if not command:
        raise ValueError("a command needs at least one part")  # the server would not reply to it
    packed = [b"*%d" % len(command)]
    for part in command:
        if type(part) is not bytes:
            part = b"%d" % part if type(part) is int else _as_bytes(part)  # noqa: PLW2901
        length = len(part)
        packed.append(_LENGTHS[length] if length < _SHORT else b"\r\n$%d\r\n" % length)
        packed.append(part)
    packed.append(b"\r\n")
    return b"".join(packed)


def _as_bytes(part: object) -> bytes:
    """Return a part of a command as plain bytes. Raises TypeError for a part of another type."""
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, int):
        return b"%d" % part
    if isinstance(part, float):
        return repr(float(part)).encode()
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(memoryview(part))
    raise TypeError(f"a part of a command is bytes, text or a number, not {type(part).__name__}")


class Exchange:
    """Commands sent together by one caller to one slot, and their replies so far.

    ``stamp`` says if a timestamp is requested too. `BEFORE`: it is given out before the commands run, and is
    the snapshot of their reads. `AFTER`: it is given out after they have run, and is the commit timestamp of
    their prewrites. `SPARE` is an optional `AFTER`. In one batch, all exchanges with `BEFORE` share one
    request to the oracle, and all exchanges with `AFTER` or `SPARE` share another request. With ``durable``,
    replicas and the disk acknowledge the writes of the commands.
    """

    # Attributes that few exchanges set have their default here, which costs the other exchanges nothing.
    key = b""
    """A key of the tablet to which a durable exchange writes; the tablet's server must acknowledge."""
    timestamp = 0
    epoch: bytes | None = None
    """The catalog's epoch at the timestamp; None before the first change of the catalog."""
    acknowledged: tuple[int, int] | None = None
    """How many disks (0 or 1) and replicas have the writes; None if not known yet."""
    collected = False
    """True if the replies of this attempt are in."""
    missing_script = False
    redirections = 0
    """The number of redirections to another server."""
    executed_maybe = False
    """True if an attempt without a reply may have executed the commands."""
    troubled_since = 0.0
    """The time when an attempt first broke off (`time.monotonic`); 0 if none has."""

    def __init__(
        self,
        commands: Sequence[Command],
        stamp: int = NONE,
        slot: int = 0,
        durable: bool = False,
    ) -> None:
        # Packed here, so that a command that cannot be packed fails its caller, not a batch of many callers.
        self.packed: list[bytes] = []
        for command in commands:
            self.packed.append(command if type(command) is bytes else pack(command))
        self.stamp = stamp
        self.slot = slot
        """The slot of a cluster to which the commands go."""
        self.durable = durable
        if durable:
            key = first_key(commands[0]) if commands else None
            self.key = key if isinstance(key, bytes) else b""
        self.on_done: Callable[[Exchange], None] | None = None
        """Called when an attempt is over; None if the caller waits for the connection itself."""
        self.caller: Any = None
        """The caller that ``on_done`` notifies."""
        self.replies: list[Any] = []
        self.awaits: tuple[Trailer, ...] = ()
        """Requests of this attempt, besides its commands, whose replies are still to come."""
        self.failure: PercolatorError | None = None
        """The error to raise if the exchange ended without all replies; another attempt would not help."""
        self.trouble: Exception | None = None
        """The error for which this attempt has to be repeated; None if there is none."""
        self.under_way = False
        """True while an attempt is in flight."""
        self.pipeline: Pipeline | None = None
        """The connection of the newest attempt."""

    @property
    def done(self) -> bool:
        """True if all commands are answered, or the exchange has failed."""
        if self.failure is not None:
            return True
        return (
            len(self.replies) == len(self.packed)
            and (self.timestamp > 0 or self.stamp == NONE or (self.stamp == SPARE and not self.under_way))
            and (self.acknowledged is not None or not self.durable)
        )

    def begin(self, pipeline: Pipeline) -> list[bytes]:
        """Begin an attempt over this connection. Return the commands that still have to be sent."""
        self.under_way = True
        if self.pipeline is None:
            self.pipeline = pipeline
            self.trouble = None  # until now, no connection could be opened
            return self.packed
        if self.pipeline is not pipeline:
            # The writes that another server has acknowledged may never reach this one.
            self.executed_maybe = self.executed_maybe or bool(self.replies)
            self.replies.clear()
            self.timestamp, self.acknowledged = 0, None
            self.pipeline = pipeline
        self.trouble, self.collected = None, False
        return self.packed[len(self.replies) :]

    def refuse(self, error: RedisError, *, executed: bool = False) -> None:
        """Record an error reply. ``executed`` is True if the commands were executed before the error."""
        verdict = judge(error)
        if verdict.failure is not None:
            self.failure = verdict.failure
        else:
            self.trouble = error
        self.executed_maybe = self.executed_maybe or verdict.executed_maybe or executed

    def take_in(self, part: Exchange) -> None:
        """Merge the outcome of a finished sub-request, without its replies."""
        self.executed_maybe = self.executed_maybe or part.executed_maybe
        self.failure = self.failure or part.failure
        mine, other = self.acknowledged, part.acknowledged
        if mine is None or other is None:
            self.acknowledged = mine or other
        else:
            self.acknowledged = min(mine[0], other[0]), min(mine[1], other[1])

    def conclude(self) -> None:
        """End this attempt: all its replies are in, errors too."""
        if self.trouble is not None:
            self.break_off(self.trouble, sent=False)
        else:
            self._finish()

    def break_off(self, trouble: Exception, *, sent: bool) -> None:
        """End this attempt; commands without a reply have to be sent again.

        ``sent`` is True if this attempt may have sent them, so that they may have been executed.
        """
        self.trouble = trouble
        self.missing_script = isinstance(trouble, NoScriptError)
        self.troubled_since = self.troubled_since or time.monotonic()
        if isinstance(trouble, MovedError):
            self.redirections += 1
        self.executed_maybe = self.executed_maybe or sent
        if self.durable and self.acknowledged is None:
            # An acknowledgement covers only the writes of its own connection, so all commands are sent again.
            self.replies.clear()
        if self.stamp >= AFTER:
            self.timestamp = 0  # a command is yet to be executed, and the timestamp must come after it
        elif self.stamp == BEFORE and not self.timestamp:
            self.replies.clear()  # without the timestamp, the time of these reads is unknown
        self._finish()

    def interrupt(self) -> None:
        """Break off an attempt that the client itself has ended. The caller is not notified."""
        on_done, self.on_done = self.on_done, None
        self.break_off(interrupted(), sent=self.pipeline is not None)
        self.on_done = on_done

    def fail(self, failure: PercolatorError) -> None:
        """End the exchange: this attempt failed, and another one would too."""
        self.failure = failure
        self._finish()

    def _finish(self) -> None:
        """Notify the caller that this attempt is over."""
        self.awaits = ()
        self.under_way = False
        on_done = self.on_done
        if on_done is not None:
            on_done(self)

    def result(self) -> list[Any]:
        """Return the replies; raise the error that ended the exchange."""
        if self.failure is not None:
            if isinstance(self.failure, StoreUnavailable):
                self.failure.executed_maybe = self.executed_maybe
            raise self.failure
        return self.replies

    @property
    def needs_pause(self) -> bool:
        """True if the trouble takes time to pass, False if a repair is enough."""
        if isinstance(self.trouble, MovedError):
            return self.redirections > _REDIRECTIONS
        return not self.missing_script

    def expired(self, patience: float, since: float = 0.0) -> bool:
        """Return True if the trouble has lasted for ``patience`` seconds.

        ``since`` is the time when it began, or 0 for `troubled_since`.
        """
        return time.monotonic() - (since or self.troubled_since) >= patience

    def give_up(self, patience: float) -> None:
        """Fail, because the time for attempts is over. No attempt is under way, so no caller is notified."""
        why, mend = str(self.trouble), "check that it runs and can be reached"
        if isinstance(self.trouble, AskError):
            why = f"slot {self.trouble.slot_id} is on its way to {self.trouble.host}:{self.trouble.port}"
            mend = "redis-cli --cluster fix ends a move that was broken off"
        self.failure = StoreUnavailable(f"the store did not answer for {patience:g} s ({why}): {mend}")


def interrupted() -> Exception:
    """Return the error of an attempt that the client itself has broken off."""
    return RedisConnectionError("the conversation was interrupted")


class OutcomeOpenError(Exception):
    """A request failed, but may have been executed; ``__cause__`` is its error."""


Decision: TypeAlias = tuple[Any, bool, int, bool]
"""The reply to a command that decides an outcome, and three facts about it.

These are: True if an earlier attempt may have executed the command; the timestamp that was requested after
the command, 0 without one; and True if the write is as safe as the store's durability asks.
"""


class Trailer:
    """A request that is sent with a batch, for all exchanges of the batch that need its reply."""

    __slots__ = ("exchanges",)

    replies = 1
    """The number of its replies."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        self.exchanges = exchanges
        for exchange in exchanges:
            exchange.awaits = (*exchange.awaits, self)

    def take_in(self, replies: list[Any]) -> None:
        """Store the replies, or the error among them, in the exchanges that still wait."""
        raise NotImplementedError

    def answered(self) -> None:
        """Conclude the exchanges that waited only for this reply."""
        for exchange in self.exchanges:
            # After a retry, the exchange waits for another trailer.
            if self in exchange.awaits:
                exchange.awaits = tuple([other for other in exchange.awaits if other is not self])
                if exchange.collected and not exchange.awaits:
                    exchange.conclude()

    def current(self) -> list[Exchange]:
        """Return the exchanges that still wait."""
        return [exchange for exchange in self.exchanges if self in exchange.awaits]


class Stamps(Trailer):
    """One request to the oracle for the timestamps of several exchanges of a batch."""

    __slots__ = ()

    def take_in(self, replies: list[Any]) -> None:
        """Give each exchange its timestamp, or the error."""
        (reply,) = replies
        if isinstance(reply, RedisError):
            as_answer(reply)
            for exchange in self.current():
                exchange.refuse(reply)
            return
        last, epoch = reply
        timestamp = last - len(self.exchanges)
        for exchange in self.exchanges:
            timestamp += 1
            if self in exchange.awaits:
                exchange.timestamp, exchange.epoch = timestamp, epoch


class Acknowledgement(Trailer):
    """The request to wait for disk and replicas. Only its last reply counts them."""

    __slots__ = ("replies",)

    def __init__(self, exchanges: list[Exchange], replies: int) -> None:
        super().__init__(exchanges)
        self.replies = replies

    def take_in(self, replies: list[Any]) -> None:
        """Give each exchange the numbers of disks and replicas that have its writes, or the first error."""
        for error in replies:
            if isinstance(error, RedisError):
                as_answer(error)
                for exchange in self.current():
                    # The commands were executed. WAIT fails if the master is demoted.
                    exchange.refuse(error, executed=True)
                return
        reply = replies[-1]
        # WAIT returns how many replicas have the writes, WAITAOF also how many disks.
        acknowledged = (0, reply) if isinstance(reply, int) else (reply[0], reply[1])
        for exchange in self.current():
            exchange.acknowledged = acknowledged
