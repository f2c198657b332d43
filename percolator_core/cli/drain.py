"""``drain``: run observers until nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

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
from percolator_core.cli.output import count_of
from percolator_core.cli.signals import stopping

if TYPE_CHECKING:
    from percolator_core.cli.output import Output
    from percolator_core.database import Database
    from percolator_core.observers import Chain
    from percolator_core.worker import Worker

_LOOK = 0.25
"""Seconds between two looks at the backlog."""


def drain(
    path: ChainPath,
    *,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after so long, with exit code 4.")
    ] = None,
    width: Width = 256,
    threads: Threads = 8,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Run a chain's observers until no notification is left.

    Cells on which an observer keeps failing end in quarantine: `percolator failed PATH` lists them.
    """
    from percolator_core.worker import Worker

    output = outputs.current()
    output.carry_on = f"`percolator drain {path}` carries on"
    chain = load_chain(path)
    with connect_to_chain(url, namespace, chain) as db:
        worker = Worker(db, chain, threads=threads, width=width)
        with stopping(worker.stop) as received, _progress(output, db, chain, worker):
            counts = worker.run_until_idle(timeout)
    if received.number:
        raise KeyboardInterrupt
    output.result(counts_data(counts), counts_table(counts))
    if counts.quarantined:
        output.note(
            f"{count_of(counts.quarantined, 'cell')} put in quarantine: `percolator failed {path}` lists them"
        )


@contextmanager
def _progress(output: Output, db: Database, chain: Chain, worker: Worker) -> Iterator[None]:
    """A bar of runs done over those done and left; a thread of its own asks for the backlog."""
    if not output.errors.is_terminal:
        yield
        return
    from percolator_core.errors import PercolatorError
    from percolator_core.status import backlog

    over = threading.Event()
    with output.progress() as progress:
        task = progress.add_task(f"draining {chain.name}", total=None)

        def watch() -> None:
            while not over.wait(_LOOK):
                try:
                    left = sum(backlog(db, chain).values())
                except PercolatorError:
                    continue  # the worker meets the same and says so
                total = worker.counts.total()
                done = total.ran + total.collapsed + total.quarantined
                progress.update(task, completed=done, total=done + left)

        thread = threading.Thread(target=watch, name="percolator-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
