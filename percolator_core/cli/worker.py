"""``worker``: run observers until a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from percolator_core.cli import logs
from percolator_core.cli import output as outputs
from percolator_core.cli.counts import counts_data, counts_table
from percolator_core.cli.logs import LogLevel
from percolator_core.cli.options import (
    DEFAULT_URL,
    ChainPath,
    Namespace,
    Threads,
    Url,
    Width,
    connect_to_chain,
    load_chain,
)
from percolator_core.cli.signals import Received, stopping
from percolator_core.runtime.periodic import periodically
from percolator_core.runtime.process import usable_cores

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from percolator_core.cli.output import Output
    from percolator_core.crew import Crew
    from percolator_core.monitoring import Address, Subject
    from percolator_core.observers import Chain
    from percolator_core.worker import Counts, Worker
    from percolator_core.worker.plan import WorkerSettings
    from percolator_core.worker.runs import RunTimes

_LOOK: Final = 0.5
"""Seconds between two updates of the line on a terminal."""


def parse_processes(text: str) -> int:
    """Parse a number of 1 or more, or ``auto``, the number of cores that this process may use.

    Raises typer.BadParameter for other text.
    """
    if text == "auto":
        return usable_cores()
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise typer.BadParameter(f"{str(text)!r} is not a number of processes: write 1 or more, or auto")
    return number


Processes = Annotated[
    int,
    typer.Option(
        parser=parse_processes,
        metavar="N|auto",
        help="Worker processes, each with its own connections; auto: one per core.",
    ),
]


def parse_address(text: str) -> Address:
    """Parse ``PORT`` or ``HOST:PORT``. Raises typer.BadParameter for other text."""
    from percolator_core.monitoring import Address

    try:
        return Address.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--http'") from None


Strategy = Annotated[
    Literal["random", "partitioned"],
    typer.Option(
        help="How workers share the tablets. random: each works on all. partitioned: each works on its own "
        "part first, and on others when its part is idle."
    ),
]
Rolling = Annotated[
    bool,
    typer.Option(
        "--rolling", help="Start even while workers of another version of the chain run, and replace it."
    ),
]
Cpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes for observers with 'executor: processes'. Default: one per core.",
        show_default=False,
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[HOST:]PORT",
        help="Serve /metrics, /healthz and /readyz on this address. Default host: 127.0.0.1.",
        show_default=False,
    ),
]
Level = Annotated[LogLevel, typer.Option("--log-level", help="Log this level and above.")]


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a worker or a crew, and its monitoring address."""

    url: str
    namespace: str | None
    worker: WorkerSettings
    http: Address | None
    log_level: LogLevel


def worker(
    path: ChainPath,
    *,
    processes: Processes = 1,
    width: Width = 256,
    threads: Threads = 8,
    cpus: Cpus = None,
    strategy: Strategy = "random",
    rolling: Rolling = False,
    http: Http = None,
    log_level: Level = "info",
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Run a chain's observers until SIGINT or SIGTERM; any number of workers may run.

    On either signal, the worker finishes its current runs; after 10 seconds it gives the rest back to other
    workers. The exit code is 0 after SIGTERM, and 130 after Ctrl-C.
    """
    output = outputs.current()
    output.carry_on = f"`percolator worker {path}` continues"
    logs.configure(output, log_level)
    address = None if http is None else parse_address(http)
    worker_settings: WorkerSettings = {
        "threads": threads,
        "width": width,
        "cpus": cpus,
        "strategy": strategy,
        "rolling": rolling,
    }
    settings = _Settings(url, namespace, worker_settings, address, log_level)
    if processes == 1:
        _alone(output, path, settings)
    else:
        _crew(output, path, settings, processes)


def _alone(output: Output, path: Path, settings: _Settings) -> None:
    """Run one worker in this process."""
    import structlog

    from percolator_core.worker import Worker
    from percolator_core.worker.runs import RunTimes

    log = structlog.get_logger("percolator.worker")
    chain = load_chain(path)
    times = RunTimes(chain.observers, logged=settings.log_level == "debug")
    with connect_to_chain(settings.url, settings.namespace, chain) as db:
        made = Worker(db, chain, **settings.worker, listener=times.take)
        with (
            stopping(made.stop) as received,
            _monitored(settings, lambda: _subject_of_one(made, chain, db.namespace, received, times)),
            _line(output, chain.name, lambda: made.counts),
        ):
            log.info(
                "worker started",
                chain=chain.name,
                namespace=db.namespace,
                store=db.url,
                width=settings.worker["width"],
            )
            counts = made.run()
        if made.abandoned:
            log.warning(
                "runs over their timeout were given back; they end with the process", runs=made.abandoned
            )
        log.info(
            "worker stopped", ran=counts.ran, quarantined=counts.quarantined, seconds=round(counts.seconds, 1)
        )
    if received.number == signal.SIGINT:
        raise KeyboardInterrupt
    output.result(counts_data(counts), counts_table(counts))


def _crew(output: Output, path: Path, settings: _Settings, processes: int) -> None:
    """Run workers in their own processes; this process runs no code of the chain."""
    import structlog

    from percolator_core.crew import Crew

    log = structlog.get_logger("percolator.worker")
    chain = load_chain(path, import_functions=False)
    # Stay connected until the last process has ended, so that an embedded store is started only once.
    with connect_to_chain(settings.url, settings.namespace, chain) as db:
        crew = Crew(
            chain, settings.url, db.namespace, processes, log_level=settings.log_level, **settings.worker
        )
        with (
            stopping(crew.stop) as received,
            _monitored(settings, lambda: _subject_of_crew(crew, chain, db.namespace, received)),
            _line(output, chain.name, lambda: crew.counts),
        ):
            log.info(
                "workers started",
                chain=chain.name,
                namespace=db.namespace,
                store=db.url,
                processes=processes,
                width=settings.worker["width"],
            )
            counts = crew.run()
        log.info(
            "workers stopped",
            ran=counts.ran,
            quarantined=counts.quarantined,
            seconds=round(counts.seconds, 1),
        )
    if received.number == signal.SIGINT:
        raise KeyboardInterrupt
    served = [
        {"process": one.process, "ending": one.ending, **counts_data(one.counts)} for one in crew.served
    ]
    output.result({**counts_data(counts), "processes": served}, counts_table(counts))


def _monitored(settings: _Settings, subject: Callable[[], Subject]) -> AbstractContextManager[Any]:
    """Serve health and metrics over HTTP during the block, if ``--http`` is set."""
    if settings.http is None:
        return nullcontext()
    import structlog

    from percolator_core.database import connect
    from percolator_core.monitoring import Monitor
    from percolator_core.monitoring.probe import PATIENCE

    watched = subject()
    monitor = Monitor(
        settings.http,
        watched,
        lambda: connect(settings.url, watched.namespace, patience=PATIENCE, timeout=PATIENCE),
    )
    structlog.get_logger("percolator.worker").info("serving health and metrics", url=monitor.url)
    return monitor


def _subject_of_one(
    made: Worker, chain: Chain, namespace: str, received: Received, times: RunTimes
) -> Subject:
    from percolator_core.monitoring import Subject

    return Subject(
        chain,
        namespace,
        counts=lambda: made.counts,
        begun=lambda: made.begun,
        stalled=made.stalled,
        stopping=lambda: bool(received.number),
        times=times.histograms,
    )


def _subject_of_crew(crew: Crew, chain: Chain, namespace: str, received: Received) -> Subject:
    from percolator_core.monitoring import Subject

    return Subject(
        chain,
        namespace,
        counts=lambda: crew.counts,
        begun=lambda: crew.begun,
        stalled=crew.stalled,
        stopping=lambda: bool(received.number),
        processes=lambda: len(crew.processes),
        replaced=lambda: len(crew.served),
        times=crew.times,
    )


@contextmanager
def _line(output: Output, name: str, counts: Callable[[], Counts]) -> Iterator[None]:
    """Show the counts so far in one line, on a terminal only."""
    if not output.errors.is_terminal:
        yield
        return
    before = 0
    with output.status(f"{name}: starting") as line:

        def show() -> None:
            nonlocal before
            total = counts().total()
            rate = (total.ran - before) / _LOOK
            before = total.ran
            line.update(
                f"{name}: {total.ran} ran ({rate:.0f}/s), {total.conflicts} conflicts, "
                f"{total.failed} failed, {total.quarantined} in quarantine; Ctrl-C stops"
            )

        with periodically(show, _LOOK, "percolator-status-line"):
            yield
