"""``drain`` runs observers until no notification is left; ``wait`` waits for workers that do so."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.counts import counts_data, counts_table
from percolator_core.cli.options import ChainPath, StoreOptions, Threads, Timeout, load_chain
from percolator_core.cli.output import ExitCode, Failure, Output
from percolator_core.cli.signals import handling, stopping
from percolator_core.notation.amounts import count_of
from percolator_core.notation.times import parse_length

if TYPE_CHECKING:
    from rich.progress import Progress

    from percolator_core.database import Database
    from percolator_core.observers import Chain
    from percolator_core.spark import DrainProgress
    from percolator_core.worker import Counts, Worker

_LOOK: Final = 0.25
"""Seconds between two reads of the backlog for the bar."""

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

FailOnQuarantine = Annotated[
    bool, typer.Option("--fail-on-quarantine", help="End with exit code 4 if a cell is in quarantine.")
]
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
    fail_on_quarantine: FailOnQuarantine = False,
    store: StoreOptions,
) -> None:
    """Run a chain's observers until no notification is left.

    A cell on which an observer fails too often is put in quarantine; `percolator failed PATH` lists it. With
    --fail-on-quarantine, cells that were in quarantine before count, too.
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
        runs: dict[str, Any] = {"threads": threads, "observers": observer or None}
        runs |= {} if width is None else {"width": width}
        if spark:
            counts = _with_spark(output, chain, db, budget=seconds, tasks=tasks, master=master, **runs)
        else:
            counts = _here(output, chain, db, seconds, runs)
        quarantined = _quarantined(db, chain, observer) if fail_on_quarantine else 0
    if not (quarantined and output.as_json):
        output.result(counts_data(counts), counts_table(counts))
    if quarantined:
        raise _in_quarantine(chain, quarantined, **counts_data(counts))
    if counts.quarantined:
        output.note(
            f"{count_of(counts.quarantined, 'cell')} put in quarantine: `percolator failed {path}` lists them"
        )


def wait(
    path: ChainPath,
    *,
    timeout: Timeout = None,
    fail_on_quarantine: FailOnQuarantine = False,
    store: StoreOptions,
) -> None:
    """Wait until workers have observed all dirty cells. The command itself runs no observer."""
    output = outputs.current()
    output.carry_on = f"`percolator wait {path}` continues to wait"
    chain = load_chain(path, import_functions=False)
    started = time.monotonic()
    with store.existing(chain) as db:
        _until_idle(output, db, chain, None if timeout is None else started + timeout)
        from percolator_core.admin.status import status

        now = status(db, chain)
    seconds = time.monotonic() - started
    if fail_on_quarantine and now.failed:
        raise _in_quarantine(chain, now.failed)
    text = f"{chain.name} is idle after {seconds:.1f} s" + (
        f", {count_of(now.failed, 'cell')} in quarantine" if now.failed else ""
    )
    output.result({"idle": True, "seconds": round(seconds, 3), "quarantined": now.failed}, text)


def _in_quarantine(chain: Chain, cells: int, **details: object) -> Failure:
    """Return the error of ``--fail-on-quarantine`` for an idle chain; ``details`` are added to its JSON."""
    return Failure(
        f"{chain.name} is idle, with {count_of(cells, 'cell')} in quarantine: "
        f"`percolator failed {chain.path}` lists them",
        ExitCode.NOT_IDLE,
        quarantined=cells,
        **details,
    )


def _seconds(timeout: float | None, budget: str | None) -> float | None:
    if budget is None:
        return timeout
    if timeout is not None:
        raise typer.BadParameter("--timeout and --budget set the same limit: give only one")
    return parse_length(budget).total_seconds()


def _quarantined(db: Database, chain: Chain, observers: Iterable[str] | None) -> int:
    """Return the number of cells in quarantine for these observers, or for all if there are none."""
    from percolator_core.admin.quarantine import Quarantine

    counts = Quarantine(db, chain).count()
    return sum(counts[name] for name in set(observers or counts))


def _here(output: Output, chain: Chain, db: Database, seconds: float | None, runs: dict[str, Any]) -> Counts:
    from percolator_core.worker import Worker

    worker = Worker(db, chain, **runs)
    chosen = runs["observers"] or chain.observers
    with stopping(worker.stop) as received, _progress(output, db, chain, worker, chosen):
        counts = worker.run_until_idle(seconds)
    if received.number:
        raise KeyboardInterrupt
    return counts


def _with_spark(output: Output, chain: Chain, db: Database, **settings: Any) -> Counts:
    from percolator_core.spark import NotIdle
    from percolator_core.spark import drain as spark_drain

    # SIGTERM interrupts a drain as Ctrl-C does.
    with handling({signal.SIGTERM: signal.default_int_handler}), output.progress() as progress:
        try:
            bar = _bar(progress, chain) if output.errors.is_terminal else None
            return spark_drain(db, chain, progress=bar, **settings)
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


def _until_idle(output: Output, db: Database, chain: Chain, deadline: float | None) -> None:
    """Wait until the backlog is empty twice in a row: in a chain with a loop, once is not enough."""
    from percolator_core.admin.status import backlog
    from percolator_core.notifications.activation import live_workers

    pause, nothing = _FIRST_PAUSE, 0
    warned = False
    with output.status(f"waiting for {chain.name}") as line:
        while True:
            left = backlog(db, chain)
            nothing = nothing + 1 if not any(left.values()) else 0
            if nothing == 2:
                return
            if not nothing and not warned and not live_workers(db):
                output.note(f"no worker is running: start one with `percolator worker {chain.path}`")
                warned = True
            if deadline is not None and time.monotonic() >= deadline and not nothing:
                total = sum(left.values())
                raise Failure(
                    f"{chain.name} was not idle within the timeout: {count_of(total, 'cell')} left",
                    ExitCode.NOT_IDLE,
                    backlog=left,
                )
            line.update(f"waiting for {chain.name}: {count_of(sum(left.values()), 'cell')} left")
            time.sleep(pause if nothing == 0 else _FIRST_PAUSE)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
