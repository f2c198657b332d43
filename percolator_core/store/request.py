"""What one caller sends at once, and the answers so far.

Every command that this library sends may be sent twice without harm, so an exchange that breaks off is simply
continued from the first command whose reply is missing. Order matters inside an exchange (a read must not run
before the timestamp in front of it), so continuing means repeating everything behind that command too.

=============  ==================================================================================
`begin`        an attempt is sent over a connection
`refuse`       a reply is an error; those before it are in ``replies``, those behind it are of no use
`conclude`     the replies of this attempt are in. If one means "not executed", it broke off
`break_off`    the connection was lost: what was not answered may have been executed
`fail`         no other attempt would do better
`give_up`      the time for attempts is over
=============  ==================================================================================

An attempt ends with `conclude`, `break_off` or `fail`, each of which tells the caller. Then the exchange is
`done`, or has ``trouble`` to be mended, after which another attempt may begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from redis.exceptions import AskError, MovedError, NoScriptError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.store.packing import Command, first_key, pack
from percolator_core.store.refusals import judge

NONE: Final = 0
BEFORE: Final = 1
AFTER: Final = 2
SPARE: Final = 3
"""As `AFTER`, but whoever asks can do without: nothing is repeated, or waited for, to get one."""

_REDIRECTIONS: Final = 3
"""Redirections that are followed without a pause: servers that disagree would send us to and fro."""


class Carrier(Protocol):
    """The connection that an exchange went over."""

    def run(self, exchange: Exchange) -> None:
        """Send one exchange and wait until this attempt is over."""

    def break_off(self, reason: str) -> None:
        """Hang up; what is in flight has to be sent again."""


class Exchange:
    """Commands sent together by one caller to one slot, and their replies so far.

    ``stamp`` asks for a timestamp too: `BEFORE` the commands (the snapshot of what they read) or `AFTER`
    them (the commit timestamp of what they prewrote), or `SPARE`. The exchanges of one batch share one
    request to the oracle. ``durable`` asks how many replicas, and whether the disk, have what the commands
    wrote.
    """

    # What few exchanges ever set has its default here, and costs the others nothing.
    key = b""
    """A key of the tablet that a durable one writes to: whose server is asked what is safe."""
    timestamp = 0
    epoch: bytes | None = None
    """How often the catalog had been changed when the timestamp was given out; None where it never was."""
    acknowledged: tuple[int, int] | None = None
    """Whether the server's disk (0 or 1), and how many replicas, have it; None while not known."""
    collected = False
    """Whether the replies of this attempt are in."""
    missing_script = False
    redirections = 0
    """How often another server was named."""
    executed_maybe = False
    """Whether they may have been executed by an attempt whose reply we do not have."""
    troubled_since = 0.0
    """When an attempt broke off first (`time.monotonic`), 0 if none has."""

    def __init__(
        self,
        commands: Sequence[Command],
        stamp: int = NONE,
        slot: int = 0,
        durable: bool = False,
    ) -> None:
        # Packed here, so that what cannot be packed fails its caller and not a batch of many callers.
        self.packed = [command if type(command) is bytes else pack(command) for command in commands]
        self.stamp = stamp
        self.slot = slot
        """Where on a cluster the commands go."""
        self.durable = durable
        if durable:
            key = first_key(commands[0]) if commands else None
            self.key = key if isinstance(key, bytes) else b""
        self.on_done: Callable[[Exchange], None] | None = None
        """Told that an attempt is over; None where the caller waits for the connection itself."""
        self.caller: Any = None
        """Whom ``on_done`` is to tell."""
        self.replies: list[Any] = []
        self.awaits: list[Trailer] | None = None
        """What of this attempt is still to come beside the replies."""
        self.failure: PercolatorError | None = None
        """What ended it without all replies, to be raised; no repetition mends it."""
        self.trouble: Exception | None = None
        """Why the exchange broke off before its end; None while there is nothing to repeat."""
        self.under_way = False
        """Whether an attempt has been sent that is not over."""
        self.pipeline: Carrier | None = None
        """The connection of the last attempt."""

    @property
    def done(self) -> bool:
        """Whether every command is answered, or one answer ends the matter."""
        if self.failure is not None:
            return True
        return (
            len(self.replies) == len(self.packed)
            and (self.timestamp > 0 or self.stamp == NONE or (self.stamp == SPARE and not self.under_way))
            and (self.acknowledged is not None or not self.durable)
        )

    def begin(self, pipeline: Carrier) -> list[bytes]:
        """An attempt begins, over this connection. Returns the commands that still have to be sent."""
        self.under_way = True
        if self.pipeline is None:
            self.pipeline = pipeline
            self.trouble = None  # no connection could be had before
            return self.packed
        if self.pipeline is not pipeline:
            # What another server answered, and had, may never come to this one.
            self.executed_maybe = self.executed_maybe or bool(self.replies)
            self.replies.clear()
            self.timestamp, self.acknowledged = 0, None
            self.pipeline = pipeline
        self.trouble, self.collected = None, False
        return self.packed[len(self.replies) :]

    def refuse(self, error: RedisError, *, executed: bool = False) -> None:
        """A reply is an error. ``executed`` says whether the commands were, all the same."""
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
        """All replies of this attempt are in, such as they are."""
        if self.trouble is not None:
            self.break_off(self.trouble, sent=False)
        else:
            self._finish()

    def break_off(self, trouble: Exception, *, sent: bool) -> None:
        """This attempt ends; what was not answered has to be sent again, and may have been ``sent`` now."""
        self.trouble = trouble
        self.missing_script = isinstance(trouble, NoScriptError)
        self.troubled_since = self.troubled_since or time.monotonic()
        if isinstance(trouble, MovedError):
            self.redirections += 1
        self.executed_maybe = self.executed_maybe or sent
        if self.durable and self.acknowledged is None:
            # An acknowledgement speaks for what its own connection sent before, so all of that goes again.
            self.replies.clear()
        if self.stamp >= AFTER:
            self.timestamp = 0  # a command is yet to be executed, and the timestamp must come behind it
        elif self.stamp == BEFORE and not self.timestamp:
            self.replies.clear()  # they were read at no known time
        self._finish()

    def interrupt(self) -> None:
        """The conversation was broken off on this side, and the caller needs not be told: it goes on."""
        tell, self.on_done = self.on_done, None
        self.break_off(interrupted(), sent=self.pipeline is not None)
        self.on_done = tell

    def fail(self, failure: PercolatorError) -> None:
        """This attempt failed, and another one would too."""
        self.failure = failure
        self._finish()

    def _finish(self) -> None:
        """Tell the caller that this attempt is over."""
        self.awaits = None
        self.under_way = False
        if self.on_done is not None:
            self.on_done(self)

    def result(self) -> list[Any]:
        """The replies; raises the error that ended the exchange."""
        if self.failure is not None:
            if isinstance(self.failure, StoreUnavailable):
                self.failure.executed_maybe = self.executed_maybe
            raise self.failure
        return self.replies

    @property
    def needs_pause(self) -> bool:
        """Whether the trouble takes time to pass, rather than only to be mended."""
        if isinstance(self.trouble, MovedError):
            return self.redirections > _REDIRECTIONS
        return not self.missing_script

    def expired(self, patience: float, since: float = 0.0) -> bool:
        """Whether there has been trouble for ``patience`` seconds: from the first time, or ``since`` then."""
        return time.monotonic() - (since or self.troubled_since) >= patience

    def give_up(self, patience: float) -> None:
        """No attempt is made any more. Tells no caller: there is none under way."""
        why, mend = str(self.trouble), "check that it runs and can be reached"
        if isinstance(self.trouble, AskError):
            why = f"slot {self.trouble.slot_id} is on its way to {self.trouble.host}:{self.trouble.port}"
            mend = "redis-cli --cluster fix ends a move that was broken off"
        self.failure = StoreUnavailable(f"the store did not answer for {patience:g} s ({why}): {mend}")


def interrupted() -> Exception:
    """Why an exchange breaks off when this side gave the conversation up."""
    return RedisConnectionError("the conversation was interrupted")


class OutcomeOpenError(Exception):
    """A request failed after it may have been executed. The cause is the failure."""


class Decision(NamedTuple):
    """The reply to a command that decides an outcome.

    ``repeated`` is True if an earlier attempt may have executed it. ``timestamp`` was given out after it if
    one was asked for, else it is 0. ``durable`` is True if it is as safe as the store's durability asks.
    """

    reply: Any
    repeated: bool
    timestamp: int
    durable: bool


class Trailer:
    """A request that goes with a batch, for all exchanges of it that need its reply."""

    __slots__ = ("exchanges",)

    def __init__(self, exchanges: list[Exchange]) -> None:
        self.exchanges = exchanges
        for exchange in exchanges:
            if exchange.awaits is None:
                exchange.awaits = [self]
            else:
                exchange.awaits.append(self)

    def answered(self) -> None:
        """The reply is in; tell the callers that waited for nothing else."""
        for exchange in self.exchanges:
            if self.is_awaited_by(exchange):
                assert exchange.awaits is not None
                exchange.awaits.remove(self)
                if exchange.collected and not exchange.awaits:
                    exchange.conclude()

    def is_awaited_by(self, exchange: Exchange) -> bool:
        """Whether the exchange still waits: one that broke off may be under way again, and await another."""
        return exchange.awaits is not None and self in exchange.awaits

    def current(self) -> list[Exchange]:
        """The exchanges that still wait."""
        return [exchange for exchange in self.exchanges if self.is_awaited_by(exchange)]


class Stamps(Trailer):
    """One request to the oracle, for all exchanges of a batch that want a timestamp at the same end."""

    __slots__ = ()


class Acknowledgement(Trailer):
    """The request to wait for disk and replicas, for all durable exchanges of a batch.

    ``replies`` is how many come, of which the last one counts.
    """

    __slots__ = ("replies",)

    def __init__(self, exchanges: list[Exchange], replies: int) -> None:
        super().__init__(exchanges)
        self.replies = replies
