"""The command ``torture``: tests of the library under faults."""

from __future__ import annotations

import random
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.output import ExitCode, Failure
from percolator_core.notation.amounts import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from percolator_torture.suites.result import Result
    from percolator_torture.suites.settings import Settings

_LARGEST_SEED = 1_000_000


Suites = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE",
        help="bank, append, counter, long-fork, ring, twin, aof, oracle, failover; all when none is named.",
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Repeats the plan and the choices of an earlier run. Default: a new one.",
        show_default=False,
    ),
]
Transactions = Annotated[int, typer.Option(min=1, help="Transactions of each workload.")]
Kills = Annotated[int, typer.Option(min=0, help="Clients killed in each workload.")]
Clients = Annotated[int, typer.Option(min=1, help="Client processes at a time.")]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help="Rounds of aof, oracle and failover. Default: 10, 20, 4.", show_default=False),
]
Nemesis = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Faults in the workloads: kill, stop, drop-request, drop-reply, duplicate, delay, "
        "script-flush, server-kill, clock-back, out-of-memory, collect; of twin alone: kill-maintainer, "
        "stop-maintainer, kill-worker, disk-full, lose-file, tear-manifest; all (but collect); none. "
        "Default: all; with --url, those that other users of the server do not notice.",
        show_default=False,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Run the workloads on this server, cluster or service of sentinels, in a namespace of "
        "their own. Default: private servers that the command starts and stops.",
        show_default=False,
    ),
]
Report = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the figures into this Markdown page, too.")
]
Section = Annotated[str, typer.Option(help="The part of the page that is replaced.")]


def torture(
    suites: Suites = None,
    *,
    seed: Seed = None,
    transactions: Transactions = 20_000,
    kills: Kills = 20,
    clients: Clients = 4,
    rounds: Rounds = None,
    nemesis: Nemesis = None,
    url: Url = None,
    report: Report = None,
    section: Section = "figures",
) -> None:
    """Run workloads while clients, servers and the network fail, and check the outcome.

    Each workload records its transactions, and the record is checked for strong snapshot isolation; aof,
    oracle and failover test the loss of servers and logs. Exits with 1 if a check fails. Ctrl-C ends the
    running suite early, and reports the findings so far.
    """
    from percolator_torture.clients.schedule import DEFAULT, HARMLESS, parse_nemeses
    from percolator_torture.suites.settings import Settings

    default = DEFAULT if url is None else HARMLESS
    settings = Settings(
        seed=random.randrange(_LARGEST_SEED) if seed is None else seed,
        transactions=transactions,
        kills=kills,
        clients=clients,
        rounds=rounds,
        nemeses=default if nemesis is None else parse_nemeses(nemesis),
        url=url,
    )
    keep: Callable[[Sequence[Result]], None] | None = None
    if report is not None:
        keep = partial(_write, report, section, _command(suites or (), settings, nemesis))
    _run(suites or (), settings, keep)


def _run(suites: Sequence[str], settings: Settings, keep: Callable[[Sequence[Result]], None] | None) -> None:
    """Run the suites, print their results, and exit; ``keep`` gets all results so far after each suite."""
    from percolator_core.cli.signals import stopping
    from percolator_torture.suites.runner import run

    output = outputs.current()
    output.carry_on = f"--seed {settings.seed} repeats the plan"
    results: list[Result] = []
    with output.progress() as progress:
        task = progress.add_task("starting", total=None)

        def tell(what: str, done: int, of: int) -> None:
            progress.update(task, description=what, completed=done, total=of or None)

        try:
            with stopping(settings.stop.set) as received:
                for result in run(suites, replace(settings, tell=tell)):
                    results.append(result)
                    if keep is not None:  # at once, so that a later failure cannot lose it
                        keep(results)
                    progress.console.print(_lines(result)[0], highlight=False)
        except BaseException as error:
            for note in getattr(error, "__notes__", ()):
                output.note(note)
            if results:  # the suites before this one
                _print(output, results, settings.seed, ok=False, interrupted=settings.stop.is_set())
            raise
    ok, interrupted = all(result.ok for result in results), bool(received.number)
    _print(output, results, settings.seed, ok=ok, interrupted=interrupted)
    _conclude(results, settings.seed, interrupted=interrupted)


def _print(
    output: outputs.Output, results: Sequence[Result], seed: int, *, ok: bool, interrupted: bool
) -> None:
    data = {
        "ok": ok,
        "interrupted": interrupted,
        "seed": seed,
        "suites": [result.as_dict() for result in results],
    }
    output.result(data, *[line for result in results for line in _lines(result)], *_tables(results))


def _command(suites: Sequence[str], settings: Settings, nemesis: str | None) -> str:
    """Return the command line that repeats the run, without the page and the URL of a user's server."""
    usual = type(settings)()
    numbers = {name: getattr(settings, name) for name in ("transactions", "kills", "clients", "rounds")}
    changed = [f"--{name} {number}" for name, number in numbers.items() if number != getattr(usual, name)]
    parts = ["percolator torture", *suites, *changed]
    if nemesis is not None:
        parts.append(f"--nemesis {shlex.quote(nemesis)}")
    if settings.url is not None:
        parts.append("--url URL")
    return " ".join([*parts, f"--seed {settings.seed}"])


def _write(report: Path, section: str, command: str, results: Sequence[Result]) -> None:
    from percolator_torture.suites.markdown import this_machine, write_report

    write_report(report, section, this_machine(), command, results)


def _lines(result: Result) -> list[str]:
    from percolator_torture.suites.result import TOLD

    early = " (ended early)" if result.interrupted else ""
    lines = [
        f"{result.suite}{early}: {'ok' if result.ok else 'WRONG'}, {result.seconds:.0f} s",
        *(f"  {told}" for told in (result.run, result.found) if told),
        *(f"  wrong: {sentence}" for sentence in result.wrong[:TOLD]),
    ]
    if len(result.wrong) > TOLD:
        lines.append(f"  and {len(result.wrong) - TOLD} more")
    if result.folder is not None:
        lines.append(f"  the histories are in {result.folder}")
    if result.namespace is not None:
        lines.append(f"  the data is in the namespace {result.namespace}")
    return lines


def _tables(results: Sequence[Result]) -> list[RenderableType]:
    made: list[RenderableType] = []
    for result in results:
        for measured in result.tables:
            if not measured.rows:
                continue
            numbers = [f">{heading}" for heading in measured.headings[3:]]
            table = outputs.table(*measured.headings[:3], *numbers, title=measured.title)
            for row in measured.rows:
                table.add_row(*row)
            made += ["", table]
    return made


def _conclude(results: Sequence[Result], seed: int, *, interrupted: bool) -> None:
    wrong = [result.suite for result in results if not result.ok]
    if wrong:
        folders = [result.folder for result in results if result.folder is not None]
        kept = f", the histories are in {', '.join(folders)}" if folders else ""
        raise Failure(
            f"{count_of(len(wrong), 'suite')} found errors ({', '.join(wrong)}): "
            f"--seed {seed} repeats the plan{kept}"
        )
    if interrupted:
        raise Failure(
            f"interrupted; all checks until then passed: --seed {seed} repeats the plan",
            ExitCode.INTERRUPTED,
        )
