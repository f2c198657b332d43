"""Under a hub: sending again what broke off.

The cause is mended first: scripts are loaded, once for all that missed one, or the topology looks around.
Trouble that takes time to pass is given a moment, by a task of its own. Nothing here resumes the task that
waits: a repetition ends in an attempt, which tells it, or in a failure, which does so too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from percolator_core.errors import PercolatorError
from percolator_core.store.request import Exchange

_PAUSE: Final = 0.05
"""Seconds until another attempt, where the trouble takes time to pass."""


class Sender(Protocol):
    """The hub, as far as retries of its exchanges need it."""

    def park(self, exchanges: Sequence[Exchange]) -> None:
        """Send them with the next batch."""

    def withdraw(self, exchanges: Sequence[Exchange]) -> None:
        """Do not send them: they are parked."""

    def do_next(self, call: Callable[[], None]) -> None:
        """Run ``call`` outside all tasks, before anything else."""

    def begin(self, call: Callable[[Exchange], None], repeats: Exchange) -> None:
        """Run ``call`` as a task which sees to it that the exchange is repeated."""

    def sleep(self, seconds: float) -> None:
        """Park the current task for a time."""


class Retries:
    """Sees that exchanges which broke off are sent again, for at most ``patience`` seconds.

    ``repair`` mends the cause of an exchange's trouble, as far as a client can.
    """

    __slots__ = ("_hub", "_open", "_patience", "_repair", "_without_script")

    def __init__(self, hub: Sender, patience: float, repair: Callable[[Exchange], None]) -> None:
        self._hub = hub
        self._patience = patience
        self._repair = repair
        self._without_script: list[Exchange] = []
        self._open: dict[int, Exchange] = {}
        """What is to be parked again; whatever is not in here any more has been, or is forgotten."""

    def forget(self) -> list[Exchange]:
        """Leave what broke off to the caller, and return it."""
        exchanges = list(self._open.values())
        self._open.clear()
        self._without_script.clear()
        return exchanges

    def repeat_if_lost(self, exchange: Exchange) -> None:
        """An attempt at an exchange that nobody waits for is over."""
        if exchange.trouble is not None:
            self.repeats(exchange)

    def repeats(self, exchange: Exchange) -> bool:
        """See that an exchange which broke off is sent again; False if it is over."""
        if exchange.done:
            return False
        if exchange.expired(self._patience):
            exchange.give_up(self._patience)
            return False
        self._open[id(exchange)] = exchange
        if exchange.missing_script:
            # Loading the scripts once serves all that missed one.
            if not self._without_script:
                self._hub.do_next(self._load_scripts)
            self._without_script.append(exchange)
        elif not exchange.needs_pause:
            self._hub.do_next(partial(self._mend, exchange))
        else:
            self._hub.begin(self._repeat_later, exchange)
        return True

    def _load_scripts(self) -> None:
        exchanges, self._without_script = self._without_script, []
        exchanges = [one for one in exchanges if self._open.pop(id(one), None) is not None]
        by_pipeline: dict[int, list[Exchange]] = {}
        for exchange in exchanges:
            by_pipeline.setdefault(id(exchange.pipeline), []).append(exchange)
        # All before the first one: Ctrl-C may end the repair.
        self._hub.park(exchanges)
        for those in by_pipeline.values():
            self._mend_parked(those)

    def _repeat_later(self, exchange: Exchange) -> None:
        try:
            self._hub.sleep(_PAUSE)
        finally:
            # Not from here: only the hub itself may resume tasks, and a repair may end the wait of many.
            self._hub.do_next(partial(self._mend, exchange))

    def _mend(self, exchange: Exchange) -> None:
        if self._open.pop(id(exchange), None) is not None:
            self._hub.park((exchange,))
            self._mend_parked((exchange,))

    def _mend_parked(self, exchanges: Sequence[Exchange]) -> None:
        """Mend what exchanges of one connection failed for. They are parked: Ctrl-C may come at any time."""
        try:
            self._repair(exchanges[0])
        except PercolatorError as error:
            self._hub.withdraw(exchanges)
            for exchange in exchanges:
                exchange.fail(error)
