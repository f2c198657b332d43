"""Retries: which requests are sent again after a failed attempt, after which repair, and for how long.

`percolator_core.store.refusals` sorts each error: the request was not executed, may have been executed, or is
refused for good. `RetryPolicy` decides from this for all callers. A blocking call repairs and sends again by
itself. Under a hub `Retries` does so outside the callers' tasks: a task goes on only with the reply to the
next attempt, or with the final failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from redis.exceptions import BusyLoadingError

from percolator_core.errors import PercolatorError
from percolator_core.scripts import Script
from percolator_core.store.connector import CONNECT_PATIENCE
from percolator_core.store.request import Exchange
from percolator_core.store.send_queue import SendQueue

if TYPE_CHECKING:
    from percolator_core.store.hub import Hub

_PAUSE: Final = 0.02
_PAUSE_OF_HUB: Final = 0.05
"""Seconds until the next attempt, if the trouble takes time to pass."""


class RetryPolicy:
    """Decides about requests whose attempt failed, and repairs the cause. All callers of a store share one.

    A request is given up after ``patience`` seconds; while the store connects, after at most
    `CONNECT_PATIENCE`.
    """

    def __init__(self, patience: float, heal: Callable[[Exchange], None], connecting_since: float) -> None:
        """``heal`` lets the topology repair what it can, for example find the new master."""
        self._patience = patience
        self._heal = heal
        self.connecting_since = connecting_since
        """When the store began to connect (`time.monotonic`); 0 once it is connected."""
        self.scripts: Mapping[str, Script] = {}

    def allows(self, exchange: Exchange) -> bool:
        """Return True if an exchange that is not done may be sent again; give it up if its time is over."""
        patience = self._patience
        # A wrong address is reported soon. But a server that loads its data exists, and needs its time.
        if self.connecting_since and not isinstance(exchange.trouble, BusyLoadingError):
            patience = min(patience, CONNECT_PATIENCE)
        if not exchange.expired(patience, self.connecting_since):
            return True
        exchange.give_up(patience)
        return False

    def repair(self, exchange: Exchange) -> None:
        """Repair the cause of a failure if a client can; raise PercolatorError if a repeat would fail too."""
        if exchange.missing_script and exchange.pipeline is not None:
            exchange.missing_script = False
            loading = Exchange([(b"SCRIPT", b"LOAD", script.source) for script in self.scripts.values()])
            exchange.pipeline.run(loading)
            loading.result()
        else:
            self._heal(exchange)

    def repair_all(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """Wait if the trouble takes time, repair it, and return the exchanges for another attempt."""
        if any(one.needs_pause for one in exchanges):
            time.sleep(_PAUSE)
        for one in exchanges:
            try:
                self.repair(one)
            except PercolatorError as error:
                one.fail(error)  # `Exchange.result` raises it, with `executed_maybe`
        return [one for one in exchanges if one.failure is None]


class Retries:
    """Sends exchanges of a hub again after a failed attempt, as the policy decides."""

    __slots__ = ("_hub", "_open", "_policy", "_queue", "_without_script")

    def __init__(self, hub: Hub, queue: SendQueue, policy: RetryPolicy) -> None:
        self._hub = hub
        self._queue = queue
        self._policy = policy
        self._without_script: list[Exchange] = []
        self._open: dict[int, Exchange] = {}
        """The exchanges that wait for another attempt and are not parked again yet, by id."""

    def forget(self) -> list[Exchange]:
        """Return and forget the exchanges that wait for another attempt."""
        exchanges = list(self._open.values())
        self._open.clear()
        self._without_script.clear()
        return exchanges

    def repeat_if_lost(self, exchange: Exchange) -> None:
        """Send the exchange again if its attempt failed; for exchanges that no task waits for."""
        if exchange.trouble is not None:
            self.repeats(exchange)

    def repeats(self, exchange: Exchange) -> bool:
        """Send an exchange again after a failed attempt; return False if it is done or given up."""
        if exchange.done or not self._policy.allows(exchange):
            return False
        self._open[id(exchange)] = exchange
        if exchange.missing_script:
            # One load of the scripts is enough for all exchanges that missed a script.
            if not self._without_script:
                self._hub.do_next(self._load_scripts)
            self._without_script.append(exchange)
        elif not exchange.needs_pause:
            self._hub.do_next(partial(self._retry, exchange))
        else:
            self._hub.begin(self._repeat_later, exchange)
        return True

    def _load_scripts(self) -> None:
        exchanges, self._without_script = self._without_script, []
        exchanges = [one for one in exchanges if self._open.pop(id(one), None) is not None]
        by_pipeline: dict[int, list[Exchange]] = {}
        for exchange in exchanges:
            by_pipeline.setdefault(id(exchange.pipeline), []).append(exchange)
        # Ctrl-C may end a repair: park all exchanges before the first repair, so that none is lost.
        self._queue.parked += exchanges
        for those in by_pipeline.values():
            self._repair_parked(those)

    def _repeat_later(self, exchange: Exchange) -> None:
        try:
            self._hub.sleep(_PAUSE_OF_HUB)
        finally:
            # The loop repairs, not this task: a repair may end the wait of many tasks, and only the loop
            # resumes tasks.
            self._hub.do_next(partial(self._retry, exchange))

    def _retry(self, exchange: Exchange) -> None:
        if self._open.pop(id(exchange), None) is not None:
            self._queue.parked.append(exchange)
            self._repair_parked((exchange,))

    def _repair_parked(self, exchanges: Sequence[Exchange]) -> None:
        """Repair once for exchanges of one connection, which are already parked so that Ctrl-C loses none."""
        try:
            self._policy.repair(exchanges[0])
        except PercolatorError as error:
            self._queue.withdraw(exchanges)
            for exchange in exchanges:
                exchange.fail(error)
