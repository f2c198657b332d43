"""Run suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_torture.clients.schedule import refuse_impossible
from percolator_torture.suites.loss_suites import run_failover, run_log_loss, run_timestamps
from percolator_torture.suites.result import Result
from percolator_torture.suites.settings import Settings
from percolator_torture.suites.workload_suite import run_workload
from percolator_torture.workloads import WORKLOADS

SUITES: Final[dict[str, Callable[[Settings], Result]]] = {
    **{name: partial(run_workload, name) for name in WORKLOADS},
    "aof": run_log_loss,
    "oracle": run_timestamps,
    "failover": run_failover,
}
"""The suites by name."""

ALL: Final = "all"


def chosen(names: Iterable[str], settings: Settings) -> list[str]:
    """Find suites by name: ``all``, or no name, means all suites that can run with ``settings.url``.

    Raises:
        ConfigurationError: there is no such suite; or a suite or nemesis is not possible at the given URL.
    """
    wanted = list(dict.fromkeys(names)) or [ALL]
    possible = list(SUITES if settings.url is None else WORKLOADS)
    for name in wanted:
        if name != ALL and name not in SUITES:
            raise ConfigurationError(f"there is no suite {name!r}: choose from {', '.join(SUITES)}, {ALL}")
        if name != ALL and name not in possible:
            raise ConfigurationError(f"{name} kills servers, so it starts its own: leave --url out")
    meant = possible if ALL in wanted else wanted
    if not WORKLOADS.keys().isdisjoint(meant):
        refuse_impossible(settings.nemeses, settings.url)
    return meant


def run(names: Iterable[str] = (), settings: Settings | None = None) -> Iterator[Result]:
    """Run suites one after another and yield their results; after ``settings.stop`` no further suite begins.

    Raises:
        ConfigurationError: as for `chosen`, before any run; or no redis-server is installed.
        StoreUnavailable: a server does not start.
    """
    settings = settings or Settings()
    for name in chosen(names, settings):
        if settings.stop.is_set():
            return
        yield SUITES[name](settings)
