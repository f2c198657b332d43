"""The backlog suite, tiny: the pile is what it is said to be, and the worker is weighed."""

from __future__ import annotations

import os

import pytest

from percolator_bench import Scale, Target, backlog
from percolator_bench.servers import place
from percolator_bench.workers import shipped_chain
from percolator_core.notifications.dirty import DirtyIndex

MARKS = 60_000
"""A hundredth of them takes more memory than what the server needs for itself meanwhile, a few kilobytes."""


def test_both_backlogs() -> None:
    figures = list(backlog.measure(Scale(marks=MARKS)))
    found = {(figure.name, figure.at): figure for figure in figures}
    assert len(found) == len(figures)
    for marks in (MARKS // 100, MARKS):
        assert found["server's memory for one", marks].value > 20
        assert found["claim of 256", marks].value > 0
        # The counts come four times a second, which may be once in all.
        assert found["settled by the worker", marks].value >= 0
        assert found["growth of the worker's memory", marks].target == Target("at most", 100)
        # It has an interpreter in it at least.
        assert found["worker's memory, at most", marks].value > 10


def test_each_mark_waits_in_the_tablet_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MARKS_PER_CALL", 7)
    with shipped_chain("piles") as chain, place("unix") as here:
        chain.create_tables(here.db)
        backlog.fill(here, 500)
        dirty = DirtyIndex(here.db.client, chain.observed)
        assert dirty.backlog() == {"settle": 500}
        leases, _ = dirty.claim(100_000)
        table = here.db.catalog.table("piles")
        assert {lease.row for lease in leases} == {b"row:%d" % number for number in range(500)}
        assert all(table.tag(lease.row) == lease.tag for lease in leases)


def test_memory_of_a_process() -> None:
    before = backlog.resident(os.getpid())
    more = b"x" * 50_000_000
    assert backlog.resident(os.getpid()) - before > len(more) // 2
