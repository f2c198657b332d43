"""Cause the faults of maintainers, workers and files of columnar bases."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from percolator_torture.clients.crew import Crew
from percolator_torture.clients.schedule import Event, Nemesis
from percolator_torture.faults.damage import Kind, Vandal, read_refusals
from percolator_torture.faults.doom import STEPS, Step, order

DAMAGED_FOR: Final = 0.5
"""Seconds for which a file is damaged, or the disk is full."""
_FULL_AT: Final = 600
"""While the disk is full, only this many bytes of a larger file are written."""

Later = Callable[[float, Callable[[], None]], None]
"""Calls a function after a number of seconds, or at the end of the run."""


class BaseStrikes:
    """Starts each fault of bases. ``roles`` has the role of each process of ``keepers``, by seat."""

    def __init__(
        self, keepers: Crew, roles: Sequence[str], vandal: Vandal, later: Later, stop: float
    ) -> None:
        self._keepers = keepers
        self._roles = roles
        self._later = later
        self._stopped_for = stop
        self._steps = cycle(STEPS)
        self._next = next(self._steps)
        self._doomed: tuple[subprocess.Popen[bytes], Step] | None = None
        self._damaged = False
        self.vandal = vandal
        self.killed: Counter[Step] = Counter()
        """The killed maintainers, by the step of their work."""

    def strike(self, event: Event) -> bool:
        """Start a fault; return True once it has happened, and False if the caller has to call again."""
        match event.nemesis:
            case Nemesis.KILL_MAINTAINER:
                return self._kill_maintainer()
            case Nemesis.STOP_MAINTAINER:
                process = self._keepers.process_of(event.seat % self._roles.index("work"))
                if process is not None:
                    process.send_signal(signal.SIGSTOP)
                    self._later(self._stopped_for, partial(process.send_signal, signal.SIGCONT))
                return process is not None
            case Nemesis.KILL_WORKER:
                return self._keepers.kill(self._roles.index("work")) is not None
            case Nemesis.DISK_FULL:
                return self._fill_disk()
        kind: Kind = "torn" if event.nemesis is Nemesis.TEAR_MANIFEST else "lost"
        return self._damage(kind, random.Random(f"{event}"))

    def judge(self, folder: Path) -> Iterator[str]:
        """Yield a sentence for each damage that a read did not report, and each refusal without damage."""
        yield from self.vandal.wrong
        yield from self.vandal.unjustified(read_refusals(folder))

    def figures(self, folder: Path) -> dict[str, Any]:
        """Return the numbers of kills by step, of damaged files, and of refused reads."""
        passes = self._keepers.totals()
        return {
            "killed": {str(step): self.killed[step] for step in STEPS},
            "damaged": dict(Counter(damage.kind for damage in self.vandal.damages)),
            "refused_at_once": self.vandal.refused,
            "refused_to_clients": len(read_refusals(folder)),
            "passes": {outcome: passes[outcome] for outcome in ("ok", "fail")},
        }

    def _kill_maintainer(self) -> bool:
        """Order a maintainer to kill itself at the next step of `STEPS`; return True once it has done so."""
        if self._doomed is None:
            step = self._next
            process = self._keepers.kill(self._roles.index(step.role), order(step))
            if process is not None:
                self._doomed, self._next = (process, step), next(self._steps)
            return False
        process, step = self._doomed
        if process.poll() is None:
            return False
        self._doomed = None
        self.killed[step] += 1
        return True

    def _fill_disk(self) -> bool:
        seats = [seat for seat, role in enumerate(self._roles) if role in {"flush", "compact"}]
        found = [self._keepers.process_of(seat) for seat in seats]
        processes = [process for process in found if process is not None]

        def limit(size: int) -> None:
            for process in processes:
                if process.poll() is None:
                    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))

        limit(_FULL_AT)
        self._later(DAMAGED_FOR, partial(limit, resource.RLIM_INFINITY))
        return len(processes) == len(seats)

    def _damage(self, kind: Kind, dice: random.Random) -> bool:
        if self._damaged:
            return False
        restore = self.vandal.damage(kind, dice)
        if restore is None:
            return False

        def mend() -> None:
            restore()
            self._damaged = False

        self._damaged = True
        self._later(DAMAGED_FOR, mend)
        return True
