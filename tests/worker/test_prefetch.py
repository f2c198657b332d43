"""Prefetch and counters in a worker: what each observer asked for, and what it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from percolator_core import Database, Worker
from tests.chains import chain_of, put, watch
from tests.flushing import flush
from tests.servers.plain import PATIENCE


def summing(t: Any, cell: Any) -> None:
    found = t.get_row("docs", cell.row, ["a", "b"])
    assert t.get("docs", cell.row, "text") is not None
    t.set("docs", cell.row, "sum", found["a"] + found["b"])


CHAIN = chain_of(watch("summing", summing, "docs.text"))


def load(db: Database, start: int, stop: int) -> None:
    for number in range(start, stop):
        with db.transaction() as t:
            for column in ("text", "a", "b"):
                t.set("docs", b"%d" % number, column, b"%d" % number)


@pytest.mark.parametrize("prefetch", [True, False])
def test_the_acknowledgement_brings_what_the_runs_read(db: Database, prefetch: bool) -> None:
    CHAIN.create_tables(db)
    worker = Worker(db, CHAIN, prefetch=prefetch)
    load(db, 0, 1)
    counts = worker.run_until_idle(timeout=PATIENCE).observers["summing"]
    # Of the acknowledgement: the observed cell, which the run then finds in the cache, and its own.
    assert (counts.ran, counts.operations, counts.sent, counts.cached) == (1, 5, 2, 1)
    assert (counts.requests, counts.round_trips) == (2, 3)
    load(db, 1, 11)
    counts = worker.run_until_idle(timeout=PATIENCE).observers["summing"]
    assert (counts.ran, counts.operations, counts.cached) == (10, 50, 10)
    if prefetch:
        assert (counts.sent, counts.prefetched, counts.served) == (10, 20, 20)
        assert (counts.requests, counts.round_trips) == (10, 20)
    else:
        assert (counts.sent, counts.prefetched, counts.served) == (20, 0, 0)
        assert (counts.requests, counts.round_trips) == (20, 30)
    for number in range(11):
        assert db.snapshot().get("docs", b"%d" % number, "sum") == b"%d" % number * 2


def test_runs_that_fail_count_too(db: Database) -> None:
    def failing(t: Any, cell: Any) -> None:
        t.get("docs", cell.row, "a")
        raise ValueError

    chain = chain_of(watch("failing", failing, "docs.text"))
    chain.create_tables(db)
    put(db, b"1", b"x")
    before = db.metrics
    counts = Worker(db, chain).run_until_idle(timeout=PATIENCE).observers["failing"]
    assert (counts.failed, counts.ran) == (3, 0)
    assert (counts.operations, counts.sent) == (9, 6)
    now = db.metrics
    assert (now.transactions, now.commits) == (before.transactions + 3, before.commits)
    assert now.operations == before.operations + 9


def test_threads_share_what_they_learn(db: Database) -> None:
    chain = chain_of(watch("summing", summing, "docs.text", executor="threads"))
    chain.create_tables(db)
    worker = Worker(db, chain, threads=3)
    load(db, 0, 20)
    worker.run_until_idle(timeout=PATIENCE)
    load(db, 20, 40)
    counts = worker.run_until_idle(timeout=PATIENCE).observers["summing"]
    assert (counts.ran, counts.sent, counts.served) == (20, 20, 40)


def test_the_sums_have_all_counters(db: Database) -> None:
    CHAIN.create_tables(db)
    load(db, 0, 3)
    counts = Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    assert counts.total() == counts.observers["summing"]


def test_what_a_run_reads_of_the_base_is_right(db: Database, tmp_path: Path) -> None:
    """Prefetch finds no cell in the store, and takes none for missing."""
    CHAIN.create_tables(db)
    worker = Worker(db, CHAIN)
    load(db, 0, 10)
    worker.run_until_idle(timeout=PATIENCE)
    assert flush(db, "docs", tmp_path, observers=["summing"]) == 10
    for number in range(10):
        with db.transaction() as t:
            t.set("docs", b"%d" % number, "text", b"again")
            if number % 2:
                t.set("docs", b"%d" % number, "a", b"new")
    counts = worker.run_until_idle(timeout=PATIENCE).observers["summing"]
    assert counts.ran == 10
    assert counts.prefetched > 0
    for number in range(10):
        old = b"%d" % number
        assert db.snapshot().get("docs", old, "sum") == (b"new" if number % 2 else old) + old
