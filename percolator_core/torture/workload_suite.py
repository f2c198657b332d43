"""One workload under its nemeses: run, settled, checked."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_core.torture.checker import check
from percolator_core.torture.client_process import Orders, open_databases
from percolator_core.torture.clock import FakeClock
from percolator_core.torture.crew import Crew
from percolator_core.torture.faults import FaultyDatabase
from percolator_core.torture.journal import read_history
from percolator_core.torture.nemesis import Strikes, start_apart
from percolator_core.torture.plan import Kind
from percolator_core.torture.recorder import Recorder
from percolator_core.torture.report import Anomaly, Report
from percolator_core.torture.result import Result, count_of
from percolator_core.torture.schedule import BESIDE_COLLECT, FAULTS, OWN_SERVER_ONLY, Nemesis, make_schedule
from percolator_core.torture.settings import Settings
from percolator_core.torture.settling import Settled, read_state, settle
from percolator_core.torture.victim import VictimServer
from percolator_core.torture.workloads import TABLE, WORKLOADS, Workload

TABLETS: Final = 16
STALL_LIMIT: Final = 120.0
"""Seconds without a finished transaction after which a run is given up."""
_DOUBLED: Final = (Anomaly.REPEATED_VERSION, Anomaly.REPEATED_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a workload runs."""

    orders: Orders
    server: VictimServer | None
    db: FaultyDatabase
    folder: Path


def run_workload(name: str, settings: Settings) -> Result:
    """Run a workload and check everything about it.

    Raises:
        ConfigurationError: a nemesis that cannot strike where the workload is to run; no redis-server.
        StoreUnavailable: the server does not answer at the start or at the end.
    """
    _refuse_nemeses(settings)
    began = time.monotonic()
    result = Result(name, settings.seed)
    with _place(name, settings, result) as place:
        workload = WORKLOADS[name](settings.clients)
        place.db.create_table(TABLE, tablets=TABLETS)
        with Recorder(place.db, place.folder, "setup") as recorder:
            workload.prepare(recorder)
        events = make_schedule(
            settings.seed, settings.transactions, settings.kills, settings.clients, settings.nemeses
        )
        with Crew(place.orders, settings.transactions, program=settings.program) as crew:
            strikes = Strikes(events, crew, place.db, place.server, settings.lock_ttl)
            seconds = _run(crew, strikes, name, settings)
        settings.tell(f"{name}: checking", 0, 0)
        result.interrupted = crew.done < settings.transactions and settings.stop.is_set()
        settled = settle(place.db, settings.lock_ttl)
        report, sentences = _judge(workload, place, settings.lock_ttl)
        result.wrong = [*crew.complaints(), *sentences, *_sentences(report)]
        if crew.done < settings.transactions and not result.interrupted:
            result.wrong.append(f"{crew.done} transactions of {settings.transactions} were made")
        if settled.left:
            result.wrong.append(
                f"{count_of(settled.left, 'lock')} stood {2 * settings.lock_ttl:g} s after the last client "
                "and one pass of the janitor"
            )
        _fill_in(result, crew.totals(), strikes.counts, report, settled, seconds)
    result.seconds = time.monotonic() - began
    return result


def _refuse_nemeses(settings: Settings) -> None:
    if Nemesis.COLLECT in settings.nemeses and not BESIDE_COLLECT.issuperset(settings.nemeses):
        raise ConfigurationError(
            "garbage collection takes from the checker what undetermined transactions did: name collect with "
            f"none but {', '.join(sorted(BESIDE_COLLECT - {Nemesis.COLLECT}))}"
        )
    if settings.url is None:
        return
    impossible = [nemesis.value for nemesis in settings.nemeses if nemesis in OWN_SERVER_ONLY]
    if settings.url.startswith("redis") and "+" in settings.url.partition(":")[0]:
        # The fake clock is a key that every script reads, so all of them must be on one server.
        impossible += [nemesis.value for nemesis in settings.nemeses if nemesis is Nemesis.CLOCK_BACK]
    if impossible:
        raise ConfigurationError(
            f"{', '.join(impossible)} cannot be done to the server of --url: name other nemeses, or leave "
            "--url out for a server of its own"
        )


@contextmanager
def _place(name: str, settings: Settings, result: Result) -> Iterator[_Place]:
    """A server, or the one that was named, and a folder for the histories, kept if all is not well."""
    folder = Path(tempfile.mkdtemp(prefix=f"percolator-torture-{name}-"))
    server = None
    if settings.url is None:
        # A server that is to be killed has each reply wait for the disk.
        sync = "always" if Nemesis.SERVER_KILL in settings.nemeses else "everysec"
        server = VictimServer(appendonly="yes", appendfsync=sync)
    try:
        if server is not None:
            start_apart(server)
        orders = Orders(
            url=settings.url or (server.url if server is not None else ""),
            namespace=f"torture-{uuid.uuid4().hex[:12]}",
            folder=str(folder),
            name="c",
            workload=name,
            seed=settings.seed,
            slot=0,
            clients=settings.clients,
            first=0,
            stop=0,
            width=settings.width,
            lock_ttl=settings.lock_ttl,
            nemeses=tuple(nemesis.value for nemesis in settings.nemeses if nemesis in FAULTS),
            fake_clock=Nemesis.CLOCK_BACK in settings.nemeses,
        )
        db, _ = open_databases(orders)
        with db:
            yield _Place(orders, server, db, folder)
            if server is None and result.ok:
                _forget(db)
    finally:
        if server is not None:
            server.close()
        if result.ok:
            shutil.rmtree(folder)
        else:
            result.folder = str(folder)


def _forget(db: FaultyDatabase) -> None:
    """Leave nothing on somebody else's server."""
    db.drop_table(TABLE)
    keys = db.store.keyspace
    clock = FakeClock(keys).key
    db.store.one((b"DEL", keys.oracle, keys.format, keys.catalog, keys.chain, keys.pins, clock))


def _run(crew: Crew, strikes: Strikes, name: str, settings: Settings) -> float:
    """Until all is done, or the user has had enough; returns the seconds of work."""
    settings.tell(f"{name}: starting", 0, settings.transactions)
    crew.await_start()
    began = time.monotonic()
    done, since = crew.done, began
    while crew.active and not settings.stop.is_set():
        strikes.act()
        crew.tend()
        settings.tell(name, crew.done, settings.transactions)
        now = time.monotonic()
        if crew.done != done:
            done, since = crew.done, now
        elif now - since > STALL_LIMIT:
            crew.wrong.append(f"after {done} transactions none was finished for {STALL_LIMIT:g} s")
            break
    strikes.end()
    crew.finish()
    return time.monotonic() - began


def _judge(workload: Workload, place: _Place, lock_ttl: float) -> tuple[Report, list[str]]:
    """The checker's report, and what the workload itself finds wrong."""
    with Recorder(place.db, place.folder, "verify") as recorder:
        state = workload.read_all(recorder)
    history = read_history(place.folder)
    final = read_state(place.db, TABLE, lock_ttl)
    return check(history, final), list(workload.verify(state, history, final))


def _sentences(report: Report) -> list[str]:
    told = [str(violation) for violation in report.violations]
    more = sum(report.counts.values()) - len(told)
    return [*told, *([f"and {more} violations more"] if more else [])]


def _fill_in(  # noqa: PLR0917
    result: Result,
    totals: Counter[str],
    struck: Counter[Nemesis],
    report: Report,
    settled: Settled,
    seconds: float,
) -> None:
    counts = report.counts
    unknown = report.outcomes.get("unknown", 0)
    torn = counts[Anomaly.PARTIAL]
    doubled = sum(counts[name] for name in _DOUBLED)
    faults = {kind.value: totals[kind.value] for kind in Kind if totals[kind.value]}
    result.figures = {
        "transactions": totals["done"],
        "ended": {name: totals[name] for name in ("ok", "fail", "unknown")},
        "attempts": report.transactions,
        "outcomes": dict(report.outcomes),
        "undetermined": {
            "committed": report.committed_unknown,
            "not_committed": unknown - report.committed_unknown,
            "torn": torn,
        },
        "lost": counts[Anomaly.MISSING],
        "doubled": doubled,
        "violations": len(result.wrong),
        "reads": report.reads,
        "scans": report.scans,
        "versions": report.versions,
        "struck": {nemesis.value: count for nemesis, count in sorted(struck.items())},
        "faults": faults,
        "locks_stranded": settled.stranded,
        "locks_left": settled.left,
        "seconds_of_work": round(seconds, 2),
        "transactions_per_second": round(totals["done"] / seconds) if seconds else 0,
    }
    result.run = ", ".join([
        count_of(totals["done"], "transaction"),
        *(f"{count:,} x {nemesis.value}" for nemesis, count in sorted(struck.items())),
        count_of(sum(faults.values()), "fault") + " of the network",
    ])  # fmt: skip
    result.found = (
        f"{counts[Anomaly.MISSING]} lost, {doubled} doubled, {count_of(len(result.wrong), 'violation')}; "
        f"{unknown:,} undetermined: {report.committed_unknown:,} committed whole, "
        f"{unknown - report.committed_unknown:,} not at all, {torn} torn; "
        f"{count_of(settled.left, 'lock')} left (of {settled.stranded:,} stranded)"
    )
