"""A store whose operations get lost, are doubled, or arrive late, by a repeatable plan.

The faults are those of the network between client and server, and happen when the library sends its
operations. The server, the scripts and all code above the store are unchanged.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from percolator_core.database import Database
from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.layout.keys import Keyspace
from percolator_core.store import Store
from percolator_core.store.packing import Command, parts
from percolator_core.store.request import AFTER, BEFORE, NONE, Exchange
from percolator_core.transaction.client import Timeouts
from percolator_torture.faults.clock import FakeClock
from percolator_torture.faults.late import LateRequests
from percolator_torture.faults.plan import GIVES_UP, Fault, Happened, Kind, Operation, Plan
from percolator_torture.faults.stepper import MortalClient, Point, current_stepper

REMEMBERED: Final = 10_000
"""At most this many faults are in `FaultyStore.happened`; older faults are only counted."""


class FaultyStore(Store):
    """A store whose operations meet the faults of ``plan``, and which a `Stepper` can stop.

    ``plan`` may be replaced at any time; None is no faults. The store works in blocking code and under a hub.
    """

    def __init__(
        self,
        url: str,
        keyspace: Keyspace,
        *,
        plan: Plan | None = None,
        clock: FakeClock | None = None,
        **settings: Any,
    ) -> None:
        """``clock`` replaces the server's; ``settings`` are those of `Store`. Connecting meets no faults."""
        self.plan: Plan | None = None
        self.counts: Counter[Kind] = Counter()
        """The number of faults so far, by kind."""
        self.happened: deque[Happened] = deque(maxlen=REMEMBERED)
        """The newest faults, the oldest of them first."""
        self._counting = threading.Lock()
        self._number = 0
        self._names: dict[Any, str] = {}
        self._late = LateRequests(partial(Store.call_apart, self))
        if clock is not None:
            settings["load_scripts"] = clock.load_scripts
        super().__init__(url, keyspace, **settings)
        self._names = {script.sha: name for name, script in self.scripts.items()}
        self.plan = plan

    # The overridden methods of the store.

    def exchange(self, commands: Sequence[Command], stamp: int = NONE, **options: Any) -> Exchange:
        """Call `Store.exchange`, with faults."""
        stepper = current_stepper()
        if stepper is None or not stepper.singly or len(commands) + (stamp != NONE) < 2:
            return self._operate(commands, stamp, **options)
        return self._one_by_one(commands, stamp, **options)

    def defer(self, *commands: Command) -> None:
        """Call `Store.defer`, with faults; lost operations stay lost. A `Stepper` waits for the replies."""
        stepper = current_stepper()
        if stepper is not None:
            # Send the commands one by one and wait for each reply: then the test goes on with a known state.
            for command in commands:
                self._operate((command,), NONE, manner="deferred")
            return
        operation = self._next(commands, NONE, "deferred")
        fault = self._choose(operation)
        kind = None if fault is None else fault.kind
        if fault is not None and kind in _COMES_LATE:
            self._late.put(commands, fault.seconds)
        if kind not in _NOT_EXECUTED_NOW:
            super().defer(*commands, *(commands if kind in _TWICE else ()))

    def call_apart(self, *commands: Command) -> list[Any]:
        """Call `Store.call_apart`, with faults."""
        return self._operate(commands, NONE, manner="apart").result()

    def sleep(self, seconds: float) -> None:
        """Call `Store.sleep`; under a `Stepper` it returns when the test goes on."""
        stepper = current_stepper()
        if stepper is not None:
            stepper.pause(Point("asleep", None))
        else:
            super().sleep(seconds)

    # Late requests.

    @property
    def late(self) -> int:
        """The number of late requests that have not been executed yet."""
        return len(self._late)

    def deliver(self) -> int:
        """Execute all late requests now; return their number."""
        return self._late.deliver()

    def close(self) -> None:
        """Call `Store.close`; late requests that have not been executed yet get lost."""
        self._late.close()
        super().close()

    # Internals.

    def _one_by_one(self, commands: Sequence[Command], stamp: int, **options: Any) -> Exchange:
        """Send each command and the request for a timestamp separately, in the order of their execution."""
        whole = Exchange(commands, stamp, durable=options.pop("durable", False))
        parts: list[tuple[Sequence[Command], int]] = [((command,), NONE) for command in commands]
        if stamp == BEFORE:
            parts.insert(0, ((), BEFORE))
        elif stamp >= AFTER:
            parts.append(((), BEFORE))
        for part, stamped in parts:
            # A timestamp needs no durability.
            durable = whole.durable and stamped == NONE
            answered = self._operate(part, stamped, durable=durable, **options)
            whole.executed_maybe = whole.executed_maybe or answered.executed_maybe
            whole.replies += answered.replies
            if answered.timestamp:
                whole.timestamp, whole.epoch = answered.timestamp, answered.epoch
            if durable and answered.acknowledged is not None:
                whole.acknowledged = min(whole.acknowledged or answered.acknowledged, answered.acknowledged)
            if answered.failure is not None:
                whole.failure = answered.failure
                break
        return whole

    def _operate(
        self, commands: Sequence[Command], stamp: int, *, manner: Any = "call", **options: Any
    ) -> Exchange:
        operation = self._next(commands, stamp, manner)
        send = partial(self._send, operation, options)
        fault = self._choose(operation)
        if fault is None:
            return send(commands)
        return self._inject(fault, operation, send)

    def _send(self, operation: Operation, options: dict[str, Any], commands: Sequence[Command]) -> Exchange:
        stepper = current_stepper()
        if stepper is not None:
            stepper.pause(Point("before", operation))
        if operation.manner == "apart":
            exchange = Exchange(commands)
            try:
                exchange.replies = super().call_apart(*commands)
            except PercolatorError as error:
                exchange.failure = error
        else:
            exchange = super().exchange(commands, operation.stamp, **options)
        if stepper is not None:
            stepper.pause(Point("after", operation, tuple(exchange.replies)))
        return exchange

    def _inject(
        self, fault: Fault, operation: Operation, send: Callable[[Sequence[Command]], Exchange]
    ) -> Exchange:
        commands, kind = operation.commands, fault.kind
        # `call_apart` has to block its thread: if it waited in the hub, its task would keep a lock meanwhile.
        sleep = time.sleep if operation.manner == "apart" else self.sleep
        if kind in _WAITS_FIRST and fault.seconds:
            sleep(fault.seconds)
        if kind in _COMES_LATE:
            self._late.put(commands, fault.seconds)
        if kind in _TWICE:
            # Both copies are in one request, so that hardly anything runs between them.
            return _half(send((*commands, *commands)), commands, second=kind is Kind.TWICE)
        if kind in _EXECUTED_FIRST:
            send(commands)
        if kind in GIVES_UP:
            return _given_up(operation, kind)
        if kind is Kind.REPLY_LOST and fault.seconds:
            sleep(fault.seconds)
        exchange = send(commands)
        if kind is Kind.SLOW_REPLY:
            sleep(fault.seconds)
        elif kind is not Kind.SLOW_REQUEST:
            exchange.executed_maybe = True  # a first copy was sent; the client cannot know if it was executed
        return exchange

    def _next(self, commands: Sequence[Command], stamp: int, manner: Any) -> Operation:
        names = [self._name(command) for command in commands]
        if stamp == BEFORE:
            names.insert(0, "timestamp")
        elif stamp >= AFTER:
            names.append("timestamp")
        with self._counting:
            self._number += 1
            return Operation(self._number, tuple(names), tuple(commands), stamp, manner)

    def _name(self, command: Command) -> str:
        first, second, *_ = *parts(command), None
        word = second if first == b"EVALSHA" else first
        return self._names.get(word) or (word.decode() if isinstance(word, bytes) else str(word))

    def _choose(self, operation: Operation) -> Fault | None:
        fault = self.plan.choose(operation) if self.plan is not None else None
        if fault is not None:
            with self._counting:
                self.counts[fault.kind] += 1
                self.happened.append(Happened(operation, fault))
        return fault


_COMES_LATE: Final = frozenset({Kind.LATE, Kind.LATE_COPY})
_TWICE: Final = frozenset({Kind.TWICE, Kind.TWICE_FIRST})
_EXECUTED_FIRST: Final = frozenset({Kind.REPLY_LOST, Kind.REPLY_LOST_FOR_GOOD})
_WAITS_FIRST: Final = frozenset({Kind.SLOW_REQUEST, Kind.REQUEST_LOST})
_NOT_EXECUTED_NOW: Final = frozenset(
    {Kind.REFUSED, Kind.REQUEST_LOST, Kind.REQUEST_LOST_FOR_GOOD, Kind.LATE, Kind.LATE_COPY}
)
"""With these faults a deferred request is not executed at once, and the client does not repeat it."""


def _half(exchange: Exchange, commands: Sequence[Command], *, second: bool) -> Exchange:
    """Choose one of two answers to commands that were sent twice at once."""
    count = len(commands)
    if len(exchange.replies) == 2 * count:
        exchange.replies = exchange.replies[count:] if second else exchange.replies[:count]
        exchange.packed = exchange.packed[:count]
    # The client itself sets this, too, when it sends a request a second time.
    exchange.executed_maybe = True
    return exchange


def _given_up(operation: Operation, kind: Kind) -> Exchange:
    exchange = Exchange(operation.commands, operation.stamp)
    exchange.executed_maybe = kind is not Kind.REFUSED
    exchange.failure = StoreUnavailable(f"the store did not answer (planned fault: {kind}): try again")
    exchange.failure.executed_maybe = exchange.executed_maybe
    return exchange


class FaultyDatabase(Database):
    """A database over a `FaultyStore`, whose process can be declared dead."""

    def __init__(self, store: FaultyStore, timeouts: Timeouts) -> None:
        self.faulty = store
        self.mortal = MortalClient(store, timeouts)
        super().__init__(self.mortal)


def connect(
    url: str,
    namespace: str,
    *,
    plan: Plan | None = None,
    clock: FakeClock | None = None,
    lock_ttl: float = 10.0,
    lock_wait: float = 30.0,
    **settings: Any,
) -> FaultyDatabase:
    """Connect with faults, as `percolator_core.connect`. Raises the same errors.

    ``db.faulty`` is the store, ``db.mortal`` the client.
    """
    store = FaultyStore(url, Keyspace(namespace), plan=plan, clock=clock, **settings)
    return FaultyDatabase(store, Timeouts(lock_ttl, lock_wait))
