"""The exchanges of a hub that wait to be sent, and how they become batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from percolator_core.store.connections import Connections
from percolator_core.store.pipeline import IDLE
from percolator_core.store.request import Exchange
from percolator_core.store.task import Task

BURST: Final = 3000
"""Bytes that make a batch worth sending while the server still works on other batches: eight commits of one
cell, or thirty reads. Smaller batches spend too much time in system calls; larger ones leave the server
without work until the next batch arrives."""

OVERHEAD: Final = 40
"""Bytes that an exchange adds to a batch in addition to its commands, such as its share of a timestamp
request."""


class Gathering:
    """Several exchanges, to different slots, that one task waits for."""

    __slots__ = ("exchanges", "left", "task")

    def __init__(self, task: Task, exchanges: Sequence[Exchange]) -> None:
        self.task = task
        self.exchanges = exchanges
        self.left = len(exchanges)


def task_of(exchange: Exchange) -> Any:
    """Return the task that waits for an exchange, and perhaps for others as well; None if no task waits."""
    caller = exchange.caller
    return caller.task if type(caller) is Gathering else caller


class SendQueue:
    """Parked exchanges. No exchange is lost if an interruption comes between any two steps."""

    __slots__ = ("_connections", "_tasks", "load", "parked")

    def __init__(self, connections: Connections, tasks: Collection[Task]) -> None:
        """``tasks`` is the hub's set of tasks that have started and not ended."""
        self._connections = connections
        self._tasks = tasks
        self.parked: list[Exchange] = []
        """Exchanges to send with the next batch. The hub and `Retries` add to this list themselves."""
        self.load = 0
        """Estimated bytes that tasks have parked since the newest batch; deferred exchanges do not count."""

    def is_worth_sending(self) -> bool:
        """Return True if the parked exchanges should be sent while the server still works on others.

        The batch must be large enough, or half of all tasks must wait, because the batch of a few tasks would
        never be large enough. Each parked exchange counts as a waiting task. Only the time of sending depends
        on this.
        """
        parked = len(self.parked)
        return parked > 0 and (self.load >= BURST or 2 * parked >= len(self._tasks) > 0)

    def send(self, send: Callable[[Sequence[Exchange]], Sequence[Exchange]]) -> None:
        """Send the parked exchanges with ``send``, which returns those that stay parked."""
        batch = self.parked
        for exchange in batch:
            exchange.under_way = True
        try:
            self.parked, self.load = [], 0
            self.parked += send(batch)
        except BaseException:
            parked = set(map(id, self.parked))
            self.parked += [
                exchange
                for exchange in batch
                if exchange.under_way and id(exchange) not in parked and not self._connections.holds(exchange)
            ]
            raise

    def receive(self, until: float | None) -> bool:
        """Take in one answer; wait for it until the time ``until`` (`time.monotonic`) at most.

        A slow or stopped server must not delay other servers, so exchanges with idle servers are sent first.
        Return False if nothing came in and nothing was sent.
        """
        if self.parked and self._connections.several:
            if self._connections.receive(0):
                return True
            count = len(self.parked)
            self.send(self._connections.send_to_the_idle)
            if len(self.parked) < count:
                return True
        if until is None:
            return self._connections.receive()
        return self._connections.receive(min(max(0.0, until - time.monotonic()), IDLE))

    def park_again(self, lost: Iterable[Exchange]) -> None:
        """Park interrupted exchanges again, unless they are parked or done."""
        parked = set(map(id, self.parked))
        for exchange in lost:
            if id(exchange) not in parked and not exchange.done:
                parked.add(id(exchange))
                exchange.interrupt()
                self.parked.append(exchange)

    def withdraw(self, exchanges: Iterable[Exchange]) -> None:
        """Remove parked exchanges, so that they are not sent."""
        for exchange in exchanges:
            self.parked.remove(exchange)

    def drop_unsent(self, ended: Collection[Task]) -> None:
        """Remove the exchanges of ended tasks, except those that an attempt has already sent."""
        self.parked = [one for one in self.parked if one.pipeline is not None or task_of(one) not in ended]
