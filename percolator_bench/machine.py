"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime

from percolator_core.store.embedded.binary import find_binary


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the time.

    ``load`` is the mean number of processes that wanted a core in the minute before, or None if the system
    does not report it. Other load on the machine makes the figures worse.
    """

    cores: int
    python: str
    server: str
    date: str
    load: float | None

    def __str__(self) -> str:
        load = "" if self.load is None else f" · load {self.load:.1f}"
        return f"{self.cores} cores · Python {self.python} · server {self.server} · {self.date}{load}"


def this_machine() -> Machine:
    """Describe this machine, now."""
    return Machine(
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        server=".".join(map(str, find_binary().version)),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    )
