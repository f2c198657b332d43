"""Run suites."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from percolator_bench import (
    backlog,
    base,
    contention,
    duplicates,
    finding,
    growth,
    kills,
    latency,
    memory,
    micro,
    oracle,
    progress,
    stress,
    tables,
    tpce,
    views,
    webindex,
)
from percolator_bench.figure import Figure
from percolator_bench.machine import this_machine
from percolator_bench.report import Note, Report
from percolator_bench.scale import Scale
from percolator_core.errors import ConfigurationError

SUITES: Final[dict[str, Callable[[Scale], Iterator[Figure | Note]]]] = {
    "micro": micro.measure,
    "latency": latency.measure,
    "memory": memory.measure,
    "oracle": oracle.measure,
    "tpce": tpce.measure,
    "contention": contention.measure,
    "growth": growth.measure,
    "webindex": webindex.measure,
    "stress": stress.measure,
    "finding": finding.measure,
    "duplicates": duplicates.measure,
    "backlog": backlog.measure,
    "kills": kills.measure,
    "tables": tables.measure,
    "base": base.measure,
    "views": views.measure,
}
"""The suites by name."""


def run(
    suites: Iterable[str] = (),
    scale: Scale | None = None,
    tell: progress.Listener = lambda _steps: None,
    keep: Callable[[Report], None] | None = None,
) -> Report:
    """Run the named suites, or all of them when none is named.

    ``tell`` is called with the current step; ``keep`` is called with the report after each suite.

    Raises:
        ConfigurationError: there is no such suite, or no redis-server.
        StoreUnavailable: a server or worker process did not start.
    """
    names = list(suites) or list(SUITES)
    for name in names:
        if name not in SUITES:
            raise ConfigurationError(f"there is no benchmark {name!r}: choose from {', '.join(SUITES)}")
    report = Report(this_machine(), [])
    with progress.listening(tell):
        for name in names:
            with progress.step(name):
                report.add(SUITES[name](scale or Scale()))
            if keep is not None:
                keep(report)
    return report


@contextmanager
def interruptible(tell: progress.Listener) -> Iterator[progress.Listener]:
    """Let Ctrl-C and SIGTERM end a run, so that its servers are stopped. For the main thread.

    Python discards an interrupt that comes while a finalizer runs, such as that of a redis-py pipeline. So
    the yielded listener raises KeyboardInterrupt after an interrupt; otherwise it calls ``tell``.
    """
    received = []

    def interrupt(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    def listener(steps: tuple[str, ...]) -> None:
        if received:
            raise KeyboardInterrupt
        tell(steps)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield listener
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
