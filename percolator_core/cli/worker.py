"""``worker``: run observers until told to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.counts import counts_data, counts_table
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
from percolator_core.cli.signals import stopping

if TYPE_CHECKING:
    from pathlib import Path

    from percolator_core.cli.output import Output
    from percolator_core.worker import Counts

_LOOK: Final = 0.5
"""Seconds between two updates of the line on a terminal."""


def parse_processes(text: str) -> int:
    """``auto``, which is the number of cores that this process may use, or a number of 1 or more.

    Raises typer.BadParameter for anything else.
    """
    if text == "auto":
        return usable_cores()
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise typer.BadParameter(f"{str(text)!r} is no number of processes: write 1 or more, or auto")
    return number


def usable_cores() -> int:
    """The cores that this process may use; 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Processes = Annotated[
    int,
    typer.Option(
        parser=parse_processes,
        metavar="N|auto",
        help="Worker processes, each with its own connections; auto: one a core.",
    ),
]


def worker(
    path: ChainPath,
    *,
    processes: Processes = 1,
    width: Width = 256,
    threads: Threads = 8,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Run a chain's observers until SIGINT or SIGTERM; any number of workers may run.

    On either signal the runs under way are finished first. SIGTERM then ends with exit code 0, Ctrl-C with
    130.
    """
    output = outputs.current()
    output.carry_on = f"`percolator worker {path}` carries on"
    if processes == 1:
        _alone(output, path, url, namespace, threads=threads, width=width)
    else:
        _crew(output, path, url, namespace, processes, threads=threads, width=width)


def _alone(output: Output, path: Path, url: str, namespace: str | None, *, threads: int, width: int) -> None:
    """A worker in this process."""
    import structlog

    from percolator_core.worker import Worker

    log = structlog.get_logger("percolator.worker")
    chain = load_chain(path)
    with connect_to_chain(url, namespace, chain) as db:
        made = Worker(db, chain, threads=threads, width=width)
        with stopping(made.stop) as received, _line(output, chain.name, lambda: made.counts):
            log.info("worker started", chain=chain.name, namespace=db.namespace, store=db.url, width=width)
            counts = made.run()
        log.info(
            "worker stopped", ran=counts.ran, quarantined=counts.quarantined, seconds=round(counts.seconds, 1)
        )
    if received.number == signal.SIGINT:
        raise KeyboardInterrupt
    output.result(counts_data(counts), counts_table(counts))


def _crew(
    output: Output,
    path: Path,
    url: str,
    namespace: str | None,
    processes: int,
    *,
    threads: int,
    width: int,
) -> None:
    """Workers in processes of their own; this one runs no code of the chain."""
    import structlog

    from percolator_core.crew import Crew

    log = structlog.get_logger("percolator.worker")
    chain = load_chain(path, import_functions=False)
    # Held open until the last process is gone, so that an embedded store is started and stopped once.
    with connect_to_chain(url, namespace, chain) as db:
        crew = Crew(chain, url, db.namespace, processes, threads=threads, width=width)
        with stopping(crew.stop) as received, _line(output, chain.name, lambda: crew.counts):
            log.info(
                "workers started",
                chain=chain.name,
                namespace=db.namespace,
                store=db.url,
                processes=processes,
                width=width,
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


@contextmanager
def _line(output: Output, name: str, counts: Callable[[], Counts]) -> Iterator[None]:
    """One line that tells, on a terminal, what has been done so far."""
    if not output.errors.is_terminal:
        yield
        return
    over = threading.Event()
    with output.status(f"{name}: starting") as line:

        def watch() -> None:
            before = 0
            while not over.wait(_LOOK):
                total = counts().total()
                rate = (total.ran - before) / _LOOK
                before = total.ran
                line.update(
                    f"{name}: {total.ran} ran ({rate:.0f}/s), {total.conflicts} conflicts, "
                    f"{total.failed} failed, {total.quarantined} in quarantine; Ctrl-C stops"
                )

        thread = threading.Thread(target=watch, name="percolator-status-line", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
