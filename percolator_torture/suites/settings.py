"""The settings of a run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_torture.clients.schedule import DEFAULT, Nemesis

PROGRAM: Final = (sys.executable, "-m", "percolator_torture.clients.client_process")
"""The command of a client process."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of each suite; numbers are 1 or more, ``kills`` 0 or more.

    Each workload has ``transactions`` transactions, ``kills`` kills, and ``clients`` processes of ``width``
    tasks. Each other suite has ``rounds`` rounds (None: the suite's own number). ``lock_ttl`` is in seconds.
    With ``url`` the workloads run on that server, cluster or service of sentinels, in a namespace of their
    own.

    ``tell`` is called with the progress: a description, the number done, and the total. Setting ``stop`` ends
    the run early, with its results so far. ``program`` is the command of a client process.
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
    tell: Callable[[str, int, int], None] = lambda _what, _done, _of: None
    stop: threading.Event = field(default_factory=threading.Event)
    program: Sequence[str] = PROGRAM

    def __post_init__(self) -> None:
        """Raise ConfigurationError if a number is not valid."""
        for name in ("transactions", "clients", "width"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is 1 or more, not {getattr(self, name)}")
        if self.kills < 0:
            raise ConfigurationError(f"kills is 0 or more, not {self.kills}")
        if self.rounds is not None and self.rounds < 1:
            raise ConfigurationError(f"rounds is 1 or more, not {self.rounds}")
        if not self.lock_ttl > 0:
            raise ConfigurationError(f"lock_ttl is above 0, not {self.lock_ttl}")
