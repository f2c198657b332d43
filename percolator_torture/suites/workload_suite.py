"""One workload and its faults: run it, resolve the locks, check the history."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from percolator_core.errors import PercolatorError
from percolator_core.notation.amounts import count_of
from percolator_torture.checker.check import check
from percolator_torture.checker.report import Anomaly, Report
from percolator_torture.clients.base_nemesis import BaseStrikes
from percolator_torture.clients.client_process import Orders, open_databases
from percolator_torture.clients.crew import Crew
from percolator_torture.clients.keeper_process import PROGRAM as KEEPER
from percolator_torture.clients.nemesis import Strikes
from percolator_torture.clients.schedule import FAULTS, OF_BASES, Nemesis, make_schedule, refuse_impossible
from percolator_torture.faults.damage import Vandal
from percolator_torture.faults.plan import Kind
from percolator_torture.faults.store import FaultyDatabase
from percolator_torture.histories.journal import read_history
from percolator_torture.histories.recorder import Recorder
from percolator_torture.histories.settling import Settled, settle
from percolator_torture.histories.survey import find_keys
from percolator_torture.servers.private_server import PrivateServer
from percolator_torture.suites.result import Result, Table
from percolator_torture.suites.settings import Settings
from percolator_torture.workloads import WORKLOADS, Workload

_KEYS_AT_ONCE: Final = 1000
_UNBOUNDED: Final = 10**12
"""The number of passes for a process beside the clients: it never reaches this number."""
STALL_LIMIT: Final = 600.0
"""Seconds without a finished transaction after which a run is given up."""
_DOUBLED: Final = (Anomaly.REPEATED_VERSION, Anomaly.REPEATED_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class _Place:
    """The server of a workload."""

    orders: Orders
    server: PrivateServer | None
    db: FaultyDatabase
    folder: Path


def run_workload(name: str, settings: Settings) -> Result:
    """Run a workload and check its outcome.

    After the start, a store that no longer answers, or a history that cannot be read, is a violation. If
    there is no violation, the folder with the histories is removed; so is the namespace at ``settings.url``.

    Raises:
        ConfigurationError: a nemesis is not possible at ``settings.url``, or no redis-server is installed.
        StoreUnavailable: the server does not answer at the start.
    """
    refuse_impossible(settings.nemeses, settings.url)
    began = time.monotonic()
    result = Result(name, settings.seed)
    with _place(name, settings) as place:
        try:
            _play(name, settings, place, result)
            if place.server is None and result.ok:
                _forget(place.db)
        except (PercolatorError, ValueError) as error:
            result.wrong.append(f"it broke off: {type(error).__name__}: {error}")
        except BaseException as error:
            error.add_note(f"{name} broke off: {_whereabouts(place)}")
            raise
    if result.ok:
        shutil.rmtree(place.folder)
    else:
        result.folder = str(place.folder)
        result.namespace = place.orders.namespace if place.server is None else None
    result.seconds = time.monotonic() - began
    return result


def _whereabouts(place: _Place) -> str:
    where = f"the histories are in {place.folder}"
    return where if place.server else f"{where}, the data in the namespace {place.orders.namespace}"


@contextmanager
def _place(name: str, settings: Settings) -> Iterator[_Place]:
    """Provide a private server or that of ``settings.url``, and a folder that is not removed at the end."""
    with ExitStack() as opened:
        server = None
        if settings.url is None:
            # A server that will be killed replies only after its writes are on disk.
            sync = "always" if Nemesis.SERVER_KILL in settings.nemeses else "everysec"
            server = opened.enter_context(PrivateServer(appendonly="yes", appendfsync=sync))
        folder = Path(tempfile.mkdtemp(prefix=f"percolator-torture-{name}-"))
        orders = Orders(
            url=settings.url or (server.url if server is not None else ""),
            namespace=f"torture-{uuid.uuid4().hex[:12]}",
            folder=str(folder),
            name="c",
            workload=name,
            seed=settings.seed,
            seat=0,
            clients=settings.clients,
            first=0,
            stop=0,
            width=settings.width,
            lock_ttl=settings.lock_ttl,
            nemeses=tuple(nemesis.value for nemesis in settings.nemeses if nemesis in FAULTS),
            fake_clock=Nemesis.CLOCK_BACK in settings.nemeses,
        )
        try:
            db, _ = open_databases(orders)
        except BaseException:
            folder.rmdir()
            raise
        yield _Place(orders, server, opened.enter_context(db), folder)


def _forget(db: FaultyDatabase) -> None:
    """Remove the namespace from a server of the user."""
    keys = find_keys(db, db.store.keyspace.prefix.removesuffix(b"}"))
    db.store.call_many([(b"DEL", key) for key in keys], _KEYS_AT_ONCE)


def _play(name: str, settings: Settings, place: _Place, result: Result) -> None:
    """Prepare, run, resolve the locks and check; record the outcome."""
    workload = WORKLOADS[name](settings.clients)
    workload.create(place.db, place.folder)
    with Recorder(place.db, place.folder, "setup") as recorder:
        workload.prepare(recorder)
    nemeses = [one for one in settings.nemeses if workload.keepers or one not in OF_BASES]
    events = make_schedule(settings.seed, settings.transactions, settings.kills, settings.clients, nemeses)
    with (
        _keepers(workload, place.orders, settings) as keepers,
        Crew(place.orders, settings.transactions, program=settings.program) as crew,
    ):
        of_bases = None
        if workload.keepers:
            of_bases = partial(BaseStrikes, keepers, workload.keepers, Vandal(place.db, place.folder))
        strikes = Strikes(events, crew, place.db, place.server, settings.lock_ttl, of_bases)
        try:
            seconds = _run(crew, keepers, strikes, name, settings)
        finally:
            result.run = _describe(crew.totals(), strikes.counts)
            result.wrong += [*crew.complaints(), *keepers.wrong]
    result.interrupted = crew.done < settings.transactions and settings.stop.is_set()
    settings.tell(f"{name}: checking", 0, 0)
    settled = settle(place.db, settings.lock_ttl)
    result.wrong += workload.conclude(place.db)
    report, sentences = _judge(workload, place, settings.lock_ttl)
    result.wrong += [*sentences, *_sentences(report), *_unfinished(crew, strikes, settings, result)]
    if settled.left:
        result.wrong.append(
            f"{count_of(settled.left, 'lock')} left {2 * settings.lock_ttl:g} s after the end of the last "
            "client, in spite of a call of resolve_locks"
        )
    if strikes.bases is not None:
        result.wrong += strikes.bases.judge(place.folder)
    complaints = len(result.wrong) - len(_sentences(report))
    result.figures = _figures(crew.totals(), strikes.counts, report, complaints, settled, seconds)
    if strikes.bases is not None:
        result.figures["bases"] = strikes.bases.figures(place.folder)
        result.tables.append(_table_of_bases(result.figures["bases"]))
    result.found = _summary(result.figures)


@contextmanager
def _keepers(workload: Workload, orders: Orders, settings: Settings) -> Iterator[Crew]:
    """Start the processes beside the clients, and wait until each has worked."""
    roles = len(workload.keepers)
    orders = replace(orders, name="k", clients=roles)
    with Crew(orders, roles * _UNBOUNDED, program=KEEPER) as keepers:
        until = time.monotonic() + STALL_LIMIT
        while not keepers.started and not settings.stop.is_set() and time.monotonic() < until:
            keepers.tend()
        yield keepers


def _run(crew: Crew, keepers: Crew, strikes: Strikes, name: str, settings: Settings) -> float:
    """Wait until all is done, or the user ends the run; return the seconds in which all clients worked."""
    settings.tell(f"{name}: starting", 0, settings.transactions)
    started: float | None = None
    done, since = crew.done, time.monotonic()
    while (crew.active or strikes.waits_for_bases) and not settings.stop.is_set():
        now = time.monotonic()
        if started is None and crew.started and keepers.started:
            started = now
        if started is not None:
            strikes.act()
        crew.tend()
        keepers.tend()
        settings.tell(name if started is not None else f"{name}: starting", crew.done, settings.transactions)
        if crew.done != done:
            done, since = crew.done, now
        elif now - since > STALL_LIMIT:
            crew.wrong.append(f"after {done} transactions none was finished for {STALL_LIMIT:g} s")
            break
    strikes.end()
    crew.finish()
    keepers.finish()
    return 0.0 if started is None else time.monotonic() - started


def _unfinished(crew: Crew, strikes: Strikes, settings: Settings, result: Result) -> Iterator[str]:
    """Report planned work that was not done, unless the user ended the run."""
    if result.interrupted:
        return
    if crew.done < settings.transactions:
        yield f"{crew.done} transactions of {settings.transactions} were made"
    if strikes.missed:
        missed = ", ".join(f"{count} x {nemesis.value}" for nemesis, count in sorted(strikes.missed.items()))
        yield f"{missed} could not be made in time: make more transactions, or fewer kills"


def _judge(workload: Workload, place: _Place, lock_ttl: float) -> tuple[Report, list[str]]:
    """Combine the checker's report and the violations that the workload finds."""
    with Recorder(place.db, place.folder, "verify") as recorder:
        state = workload.read_all(recorder)
    history = read_history(place.folder)
    final = workload.final(place.db, lock_ttl)
    return check(history, final), list(workload.verify(state, history, final))


def _sentences(report: Report) -> list[str]:
    told = [str(violation) for violation in report.violations]
    more = sum(report.counts.values()) - len(told)
    return [*told, *([f"and {more} violations more"] if more else [])]


def _faults(totals: Counter[str]) -> dict[str, int]:
    return {kind.value: totals[kind.value] for kind in Kind if totals[kind.value]}


def _describe(totals: Counter[str], struck: Counter[Nemesis]) -> str:
    return ", ".join([
        count_of(totals["done"], "transaction"),
        *(f"{count:,} x {nemesis.value}" for nemesis, count in sorted(struck.items())),
        count_of(sum(_faults(totals).values()), "fault") + " of the network",
    ])  # fmt: skip


def _figures(  # noqa: PLR0917
    totals: Counter[str],
    struck: Counter[Nemesis],
    report: Report,
    complaints: int,
    settled: Settled,
    seconds: float,
) -> dict[str, Any]:
    torn = len(report.torn)
    return {
        "transactions": totals["done"],
        "ended": {name: totals[name] for name in ("ok", "fail", "unknown")},
        "attempts": report.transactions,
        "outcomes": dict(report.outcomes),
        "undetermined": {
            "committed": report.committed_unknown - torn,
            "not_committed": report.outcomes.get("unknown", 0) - report.committed_unknown,
            "torn": torn,
        },
        "lost": len(report.lost),
        "doubled": sum(report.counts[name] for name in _DOUBLED),
        "violations": sum(report.counts.values()),
        "complaints": complaints,
        "reads": report.reads,
        "scans": report.scans,
        "versions": report.versions,
        "struck": {nemesis.value: count for nemesis, count in sorted(struck.items())},
        "faults": _faults(totals),
        "locks_stranded": settled.stranded,
        "locks_left": settled.left,
        "seconds_of_work": round(seconds, 2),
        "transactions_per_second": round(totals["done"] / seconds) if seconds else 0,
    }


def _table_of_bases(figures: dict[str, Any]) -> Table:
    """The kills of maintainers, the damage to files, and the refusals."""
    lines = {
        **{f"maintainer killed: {step}": count for step, count in figures["killed"].items()},
        **{f"file {kind} for a while": count for kind, count in figures["damaged"].items()},
        "refused reads of a damaged file, with an empty cache": figures["refused_at_once"],
        "refused reads of a damaged file by clients and maintainers": figures["refused_to_clients"],
        "passes of maintainers and runs of observers": figures["passes"]["ok"],
        "passes that failed": figures["passes"]["fail"],
    }
    rows: list[Sequence[str]] = [(what, f"{count:,}") for what, count in lines.items()]
    return Table("Maintainers and files of the bases", ("what", "times"), rows)


def _summary(figures: dict[str, Any]) -> str:
    undetermined = figures["undetermined"]
    complaints = f", {count_of(figures['complaints'], 'complaint')}" if figures["complaints"] else ""
    return (
        f"{figures['lost']:,} lost, {figures['doubled']:,} doubled, "
        f"{count_of(figures['violations'], 'violation')}{complaints}; "
        f"{sum(undetermined.values()):,} undetermined: {undetermined['committed']:,} committed whole, "
        f"{undetermined['not_committed']:,} not at all, {undetermined['torn']:,} torn; "
        f"{count_of(figures['locks_left'], 'lock')} left (of {figures['locks_stranded']:,} stranded)"
    )
