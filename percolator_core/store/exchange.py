"""What one caller sends at once, and the answers so far.

Every command that this library sends may be sent twice without harm, so an exchange that breaks off is simply
continued from the first command whose reply is missing. Order matters inside an exchange (a read must not run
before the timestamp in front of it), so continuing means repeating everything behind that command too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hiredis import pack_command
from redis.exceptions import AskError, MovedError

from percolator_core.errors import StoreUnavailable

if TYPE_CHECKING:
    from percolator_core.store.wire import Wire

Command: TypeAlias = Sequence[bytes | str | int]

NONE: Final = 0
BEFORE: Final = 1
AFTER: Final = 2

_REDIRECTIONS: Final = 3
"""Redirections that are followed without a pause: servers that disagree would send us to and fro."""


class Exchange:
    """Commands sent together by one caller to one slot, and their replies so far.

    ``stamp`` asks for a timestamp too: `BEFORE` the commands (the snapshot of what they read) or `AFTER`
    them (the commit timestamp of what they prewrote). The exchanges of one batch share one request to the
    oracle. ``durable`` asks how many replicas, and whether the disk, have what the commands wrote.
    """

    __slots__ = (
        "acknowledged",
        "awaits",
        "caller",
        "collected",
        "deadline",
        "durable",
        "executed_maybe",
        "failure",
        "key",
        "missing_script",
        "on_done",
        "packed",
        "redirections",
        "replies",
        "slot",
        "stamp",
        "timestamp",
        "trouble",
        "under_way",
        "wire",
    )

    def __init__(
        self,
        commands: Sequence[Command],
        stamp: int = NONE,
        on_done: Callable[[Exchange], None] | None = None,
        *,
        slot: int = 0,
        durable: bool = False,
    ) -> None:
        # Packed here, so that what cannot be packed fails its caller and not a batch of many callers.
        self.packed = [pack_command(command) for command in commands]  # type: ignore[arg-type]
        self.stamp = stamp
        self.durable = durable
        self.key = _first_key(commands) if durable else b""
        """Where what a durable exchange wrote is to be safe."""
        self.slot = slot
        """Where on a cluster the commands go."""
        self.on_done = on_done
        self.caller: Any = None
        """Whom ``on_done`` is to tell."""
        self.replies: list[Any] = []
        self.timestamp = 0
        self.acknowledged: tuple[int, int] | None = None
        """Whether the server's disk (0 or 1), and how many replicas, have it; None while not known."""
        self.awaits: list[Trailer] = []
        """What of this attempt is still to come beside the replies."""
        self.collected = False
        """Whether the replies of this attempt are in."""
        self.failure: Exception | None = None
        """A reply that no repetition mends."""
        self.trouble: Exception | None = None
        """Why the exchange broke off before its end; None while there is nothing to repeat."""
        self.missing_script = False
        self.redirections = 0
        """How often another server was named."""
        self.executed_maybe = False
        """Whether the connection broke after the commands had been sent."""
        self.under_way = False
        """Whether an attempt has been sent that is not over."""
        self.deadline = 0.0
        self.wire: Wire | None = None
        """The connection of the last attempt."""

    @property
    def done(self) -> bool:
        """Whether every command is answered, or one answer ends the matter."""
        if self.failure is not None:
            return True
        return (
            len(self.replies) == len(self.packed)
            and (self.timestamp > 0 or self.stamp == NONE)
            and (self.acknowledged is not None or not self.durable)
        )

    def remaining(self) -> Sequence[bytes]:
        """The commands that still have to be sent."""
        return self.packed[len(self.replies) :] if self.replies else self.packed

    def begin(self, wire: Wire) -> None:
        """An attempt begins, over this connection."""
        if self.wire is not wire:
            if self.wire is not None:
                # What another server answered, and had, may never come to this one.
                self.executed_maybe = self.executed_maybe or bool(self.replies)
                self.replies.clear()
                self.timestamp, self.acknowledged = 0, None
            self.wire = wire
        self.trouble, self.collected, self.under_way = None, False, True

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
        if self.durable and self.acknowledged is None:
            # An acknowledgement speaks for what its own connection sent before, so all of that goes again.
            self.replies.clear()
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
        if self.awaits:
            self.awaits = []
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

    def may_go_on_at_once(self) -> bool:
        """Whether the trouble is over as soon as it is mended; else a pause gives it time to pass."""
        if isinstance(self.trouble, MovedError):
            self.redirections += 1
            return self.redirections <= _REDIRECTIONS
        return self.missing_script

    def must_give_up(self, patience: float, since: float = 0.0) -> bool:
        """Whether trouble has lasted longer than ``patience`` seconds; if so the exchange has failed.

        The seconds count from ``since`` where it is given, else from the first time.
        """
        now = time.monotonic()
        if not self.deadline:
            self.deadline = (since or now) + patience
        if now < self.deadline:
            return False
        why, mend = str(self.trouble), "check that it runs and can be reached"
        if isinstance(self.trouble, AskError):
            why = f"slot {self.trouble.slot_id} is on its way to {self.trouble.host}:{self.trouble.port}"
            mend = "redis-cli --cluster fix ends a move that was broken off"
        self.failure = StoreUnavailable(f"the store did not answer for {patience:g} s ({why}): {mend}")
        return True


def _first_key(commands: Sequence[Command]) -> bytes:
    """The first key of scripts: nothing else is sent durably."""
    key = commands[0][3] if commands else b""
    assert isinstance(key, bytes)
    return key


class Trailer:
    """A request that goes with a batch, for all exchanges of it that need its reply."""

    __slots__ = ("exchanges",)

    def __init__(self, exchanges: list[Exchange]) -> None:
        self.exchanges = exchanges
        for exchange in exchanges:
            exchange.awaits.append(self)

    def answered(self) -> None:
        """The reply is in; tell the callers that waited for nothing else."""
        for exchange in self.exchanges:
            if self in exchange.awaits:
                exchange.awaits.remove(self)
                if exchange.collected and not exchange.awaits:
                    exchange.conclude()

    def current(self) -> list[Exchange]:
        """The exchanges that still wait: one that broke off may be under way again, and await another."""
        return [exchange for exchange in self.exchanges if self in exchange.awaits]


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
