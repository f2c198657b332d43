"""The common part of the topologies of sentinels and clusters, whose servers can be replaced by others."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Final

from percolator_core.runtime import process
from percolator_core.store.request import Exchange
from percolator_core.store.topology import Ask, Endpoint, Topology

_PAUSE: Final = 0.1
"""Seconds between two requests for the current servers."""

_NOBODY_THERE: Final = 5.0
"""If no server answers a request for a confirmation, the next one is made after this many seconds."""


class ReplaceableServers(Topology, ABC):
    """A topology that is learned from sentinels or from the servers of a cluster."""

    replaceable = True

    def __init__(self, ask: Ask, url: str) -> None:
        """``url`` is the text that error messages show for the servers."""
        self._ask = ask
        self._url = url
        self._lock = process.Lock()
        self._looked_at = self._answered_at = self._unheard_until = 0.0

    @abstractmethod
    def _ask_around(self, doubtful: Endpoint | None) -> Exception | None:
        """Adopt the first answer and return None; if no server answers, return the last server's error.

        ``doubtful`` is asked last: this server may not know that it was replaced.
        """

    @abstractmethod
    def _has_its_place(self, endpoint: Endpoint) -> bool:
        """Return True if the server is a master with data, according to the newest answer."""

    def confirms(self, endpoint: Endpoint, since: float) -> bool:
        """Return True if the server is a master with data, by an answer that was requested after ``since``.

        If no server answers now, the last answer counts, although it was requested before ``since``.
        """
        with self._lock:
            if self._answered_at < since and time.monotonic() > self._unheard_until:
                self._look(endpoint)
            return self._has_its_place(endpoint)

    def heal(self, exchange: Exchange) -> None:
        """Close the connection to a replica, and ask for the current servers."""
        super().heal(exchange)
        self.look_around()

    def look_around(self) -> None:
        """Ask for the current servers, unless another request was made just before."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _PAUSE:
                self._look()

    def _look(self, doubtful: Endpoint | None = None) -> Exception | None:
        """Ask for the current servers; return the error if no server answers.

        Even if none answers, exchanges are sent again until their time is over. Then they raise
        `StoreUnavailable`.
        """
        began = time.monotonic()
        refused = self._ask_around(doubtful)
        self._looked_at = time.monotonic()
        if refused is None:
            self._answered_at = began
        else:
            self._unheard_until = self._looked_at + _NOBODY_THERE
        return refused
