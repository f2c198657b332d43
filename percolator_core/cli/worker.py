"""``worker``: run observers until told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

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
    from percolator_core.cli.output import Output
    from percolator_core.worker import Worker

_LOOK: Final = 0.5
"""Seconds between two updates of the line on a terminal."""


def worker(
    path: ChainPath,
    *,
    width: Width = 256,
    threads: Threads = 8,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Run a chain's observers until SIGINT or SIGTERM; any number of workers may run.

    On either signal the runs under way are finished first. SIGTERM then ends with exit code 0, Ctrl-C with
    130.
    """
    import structlog

    from percolator_core.worker import Worker

    output = outputs.current()
    output.carry_on = f"`percolator worker {path}` carries on"
    log = structlog.get_logger("percolator.worker")
    chain = load_chain(path)
    with connect_to_chain(url, namespace, chain) as db:
        made = Worker(db, chain, threads=threads, width=width)
        with stopping(made.stop) as received, _line(output, chain.name, made):
            log.info("worker started", chain=chain.name, namespace=db.namespace, store=db.url, width=width)
            counts = made.run()
        log.info(
            "worker stopped", ran=counts.ran, quarantined=counts.quarantined, seconds=round(counts.seconds, 1)
        )
    if received.number == signal.SIGINT:
        raise KeyboardInterrupt
    output.result(counts_data(counts), counts_table(counts))


@contextmanager
def _line(output: Output, name: str, worker: Worker) -> Iterator[None]:
    """One line that tells, on a terminal, what the worker has done so far."""
    if not output.errors.is_terminal:
        yield
        return
    over = threading.Event()
    with output.status(f"{name}: starting") as line:

        def watch() -> None:
            before = 0
            while not over.wait(_LOOK):
                total = worker.counts.total()
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
