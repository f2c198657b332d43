"""Cause the faults of a schedule."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from percolator_core.errors import LockTimeout, StoreUnavailable
from percolator_torture.clients.base_nemesis import BaseStrikes, Later
from percolator_torture.clients.crew import Crew
from percolator_torture.clients.schedule import OF_BASES, Event, Nemesis
from percolator_torture.faults.clock import HOUR, FakeClock
from percolator_torture.faults.store import FaultyDatabase
from percolator_torture.servers.private_server import PrivateServer

STOPPED_FOR: Final = 1.6
"""A client is stopped for this multiple of a lock's time to live."""
_FULL_FOR: Final = 0.15
"""Seconds for which the server has no memory left."""
_NO_MEMORY: Final = 1
_UNBOUNDED: Final = 0


class Strikes:
    """Starts each fault when it is due, and ends it.

    ``server`` is None if the server is not private. ``of_bases`` makes the faults of columnar bases.
    """

    def __init__(  # noqa: PLR0917
        self,
        events: Sequence[Event],
        crew: Crew,
        db: FaultyDatabase,
        server: PrivateServer | None,
        lock_ttl: float,
        of_bases: Callable[[Later, float], BaseStrikes] | None = None,
    ) -> None:
        self._events = list(events)
        self._crew = crew
        self._db = db
        self._server = server
        self._stopped_for = STOPPED_FOR * lock_ttl
        self._endings: list[tuple[float, Callable[[], None]]] = []
        self._clock = FakeClock(db.store.keyspace)
        self.bases = None if of_bases is None else of_bases(self._later, self._stopped_for)
        self.counts: Counter[Nemesis] = Counter()
        """The faults so far."""

    def act(self) -> None:
        """Start the faults that are due."""
        now = time.monotonic()
        due = [ending for ending in self._endings if ending[0] <= now]
        for ending in due:
            self._endings.remove(ending)
            ending[1]()
        done = self._crew.done
        for event in [event for event in self._events if event.at <= done]:
            if self._strike(event):  # otherwise the event stays, and does not delay the others
                self._events.remove(event)
                self.counts[event.nemesis] += 1

    @property
    def missed(self) -> Counter[Nemesis]:
        """The faults that have not happened yet."""
        return Counter(event.nemesis for event in self._events)

    @property
    def waits_for_bases(self) -> bool:
        """True if the run has to wait for faults of bases, which are possible without clients, too."""
        return any(event.nemesis in OF_BASES for event in self._events)

    def end(self) -> None:
        """End all faults at once; `act` is not called again."""
        for _, ending in self._endings:
            ending()
        self._endings.clear()

    # Internals.

    def _strike(self, event: Event) -> bool:
        """Start a fault; return False if that is not possible yet."""
        match event.nemesis:
            case Nemesis.KILL:
                return self._crew.strike(event.seat, signal.SIGKILL) is not None
            case Nemesis.STOP:
                return self._stop(event.seat)
            case Nemesis.SCRIPT_FLUSH:
                self._flush_scripts()
            case Nemesis.CLOCK_BACK:
                try:
                    self._clock.set_back(self._db.store, HOUR)
                except StoreUnavailable:
                    return False  # another nemesis has taken the memory
            case Nemesis.COLLECT:
                return self._collect()
            case Nemesis.SERVER_KILL:
                assert self._server is not None
                self._server.kill()
                self._server.start()
            case Nemesis.OUT_OF_MEMORY:
                self._fill_memory()
            case _:
                assert self.bases is not None
                return self.bases.strike(event)
        return True

    def _later(self, seconds: float, end: Callable[[], None]) -> None:
        self._endings.append((time.monotonic() + seconds, end))

    def _stop(self, seat: int) -> bool:
        process = self._crew.strike(seat, signal.SIGSTOP)
        if process is None:
            return False

        # Without effect if the process has been killed.
        self._later(self._stopped_for, partial(process.send_signal, signal.SIGCONT))
        return True

    def _collect(self) -> bool:
        try:
            self._db.collect_garbage(timedelta(0))
        except LockTimeout:
            pass  # another client is committing, so nothing was dropped, which is no fault
        except StoreUnavailable:
            return False  # another nemesis has taken the memory
        return True

    def _flush_scripts(self) -> None:
        for endpoint in self._db.store.endpoints():
            try:
                self._db.store.ask(endpoint, (b"SCRIPT", b"FLUSH"))
            except StoreUnavailable:
                pass  # a stopped server has forgotten them, too

    def _fill_memory(self) -> None:
        server = self._server
        assert server is not None

        def limit(memory: int) -> None:
            with server.client() as client:
                client.config_set("maxmemory", memory)

        limit(_NO_MEMORY)
        self._later(_FULL_FOR, partial(limit, _UNBOUNDED))
