"""Makes the events of a schedule happen."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from percolator_core.errors import LockTimeout
from percolator_core.torture.clock import FakeClock
from percolator_core.torture.crew import Crew
from percolator_core.torture.faults import FaultyDatabase
from percolator_core.torture.schedule import HOUR, Event, Nemesis
from percolator_core.torture.victim import VictimServer

STOPPED_FOR: Final = 1.6
"""Times to live of a lock for which a client is stopped."""
_FULL_FOR: Final = 0.15
"""Seconds for which the server has no memory left."""
_NO_MEMORY: Final = 1
_UNBOUNDED: Final = 0


def start_apart(server: VictimServer) -> None:
    """Start a server that does not hear Ctrl-C. Raises as `VictimServer.start`.

    A terminal sends it to all processes, and the server would shut down under those who are to end in order.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits what is blocked
    try:
        server.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Strikes:
    """Strikes when it is time; what it began it also ends.

    ``server`` is None where the server is not ours.
    """

    def __init__(
        self,
        events: Sequence[Event],
        crew: Crew,
        db: FaultyDatabase,
        server: VictimServer | None,
        lock_ttl: float,
    ) -> None:
        self._events = list(reversed(events))
        self._crew = crew
        self._db = db
        self._server = server
        self._stopped_for = STOPPED_FOR * lock_ttl
        self._endings: list[tuple[float, Callable[[], None]]] = []
        self._clock = FakeClock(db.store.keyspace)
        self.counts: Counter[Nemesis] = Counter()
        """What has struck."""

    def act(self) -> None:
        """Do what is due by now."""
        now = time.monotonic()
        due = [ending for ending in self._endings if ending[0] <= now]
        for ending in due:
            self._endings.remove(ending)
            ending[1]()
        done = self._crew.done
        while self._events and self._events[-1].at <= done:
            if not self._strike(self._events[-1]):
                return  # the one it is for is not at work yet
            self.counts[self._events.pop().nemesis] += 1

    def end(self) -> None:
        """End at once whatever still lasts; nothing is begun any more."""
        self._events.clear()
        for _, ending in self._endings:
            ending()
        self._endings.clear()

    # Inside.

    def _strike(self, event: Event) -> bool:
        match event.nemesis:
            case Nemesis.KILL:
                return self._crew.strike(event.slot, signal.SIGKILL) is not None
            case Nemesis.STOP:
                return self._stop(event.slot)
            case Nemesis.SCRIPT_FLUSH:
                self._db.store.call_apart((b"SCRIPT", b"FLUSH"))
            case Nemesis.CLOCK_BACK:
                self._clock.set_back(self._db.store, HOUR)
            case Nemesis.COLLECT:
                try:
                    self._db.collect_garbage(timedelta(0))
                except LockTimeout:
                    pass  # dropped nothing, which is no fault
            case Nemesis.SERVER_KILL:
                assert self._server is not None
                self._server.kill()
                start_apart(self._server)
            case Nemesis.OUT_OF_MEMORY:
                self._fill_memory()
        return True

    def _stop(self, slot: int) -> bool:
        process = self._crew.strike(slot, signal.SIGSTOP)
        if process is None:
            return False

        def resume(process: subprocess.Popen[bytes] = process) -> None:
            process.send_signal(signal.SIGCONT)  # nothing where it was killed meanwhile

        self._endings.append((time.monotonic() + self._stopped_for, resume))
        return True

    def _fill_memory(self) -> None:
        server = self._server
        assert server is not None

        def limit(memory: int) -> None:
            with server.client() as client:
                client.config_set("maxmemory", memory)

        limit(_NO_MEMORY)
        self._endings.append((time.monotonic() + _FULL_FOR, partial(limit, _UNBOUNDED)))
