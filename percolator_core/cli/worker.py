"""``worker``: run observers until a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from percolator_core import telemetry
from percolator_core.cli import logs
from percolator_core.cli import output as outputs
from percolator_core.cli.counts import counts_data, counts_table
from percolator_core.cli.logs import LogLevel
from percolator_core.cli.options import ChainPath, StoreOptions, Threads, Width, load_chain
from percolator_core.cli.output import Output
from percolator_core.cli.signals import Received, stopping
from percolator_core.runtime.log import Log
from percolator_core.runtime.periodic import periodically
from percolator_core.runtime.process import usable_cores

if TYPE_CHECKING:
    from percolator_core.crew import Crew
    from percolator_core.database import Database
    from percolator_core.monitoring import Address
    from percolator_core.observers import Chain
    from percolator_core.worker import Counts, Worker
    from percolator_core.worker.plan import WorkerSettings

_LOOK: Final = 0.5
"""Seconds between two updates of the line on a terminal."""

log = Log("percolator.worker")


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
        "--rolling",
        help="Start even while workers of another version of the chain run, and replace that version.",
    ),
]
Cpus = Annotated[
    int | None,
    typer.Option(min=1, help="Processes for observers with 'executor: processes'. Default: one per core."),
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[HOST:]PORT",
        help="Serve /metrics, /healthz and /readyz on this address. Default host: 127.0.0.1.",
    ),
]
Reload = Annotated[
    Path | None,
    typer.Option(
        "--reload",
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        help="For development: restart the workers when a .py, .yaml or .sql file of the folder changes.",
    ),
]
Level = Annotated[LogLevel, typer.Option("--log-level", help="Log this level and above.")]


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
    reload: Reload = None,
    log_level: Level = "info",
    store: StoreOptions,
) -> None:
    """Run a chain's observers until SIGINT or SIGTERM; any number of workers may run.

    On either signal, the worker finishes its current runs; after 10 seconds it gives the rest back to other
    workers. The exit code is 0 after SIGTERM, and 130 after Ctrl-C.
    """
    output = outputs.current()
    output.carry_on = f"`percolator worker {path}` continues"
    logs.configure(output, log_level)
    address = None if http is None else parse_address(http)
    settings: WorkerSettings = {
        "threads": threads,
        "width": width,
        "cpus": cpus,
        "strategy": strategy,
        "rolling": rolling,
    }
    # The parent of other processes runs no code of the chain.
    chain = load_chain(path, import_functions=processes == 1 and reload is None)
    # Stay connected until the last process has ended, so that an embedded store is started only once.
    with store.of_chain(chain) as db:
        command = _Command(output, chain, db, store.url, processes, address, reload, log_level, settings)
        counts, data = command.run()
    output.result(data, counts_table(counts))


@dataclass(frozen=True, slots=True)
class _Command:
    """Run a worker in this process, or a crew of several processes."""

    output: Output
    chain: Chain
    db: Database
    url: str
    processes: int
    http: Address | None
    reload: Path | None
    log_level: LogLevel
    settings: WorkerSettings

    def run(self) -> tuple[Counts, dict[str, Any]]:
        """Run until a signal; return the counts, and the result for JSON. Raises KeyboardInterrupt."""
        runner, measures = self._runner()
        some = {} if self.processes == 1 and self.reload is None else {"processes": self.processes}
        started, stopped = [f"worker{'s' if some else ''} {verb}" for verb in ("started", "stopped")]
        with (
            stopping(runner.stop) as received,
            self._monitored(runner, received, measures),
            _line(self.output, self.chain.name, lambda: runner.counts),
        ):
            log.info(
                started,
                chain=self.chain.name,
                namespace=self.db.namespace,
                store=self.db.url,
                **some,
                width=self.settings["width"],
            )
            counts = runner.run()
        if abandoned := getattr(runner, "abandoned", 0):
            log.warning(
                "runs that exceeded their timeout could not be stopped: their cells were given back, and the "
                "runs end with the process",
                runs=abandoned,
            )
        log.info(stopped, ran=counts.ran, quarantined=counts.quarantined, seconds=round(counts.seconds, 1))
        if received.number == signal.SIGINT:
            raise KeyboardInterrupt
        served = [
            {"process": one.process, "ending": one.ending, **counts_data(one.counts)}
            for one in getattr(runner, "served", ())
        ]
        return counts, counts_data(counts) | ({"processes": served} if some else {})

    def _runner(self) -> tuple[Worker | Crew, Mapping[str, Any]]:
        """Return the worker or crew, and the fields of `Subject` that differ between worker and crew."""
        if self.processes == 1 and self.reload is None:
            from percolator_core.worker import Worker
            from percolator_core.worker.runs import RunTimes

            times = RunTimes(self.chain.observers, logged=self.log_level == "debug")
            worker = Worker(self.db, self.chain, **self.settings, listener=times.take)
            return worker, {"times": times.histograms}
        from percolator_core.crew import Crew, ReloadingCrew

        arguments = self.chain, self.url, self.db.namespace, self.processes
        if self.reload is None:
            crew = Crew(*arguments, log_level=self.log_level, **self.settings)
        else:
            crew = ReloadingCrew(*arguments, reload=self.reload, log_level=self.log_level, **self.settings)
        return crew, {
            "times": crew.times,
            "processes": lambda: len(crew.processes),
            "replaced": lambda: len(crew.served),
        }

    @contextmanager
    def _monitored(
        self, runner: Worker | Crew, received: Received, measures: Mapping[str, Any]
    ) -> Iterator[None]:
        """Serve health and metrics over HTTP during the block, and send metrics by OTLP, as far as set."""
        pushes = telemetry.is_on("metrics")
        if self.http is None and not pushes:
            yield
            return
        from percolator_core.database import connect
        from percolator_core.monitoring import Monitor, Subject
        from percolator_core.monitoring.exposition import Exposition
        from percolator_core.monitoring.probe import PATIENCE, Probe

        subject = Subject(
            self.chain,
            self.db.namespace,
            counts=lambda: runner.counts,
            begun=lambda: runner.begun,
            stalled=runner.stalled,
            stopping=lambda: bool(received.number),
            **measures,
        )
        opened = partial(connect, self.url, self.db.namespace, patience=PATIENCE, timeout=PATIENCE)
        with ExitStack() as stack:
            if self.http is not None:
                monitor = stack.enter_context(Monitor(self.http, subject, opened))
                log.info("serving health and metrics", url=monitor.url)
            if pushes:
                probe = stack.enter_context(closing(Probe(opened, self.chain)))
                stack.enter_context(telemetry.push(Exposition(subject, probe).families))
            yield


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
