"""What to run, and how much of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_torture.clients.schedule import DEFAULT, Nemesis

PROGRAM: Final = (sys.executable, "-m", "percolator_torture.clients.client_process")
"""What a client process runs."""


def _silent(_what: str, _done: int, _of: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much each suite does; numbers are 1 or more, ``kills`` 0 or more.

    ``transactions`` and ``kills`` are those of each workload, ``clients`` its processes, of ``width`` tasks
    each; ``rounds`` those of each of the other suites (None: the suite's own number). ``lock_ttl`` is in
    seconds. With ``url`` the workloads run on that server, cluster or service of sentinels, in a namespace of
    their own.

    ``tell`` is told what is going on: what, how much is done, of how much. Whoever sets ``stop`` ends the run
    early and gets what was found until then. ``program`` is what a client process runs.
    """

    seed: int = 1
    transactions: int = 20_000
    kills: int = 20
    clients: int = 4
    width: int = 16
    rounds: int | None = None
    lock_ttl: float = 0.5
    nemeses: Sequence[Nemesis] = DEFAULT
    url: str | None = None
    tell: Callable[[str, int, int], None] = _silent
    stop: threading.Event = field(default_factory=threading.Event)
    program: Sequence[str] = PROGRAM

    def __post_init__(self) -> None:
        """Raises ConfigurationError for numbers that cannot be."""
        for name in ("transactions", "clients", "width"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is 1 or more, not {getattr(self, name)}")
        if self.kills < 0:
            raise ConfigurationError(f"kills is 0 or more, not {self.kills}")
        if self.rounds is not None and self.rounds < 1:
            raise ConfigurationError(f"rounds is 1 or more, not {self.rounds}")
        if not self.lock_ttl > 0:
            raise ConfigurationError(f"lock_ttl is above 0, not {self.lock_ttl}")
