"""What Prometheus is told, read with its own parser."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from prometheus_client.parser import text_string_to_metric_families

import percolator_core
from percolator_core import Worker
from percolator_core.errors import StoreUnavailable
from percolator_core.monitoring.exposition import COUNTERS, Exposition
from percolator_core.monitoring.health import readiness
from percolator_core.monitoring.probe import Probe, ProbeResult
from percolator_core.observers import Retry
from percolator_core.runtime.histogram import BOUNDS, Histogram
from percolator_core.worker import Counts
from percolator_core.worker.attempt import ObserverCounts
from tests.chains import chain_of, put, watch
from tests.monitoring.conftest import State
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Cell, Chain, Database, ObserverTransaction

DOCS = Path(__file__).resolve().parents[2] / "docs"
Found = dict[tuple[str, str], float]


def count(t: ObserverTransaction, cell: Cell) -> None:
    if cell.row == b"bad":
        raise ValueError("no")
    t.set("sums", cell.row, "n", b"1")


def a_chain() -> Chain:
    once = Retry(attempts=1)
    return chain_of(
        watch("count", count, "docs.text", writes=("sums.n",), retry=once),
        watch("idle", lambda t, cell: None, "sums.other"),
    )


def read(exposition: Exposition) -> Found:
    """The samples by their name, and the observer, table or bucket that each is of."""
    body, content_type = exposition.text("")
    assert content_type.startswith("text/plain; version=0.0.4")
    found: Found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = sample.labels
            if not family.name.startswith("process_"):
                assert labels["namespace"] == "here"
            what = labels.get("observer") or labels.get("table") or ""
            found[sample.name, what + labels.get("le", "")] = sample.value
    return found


def test_every_count_has_a_counter() -> None:
    assert COUNTERS.keys() == {field.name for field in fields(ObserverCounts)}


def test_counts_of_a_worker_and_the_state_of_its_store(
    db: Database, probe_of: Callable[[Chain], Probe]
) -> None:
    state = State(a_chain())
    state.chain.create_tables(db)
    for row in ("good", "better", "bad"):
        put(db, row, b"x")
    probe = probe_of(state.chain)
    exposition = Exposition(state.subject(), probe)
    before = read(exposition)
    assert before["percolator_runs_total", "count"] == 0
    assert before["percolator_backlog_cells", "count"] == 3
    assert before["percolator_oldest_cell_age_seconds", "count"] > 0
    assert before["percolator_quarantine_cells", "count"] == 0
    assert before["percolator_observer_active", "idle"] == 1

    worker = Worker(db, state.chain)
    state.counts = worker.run_until_idle(PATIENCE)
    probe.fresh_until = 0.0
    after = read(exposition)
    probe.close()
    assert after["percolator_runs_total", "count"] == 2
    assert after["percolator_runs_total", "idle"] == 0
    assert after["percolator_failures_total", "count"] == 1
    assert after["percolator_quarantined_total", "count"] == 1
    assert after["percolator_quarantine_cells", "count"] == 1
    assert after["percolator_backlog_cells", "count"] == 0
    assert after["percolator_oldest_cell_age_seconds", "count"] == 0
    assert after["percolator_round_trips_total", "count"] == state.counts.observers["count"].round_trips > 0
    assert after["percolator_table_rows", "sums"] == 2
    assert after["percolator_workers", ""] == 0
    assert after["percolator_store_up", ""] == 1
    assert after["percolator_store_memory_bytes", ""] > 0


def test_without_a_store_the_counts_are_told_all_the_same() -> None:
    def refused() -> Database:
        raise StoreUnavailable("away")

    state = State(a_chain(), Counts({"count": ObserverCounts(ran=7)}), stalled=2.5)
    found = read(Exposition(state.subject(), Probe(refused, state.chain)))
    assert found["percolator_runs_total", "count"] == 7
    assert found["percolator_store_up", ""] == 0
    assert found["percolator_stalled_seconds", ""] == 2.5
    assert not [name for name, _ in found if "cells" in name and not name.endswith("_total")]


def test_a_store_that_evicts_is_told_with_its_name(
    opened: Callable[[], Database], probe_of: Callable[[Chain], Probe]
) -> None:
    state = State(a_chain())
    early, late = probe_of(state.chain), probe_of(state.chain)
    with opened() as db, redis.Redis(unix_socket_path=db.store.endpoints()[0].host) as client:
        assert read(Exposition(state.subject(), early))["percolator_store_evicts", ""] == 0
        client.config_set("maxmemory-policy", "allkeys-random")
        try:
            for probe in (early, late):  # the second one connects only now
                until(lambda probe=probe: read_again(probe).evicts)  # type: ignore[misc]
                found = read(Exposition(state.subject(), probe))
                assert found["percolator_store_evicts", ""] == 1
                assert found["percolator_store_up", ""] == 0
                why = readiness(state.subject(), probe.latest()).reason
                assert "set maxmemory-policy noeviction" in why
        finally:
            client.config_set("maxmemory-policy", "noeviction")
        assert not read_again(late).evicts


def read_again(probe: Probe) -> ProbeResult:
    probe.fresh_until = 0.0
    return probe.latest()


def test_the_version_and_the_chain(probe_of: Callable[[Chain], Probe]) -> None:
    state = State(a_chain())
    body, _ = Exposition(state.subject(), probe_of(state.chain)).text("")
    (line,) = re.findall(r"^percolator_build_info\{.*$", body.decode(), re.MULTILINE)
    assert f'version="{percolator_core.__version__}"' in line
    assert f'digest="{state.chain.digest}"' in line


def test_how_long_runs_took(probe_of: Callable[[Chain], Probe]) -> None:
    times = Histogram()
    for seconds in (0.001, 0.002, 0.3, 1000.0):
        times.add(seconds)
    state = State(a_chain(), times={"count": times})
    found = read(Exposition(state.subject(), probe_of(state.chain)))
    buckets = [found["percolator_run_seconds_bucket", f"count{bound}"] for bound in map(str, BOUNDS)]
    assert buckets[:3] == [1, 2, 2]
    assert buckets[-1] == 3
    assert found["percolator_run_seconds_bucket", "count+Inf"] == 4
    assert found["percolator_run_seconds_count", "count"] == 4
    assert found["percolator_run_seconds_sum", "count"] == 1000.303


def test_openmetrics_is_spoken_too(probe_of: Callable[[Chain], Probe]) -> None:
    state = State(a_chain())
    body, content_type = Exposition(state.subject(), probe_of(state.chain)).text(
        "application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")


def test_the_page_names_every_metric_and_no_other(db: Database, probe_of: Callable[[Chain], Probe]) -> None:
    state = State(a_chain(), times={"count": Histogram()})
    state.chain.create_tables(db)
    body, _ = Exposition(state.subject(), probe_of(state.chain)).text("")
    exposed = {
        name
        for name in re.findall(r"^# TYPE (\w+) ", body.decode(), re.MULTILINE)
        if not name.startswith("process_")
    }
    page = (DOCS / "reference" / "metrics.md").read_text()
    assert set(re.findall(r"^\| `(percolator_\w+)` \|", page, re.MULTILINE)) == exposed
