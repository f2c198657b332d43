"""Servers that can be replaced by others, where somebody knows by whom: what sentinels and clusters share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Final

from percolator_core.runtime import process
from percolator_core.store.refusals import is_read_only
from percolator_core.store.request import Exchange
from percolator_core.store.topology import Ask, Endpoint

_PAUSE: Final = 0.1
"""Seconds between two looks around."""

_NOBODY_THERE: Final = 5.0
"""Seconds for which nobody is asked to confirm a place, after nobody answered."""


class Watched(ABC):
    """A topology that others know: whom to ask, how often, and what an answer of when is worth."""

    watched = True

    def __init__(self, ask: Ask, url: str) -> None:
        """``url`` is what messages call the servers."""
        self.generation = 0
        self._ask = ask
        self._url = url
        self._lock = process.Lock()
        self._looked_at = self._answered_at = self._unheard_until = 0.0

    @abstractmethod
    def _ask_around(self, doubtful: Endpoint | None) -> Exception | None:
        """Take over what the first one says that answers; why none did, or None.

        ``doubtful`` is a server that may be out of date about itself.
        """

    @abstractmethod
    def _has_its_place(self, endpoint: Endpoint) -> bool:
        """Whether by the last answer the server has data."""

    def confirms(self, endpoint: Endpoint, since: float) -> bool:
        """Whether others said after ``since`` that the server has its place; True if nobody answers."""
        with self._lock:
            if self._answered_at < since and time.monotonic() > self._unheard_until:
                self._look(endpoint)
            return self._has_its_place(endpoint)

    def heal(self, exchange: Exchange) -> None:
        """Look around; and leave a server that has become a replica, also those who only read."""
        if is_read_only(exchange.trouble) and exchange.pipeline is not None:
            exchange.pipeline.break_off("the server has become a replica")
        self.look_around()

    def look_around(self) -> None:
        """Ask again who has what, unless that was done just now."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _PAUSE:
                self._look()

    def after_fork(self) -> None:
        """What was known of the servers still holds."""
        return

    def _look(self, doubtful: Endpoint | None = None) -> Exception | None:
        """Ask around. If nobody answers, exchanges go on trying, and say in the end that nothing answers."""
        began = time.monotonic()
        refused = self._ask_around(doubtful)
        self._looked_at = time.monotonic()
        if refused is None:
            self._answered_at = began
        else:
            self._unheard_until = self._looked_at + _NOBODY_THERE
        return refused
