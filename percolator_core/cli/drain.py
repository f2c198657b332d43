"""``drain``: run observers until no notification is left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.counts import counts_data, counts_table
from percolator_core.cli.options import ChainPath, StoreOptions, Threads, Timeout, load_chain
from percolator_core.cli.output import ExitCode, Failure
from percolator_core.cli.signals import handling, stopping
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import count_of
from percolator_core.notation.times import parse_length

if TYPE_CHECKING:
    from rich.progress import Progress

    from percolator_core.cli.output import Output
    from percolator_core.database import Database
    from percolator_core.observers import Chain
    from percolator_core.spark import DrainProgress
    from percolator_core.worker import Counts, Worker

_WIDTH = 256

_LOOK = 0.25
"""Seconds between two reads of the backlog."""


Budget = Annotated[
    str | None, typer.Option(metavar="TIME", help="The same limit as --timeout, such as 90s, 10m or 2h.")
]
OnSpark = Annotated[bool, typer.Option("--spark", help="Run the observers in Spark's executors.")]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="The Spark master. Default: all cores of this machine.")
]
Tasks = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Spark tasks. Default: one per tablet of the largest observed table."
    ),
]
Width = Annotated[
    int | None,
    typer.Option(
        min=1, help="Concurrent runs; with --spark, in each task. Default: 256, or 64 with --spark."
    ),
]
Only = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this observer; may be repeated.")]


def drain(
    path: ChainPath,
    *,
    timeout: Timeout = None,
    budget: Budget = None,
    spark: OnSpark = False,
    master: Master = None,
    tasks: Tasks = None,
    width: Width = None,
    threads: Threads = 8,
    observer: Only = None,
    store: StoreOptions,
) -> None:
    """Run a chain's observers until no notification is left.

    A cell on which an observer fails too often is put in quarantine; `percolator failed PATH` lists it.
    """
    seconds = _seconds(timeout, budget)
    if not spark and (master is not None or tasks is not None):
        raise typer.BadParameter("--master and --tasks need --spark")
    output = outputs.current()
    some = "".join(f" --observer {name}" for name in observer or ())
    output.carry_on = f"`percolator drain {path}{some}` continues"
    chain = load_chain(path)
    # Stay connected while Spark drains, so that an embedded store is started and stopped only once.
    with store.of_chain(chain) as db:
        runs: dict[str, Any] = {"width": width, "threads": threads, "observers": observer or None}
        if spark:
            counts = _with_spark(output, chain, db, seconds, tasks=tasks, master=master, **runs)
        else:
            counts = _here(output, chain, db, seconds, **runs)
    output.result(counts_data(counts), counts_table(counts))
    if counts.quarantined:
        output.note(
            f"{count_of(counts.quarantined, 'cell')} put in quarantine: `percolator failed {path}` lists them"
        )


def _seconds(timeout: float | None, budget: str | None) -> float | None:
    if budget is None:
        return timeout
    if timeout is not None:
        raise typer.BadParameter("--timeout and --budget set the same limit: give only one")
    return parse_length(budget).total_seconds()


def _here(
    output: Output,
    chain: Chain,
    db: Database,
    seconds: float | None,
    *,
    width: int | None,
    threads: int,
    observers: list[str] | None,
) -> Counts:
    from percolator_core.worker import Worker

    worker = Worker(db, chain, threads=threads, width=width or _WIDTH, observers=observers)
    chosen = observers or list(chain.observers)
    with stopping(worker.stop) as received, _progress(output, db, chain, worker, chosen):
        counts = worker.run_until_idle(seconds)
    if received.number:
        raise KeyboardInterrupt
    return counts


def _with_spark(
    output: Output,
    chain: Chain,
    db: Database,
    seconds: float | None,
    *,
    tasks: int | None,
    width: int | None,
    threads: int,
    master: str | None,
    observers: list[str] | None,
) -> Counts:
    try:
        from percolator_core.spark import NotIdle
        from percolator_core.spark import drain as spark_drain
        from percolator_core.spark.drainer import WIDTH
    except ImportError as error:
        raise ConfigurationError(f"--spark needs Spark ({error}): install percolator-core[spark]") from error
    # SIGTERM interrupts a drain as Ctrl-C does.
    with handling({signal.SIGTERM: signal.default_int_handler}), output.progress() as progress:
        try:
            return spark_drain(
                db,
                chain,
                budget=seconds,
                tasks=tasks,
                width=width or WIDTH,
                threads=threads,
                master=master,
                observers=observers,
                progress=_bar(progress, chain) if output.errors.is_terminal else None,
            )
        except NotIdle as error:
            raise Failure(str(error), ExitCode.NOT_IDLE, **counts_data(error.counts)) from error


def _bar(progress: Progress, chain: Chain) -> Callable[[DrainProgress], None]:
    """Return a function that shows the progress of a drain on Spark as a bar.

    The bar counts runs by the change of the backlog, because tasks report their counts only at the end.
    """
    task = progress.add_task(f"starting Spark for {chain.name}", total=None)
    before = done = 0

    def show(now: DrainProgress) -> None:
        nonlocal before, done
        done += max(0, before - now.left)
        before = now.left
        progress.update(task, completed=done, total=done + now.left, description=f"draining {chain.name}")

    return show


@contextmanager
def _progress(
    output: Output, db: Database, chain: Chain, worker: Worker, observers: Iterable[str]
) -> Iterator[None]:
    """Show a bar of the done and the remaining runs. A thread reads the backlog for the bar."""
    if not output.errors.is_terminal:
        yield
        return
    from percolator_core.admin.status import backlog
    from percolator_core.errors import PercolatorError
    from percolator_core.runtime.periodic import periodically

    with output.progress() as progress:
        task = progress.add_task(f"draining {chain.name}", total=None)

        def show() -> None:
            try:
                counts = backlog(db, chain)
            except PercolatorError:
                return  # the worker gets the same error, and reports it
            left = sum(counts[name] for name in set(observers))
            total = worker.counts.total()
            done = total.ran + total.collapsed + total.quarantined
            progress.update(task, completed=done, total=done + left)

        with periodically(show, _LOOK, "percolator-progress"):
            yield
