"""Runs suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from percolator_core.bench import latency, memory, micro
from percolator_core.bench.figure import Figure
from percolator_core.bench.machine import this_machine
from percolator_core.bench.report import Report
from percolator_core.bench.scale import Scale
from percolator_core.errors import ConfigurationError

SUITES: Final[dict[str, Callable[[Scale], Iterator[Figure]]]] = {
    "micro": micro.measure,
    "latency": latency.measure,
    "memory": memory.measure,
}
"""The suites by name."""


def run(
    suites: Iterable[str] = (), scale: Scale | None = None, tell: Callable[[str], None] | None = None
) -> Report:
    """Run the named suites, or all of them when none is named. ``tell`` is told what is being measured.

    Raises:
        ConfigurationError: there is no such suite, or no redis-server to measure.
        StoreUnavailable: a server or worker process did not start.
    """
    names = list(suites) or list(SUITES)
    for name in names:
        if name not in SUITES:
            raise ConfigurationError(f"there is no benchmark {name!r}: choose from {', '.join(SUITES)}")
    machine = this_machine()
    figures: list[Figure] = []
    for name in names:
        if tell is not None:
            tell(name)
        figures.extend(SUITES[name](scale or Scale()))
    return Report(machine, figures)
