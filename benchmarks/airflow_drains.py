"""Measure the cost of Airflow: the time from a write to a running drain, a drain's rate, a poll's cost.

    .venv/bin/python benchmarks/airflow_drains.py [--writes 10] [--cells 10000] [--rounds 5]

All processes are on this machine: a private redis-server, and Airflow with SQLite; Spark is not used. The
output is JSON, with the figures in docs/explanation/performance.md. airflow_pages.py measures the pages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import percolator_core as percolator
from percolator_core import Chain, Database
from percolator_core.admin.demand import demand
from percolator_core.admin.samples import record
from percolator_core.admin.status import status
from tests.airflow.standalone import Standalone, standalone
from tests.servers.plain import Server, binaries

CHAIN = """\
version: 1
chain: {name}
tables:
  orders: {{tablets: 16}}
  totals: {{tablets: 16}}
airflow:
  observe: {{engine: local, watch: {watch}}}
  monitor: {{schedule: none}}
  maintain: {{schedule: none}}
"""
OBSERVER = """\
version: 1
observer: add_up
observe: orders.amount
function: {name}.work:add_up
writes: [totals.sum]
"""
WORK = """\
def add_up(t, cell):
    amount = t.get(cell.table, cell.row, cell.column)
    t.set("totals", cell.row, "sum", amount + (t.get("totals", cell.row, "sum") or b"")[:50])
"""
DAG = """\
from percolator_airflow import chain_dags

globals().update(chain_dags(__file__.rpartition("/")[0]))
"""
WORKER = """\
import json, sys
import percolator_core as percolator
chain = percolator.Chain.load("by_hand")
with percolator.connect(sys.argv[1], "by_hand") as db:
    counts = percolator.Worker(db, chain).run_until_idle()
print(json.dumps({"ran": counts.ran, "seconds": counts.seconds}))
"""
WIDE = "version: 1\nobserver: {name}\nobserve: {table}.c\nfunction: wide.work:nothing\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--writes", type=int, default=10)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pc-bench-") as folder:
        dags = Path(folder, "dags")
        chains = {name: make_chain(dags, name, watch=name == "watched") for name in ("watched", "by_hand")}
        with closing(Server(next(iter(binaries().values())))) as server:
            figures: dict[str, Any] = {"looks": looks(server, Path(folder))}
            connection = {"conn_type": "percolator", "host": server.tcp}
            environment = {"AIRFLOW_CONN_PERCOLATOR_DEFAULT": json.dumps(connection)}
            with (
                standalone(Path(folder, "airflow"), dags, env=environment) as airflow,
                percolator.connect(server.tcp, "watched") as watched,
                percolator.connect(server.tcp, "by_hand") as by_hand,
            ):
                for db in (watched, by_hand):
                    chains[db.namespace].create_tables(db)
                airflow.await_dags("watched_observe", "by_hand_observe")
                airflow.unpause("watched_observe", "by_hand_observe")
                numbers = range(given.writes + 1)
                figures["write_to_task"] = [
                    from_write_to_task(airflow, watched, number) for number in numbers
                ]
                figures["drains"] = [
                    drains(airflow, by_hand, server.tcp, dags, given.cells) for _ in range(given.rounds)
                ]
    print(json.dumps(figures | {"summary": summary(figures)}, indent=1))


def make_chain(dags: Path, name: str, *, watch: bool) -> Chain:
    """Write a chain of one observer beside the DAG files."""
    project = dags / name
    project.mkdir(parents=True)
    for file, text in {
        "chain.yaml": CHAIN.format(name=name, watch=str(watch).lower()),
        "add_up.yaml": OBSERVER.format(name=name),
        "work.py": WORK,
        "dag.py": DAG,
    }.items():
        (project / file).write_text(text)
    return Chain.load(project, import_functions=False)


def until(condition: Callable[[], Any], limit: float = 120) -> Any:
    """Wait for the first true value of the condition, and return it."""
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def from_write_to_task(airflow: Standalone, db: Database, number: int) -> float:
    """Measure seconds from a commit to the start of the first task of the run that it caused."""
    runs = "/dags/watched_observe/dagRuns"
    until(lambda: not airflow.api("GET", f"{runs}?state=running&state=queued")["dag_runs"])
    before = {run["dag_run_id"] for run in airflow.api("GET", f"{runs}?limit=100")["dag_runs"]}
    with db.transaction() as t:
        t.set("orders", f"write{number}", "amount", b"1")
    written = time.time()

    def started() -> float | None:
        for run in airflow.api("GET", f"{runs}?limit=100")["dag_runs"]:
            if run["dag_run_id"] not in before:
                tasks = airflow.api("GET", f"{runs}/{run['dag_run_id']}/taskInstances")["task_instances"]
                begins = [datetime.fromisoformat(one["start_date"]) for one in tasks if one["start_date"]]
                return min(begins).timestamp() if begins else None
        return None

    took = float(until(started)) - written
    until(lambda: db.snapshot().get("totals", f"write{number}", "sum"))
    return took


def drains(airflow: Standalone, db: Database, url: str, dags: Path, cells: int) -> dict[str, float]:
    """Measure the runs per second of a worker in its own process, and of the operator, with equal work."""
    rates = {}
    write(db, cells)
    output = subprocess.run(
        [sys.executable, "-c", WORKER, url], cwd=dags, capture_output=True, text=True, check=True
    ).stdout
    counts = json.loads(output)
    rates["worker"] = counts["ran"] / counts["seconds"]
    write(db, cells)
    run = airflow.trigger("by_hand_observe")
    assert airflow.await_run("by_hand_observe", run, 120) == "success"
    path = f"/dags/by_hand_observe/dagRuns/{run}/taskInstances/generation_1.add_up/xcomEntries/return_value"
    found = airflow.api("GET", path)["value"]
    result = json.loads(found) if isinstance(found, str) else found
    assert result["ran"] == cells
    rates["operator"] = result["ran"] / result["seconds"]
    return rates


def write(db: Database, cells: int) -> None:
    with db.concurrency(256) as executor:
        for begin in range(0, cells, 100):
            executor.submit(write_some, db, begin, min(cells, begin + 100))


def write_some(db: Database, begin: int, end: int) -> None:
    with db.transaction() as t:
        for row in range(begin, end):
            t.set("orders", f"row{row}", "amount", b"%d" % row)


def looks(server: Server, folder: Path) -> dict[str, float]:
    """Measure the server's CPU seconds of one poll, for 12 observers on tables of 64 tablets."""
    project = folder / "wide"
    project.mkdir()
    tables = "".join(f"  t{number}: {{tablets: 64}}\n" for number in range(12))
    (project / "chain.yaml").write_text(f"version: 1\nchain: wide\ntables:\n{tables}")
    for number in range(12):
        text = WIDE.format(name=f"o{number}", table=f"t{number}")
        (project / f"o{number}.yaml").write_text(text)
    chain = Chain.load(project, import_functions=False)
    with percolator.connect(server.tcp, "wide") as db:
        chain.create_tables(db)
        for begin in range(0, 24_000, 100):
            with db.transaction() as t:
                for row in range(begin, begin + 100):
                    t.set(f"t{row % 12}", f"row{row}", "c", b"1")
        return {
            "monitor": cost(server, lambda: record(db, status(db, chain), 3600.0)),
            "trigger": cost(server, lambda: demand(db, chain)),
        }


def cost(server: Server, look: Callable[[], object], times: int = 200) -> float:
    with server.client() as client:

        def used() -> float:
            told = client.info("cpu")
            return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

        look()
        before = used()
        for _ in range(times):
            look()
        return (used() - before) / times


def summary(figures: dict[str, Any]) -> dict[str, float]:
    # Leave out the first write: it may come before the triggerer has started the watcher.
    waits = figures["write_to_task"][1:]
    ratios = [one["operator"] / one["worker"] for one in figures["drains"]]
    looking = figures["looks"]
    return {
        "write to task, median (s)": statistics.median(waits),
        "write to task, longest (s)": max(waits),
        "operator / worker, median": statistics.median(ratios),
        "operator / worker, least": min(ratios),
        "operator / worker, most": max(ratios),
        "monitoring once a minute, share of the store's time": looking["monitor"] / 60,
        "watching twice a second, share of the store's time": looking["trigger"] * 2,
    }


if __name__ == "__main__":
    main()
