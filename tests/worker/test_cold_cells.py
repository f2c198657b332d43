"""Observers of a table with a base: a cold cell is run again if a rerun asks for it, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import percolator_core
from percolator_core import Cell, Chain, Database, Hash, PrimaryKey, Table, Transaction, Worker
from percolator_core.admin import rerun as rerun_module
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.rerun import rerun
from percolator_core.admin.trace import trace
from percolator_core.base.flush import TabletFlush
from percolator_core.errors import TransactionConflict
from percolator_core.maintenance import bases
from percolator_core.notifications.ack import acknowledge
from percolator_core.tables.model import definition_of
from percolator_core.transaction.commit import Commit
from tests.chains import TABLES, chain_of, dirty_of, watch
from tests.flushing import flush, is_cold
from tests.servers.plain import PATIENCE

ROWS = [f"d{number:02}" for number in range(30)]


class Doc(Table, name="docs", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[str]
    text: str | None = None
    lang: str = "en"


class Docs:
    """A table ``docs``, raw or typed, and an observer that counts its runs by row."""

    def __init__(self, db: Database, folder: Path, typed: bool) -> None:
        self.db = db
        self.folder = folder
        self.typed = typed
        self.ran: dict[str, int] = {}
        self.fails = False
        tables = (definition_of(Doc), TABLES[1]) if typed else TABLES
        one = watch("look", self.look, "docs.text", writes=("sums.seen",), revision=2)
        chain = chain_of(one, tables=tables)
        self.chain: Chain = replace(chain, models={"docs": Doc}) if typed else chain
        self.chain.create_tables(db)

    def look(self, t: Any, cell: Cell) -> None:
        if self.fails:
            raise ValueError(cell.row)
        self.ran[cell.row.decode()] = self.ran.get(cell.row.decode(), 0) + 1
        text = t.get("docs", cell.row, "text")
        t.set("sums", cell.row, "seen", text or b"")

    def put(self, *rows: str, text: str | None = "text", lang: str | None = None) -> None:
        with self.db.transaction() as t:
            for row in rows:
                self.write(t, row, text, lang)

    def write(self, t: Transaction, row: str, text: str | None, lang: str | None = None) -> None:
        if self.typed:
            t.upsert(Doc(id=row, text=text, **({} if lang is None else {"lang": lang})))
            return
        if text is None:
            t.delete("docs", row, "text")
        else:
            t.set("docs", row, "text", text.encode())
        if lang is not None:
            t.set("docs", row, "lang", lang.encode())

    def drain(self) -> int:
        """Run until nothing is dirty; return the number of runs."""
        return Worker(self.db, self.chain).run_until_idle(PATIENCE).observers["look"].ran

    def flush(self, before: int | None = None) -> int:
        return flush(self.db, "docs", self.folder, before, observers=["look"])

    def fill(self) -> None:
        """Make rows 0 to 9 cold, 10 to 19 cold with a newer language, 20 to 29 hot. All are observed."""
        self.put(*ROWS[:20], lang="en")
        self.drain()
        assert self.flush() == 20
        with self.db.transaction() as t:
            for row in ROWS[10:20]:
                if self.typed:
                    t.update(Doc, id=row, lang="de")
                else:
                    t.set("docs", row, "lang", b"de")
        self.put(*ROWS[20:], lang="fr")
        self.drain()
        assert all(is_cold(self.db, "docs", row.encode()) == (row < "d10") for row in ROWS)
        self.ran.clear()


@pytest.fixture(params=[False, True], ids=["raw", "typed"])
def docs(request: pytest.FixtureRequest, db: Database, tmp_path: Path) -> Docs:
    return Docs(db, tmp_path / "base", request.param)


def test_a_rerun_reaches_all_rows_once(docs: Docs) -> None:
    docs.fill()
    counts = rerun(docs.db, docs.chain, "look")
    assert (counts.looked_at, counts.chosen, counts.marked, counts.unknown) == (30, 30, 30, 20)
    assert docs.drain() == 30
    assert docs.ran == dict.fromkeys(ROWS, 1)
    assert {row.decode(): cells["seen"] for row, cells in docs.db.snapshot().scan("sums")} == dict.fromkeys(
        ROWS, b"text"
    )
    assert docs.drain() == 0


@pytest.mark.parametrize("page", [1, 4])
def test_a_batch_is_small_however_many_rows_are_cold(
    docs: Docs, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs.fill()
    monkeypatch.setattr(rerun_module, "_BATCH", page)
    batches: list[int] = []
    assert rerun(docs.db, docs.chain, "look", progress=lambda now: batches.append(now.chosen)).chosen == 30
    assert max(now - before for before, now in zip([0, *batches], batches, strict=False)) <= page
    assert docs.drain() == 30
    assert rerun(docs.db, docs.chain, "look", limit=7).chosen == 7
    assert docs.drain() == 7


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("lang = 'en'", ROWS[:10]),
        ("lang = 'de'", ROWS[10:20]),
        ("lang = 'fr'", ROWS[20:]),
        # What the base has is older than its revision: any may have run.
        ("revision < 2", ROWS[:20]),
        ("revision = 2", ROWS),
    ],
)
def test_conditions_are_judged_by_store_and_base_together(docs: Docs, where: str, chosen: list[str]) -> None:
    docs.fill()
    assert rerun(docs.db, docs.chain, "look", [where]).chosen == len(chosen)
    docs.drain()
    assert sorted(docs.ran) == chosen


def test_a_deleted_cell_of_the_base_is_no_cell(docs: Docs) -> None:
    docs.fill()
    docs.put(*ROWS[5:15], text=None)
    docs.drain()
    docs.ran.clear()
    docs.db.collect_garbage(timedelta(0))
    # The deletions are cells: they hide those of the base until a flush.
    assert rerun(docs.db, docs.chain, "look", ["lang != 'fr'"]).unknown == 10
    docs.drain()
    assert docs.ran == dict.fromkeys(ROWS[:20], 1)
    docs.flush()
    assert rerun(docs.db, docs.chain, "look").chosen == 20


def test_cells_that_ran_again_become_cold_again(docs: Docs) -> None:
    docs.fill()
    for _ in range(2):
        rerun(docs.db, docs.chain, "look")
        docs.drain()
        docs.flush()
        docs.db.collect_garbage(timedelta(0))
        assert all(is_cold(docs.db, "docs", row.encode()) for row in ROWS)
    assert docs.ran == dict.fromkeys(ROWS, 2)
    assert docs.drain() == 0
    docs.put(*ROWS, text="changed")
    assert docs.drain() == 30


def rolled_back(docs: Docs, store_url: str, namespace: str) -> None:
    """Write to all rows as a client that dies before its commit."""
    with percolator_core.connect(store_url, namespace) as other:
        t = other.begin()
        for row in ROWS:
            docs.write(t, row, "lost")
        Commit(other.client, t.start_timestamp, t.mutations()).prewrite()
    assert docs.db.resolve_locks(timedelta(0)).rolled_back


def test_a_write_that_was_rolled_back_is_not_observed(docs: Docs, store_url: str, namespace: str) -> None:
    """Its prewrite marks the cell, and the acknowledgement of the version below has gone with the flush."""
    docs.fill()
    rolled_back(docs, store_url, namespace)
    assert sum(dirty_of(docs.db, docs.chain).backlog().values()) == 30
    assert docs.drain() == 0
    assert not docs.ran
    assert not sum(dirty_of(docs.db, docs.chain).backlog().values())


def between_commit_and_mark(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    mark = rerun_module._Rerun._mark

    def later(self: Any, *given: Any) -> int:
        call()
        return mark(self, *given)

    monkeypatch.setattr(rerun_module._Rerun, "_mark", later)


def test_maintenance_between_the_two_steps_of_a_rerun_loses_no_cell(
    docs: Docs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a collection nor a flush takes the deletion of an acknowledgement away."""
    docs.fill()
    between_commit_and_mark(monkeypatch, docs.flush)
    assert rerun(docs.db, docs.chain, "look").marked == 30
    docs.drain()
    assert docs.ran == dict.fromkeys(ROWS, 1)


def test_an_eviction_between_the_two_steps_of_a_rerun_loses_no_cell(
    docs: Docs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush has read and published the rows before the rerun, and evicts them after it."""
    docs.put(*ROWS)
    docs.drain()
    docs.ran.clear()
    evict = TabletFlush._evict

    def later(self: Any, rows: Any, timestamp: int) -> int:
        with monkeypatch.context() as patch:
            between_commit_and_mark(patch, lambda: evict(self, rows, timestamp))
            rerun(docs.db, docs.chain, "look")
        return 0

    monkeypatch.setattr(TabletFlush, "_evict", later)
    docs.flush()
    docs.drain()
    assert sorted(docs.ran) == ROWS


def test_a_cold_cell_in_quarantine_is_retried(docs: Docs) -> None:
    docs.fill()
    docs.fails = True
    rerun(docs.db, docs.chain, "look", ["lang = 'en'"])
    docs.drain()
    quarantine = Quarantine(docs.db, docs.chain)
    assert quarantine.count() == {"look": 10}
    docs.flush()
    docs.fails = False
    assert {one.row.decode() for one in quarantine.cells()} == set(ROWS[:10])
    assert [one.row.decode() for one in quarantine.find("docs", ROWS[3])] == [ROWS[3]]
    assert quarantine.retry() == 10
    assert docs.drain() == 10
    assert docs.ran == dict.fromkeys(ROWS[:10], 1)
    assert quarantine.count() == {"look": 0}


def test_a_run_on_a_cold_cell_conflicts_with_another_one(docs: Docs) -> None:
    docs.fill()
    rerun(docs.db, docs.chain, "look", [f"{'id' if docs.typed else 'row'} = '{ROWS[0]}'"])
    [held], _ = dirty_of(docs.db, docs.chain).claim(10, 0.0)
    run = Transaction(docs.db.client)
    cell = acknowledge(run, held, "strong")
    assert cell is not None
    assert cell.timestamp < run.start_timestamp
    assert docs.drain() == 1
    with pytest.raises(TransactionConflict):
        run.commit()


def states(docs: Docs, row: str, **asked: Any) -> list[list[tuple[str, bool]]]:
    """The outcomes of each change of a row, and whether they repeat an earlier run."""
    found = trace(docs.db, docs.chain, "docs", row, **asked)
    return [[(one.state, one.again) for one in change.outcomes] for change in found.changes]


def test_a_trace_of_a_cold_cell_has_the_runs_of_reruns(docs: Docs) -> None:
    docs.fill()
    for row in (ROWS[0], ROWS[10]):
        assert states(docs, row) == [[("collected", False)]]
    assert states(docs, ROWS[20]) == [[("ran", False)]]
    rerun(docs.db, docs.chain, "look")
    assert states(docs, ROWS[0]) == [[("collected", False), ("pending", False)]]
    docs.drain()
    assert states(docs, ROWS[0]) == [[("collected", False), ("ran", True)]]
    assert states(docs, ROWS[20]) == [[("ran", False), ("ran", True)]]
    rerun(docs.db, docs.chain, "look")
    docs.drain()
    assert states(docs, ROWS[0]) == [[("collected", False), ("ran", True), ("ran", True)]]


def test_a_trace_has_the_change_of_the_base_below_newer_ones(docs: Docs) -> None:
    docs.fill()
    before = docs.db.timestamp()
    docs.put(ROWS[0], text="newer")
    assert states(docs, ROWS[0]) == [[("pending", False)]]
    docs.drain()
    assert states(docs, ROWS[0]) == [[("ran", False)]]
    # The run of the newer change is none of the older one.
    assert states(docs, ROWS[0], change="all") == [[("collected", False)], [("ran", False)]]
    assert states(docs, ROWS[0], change=before) == [[("collected", False)]]
    assert states(docs, ROWS[0], change=1) == []


def test_rows_that_are_in_store_and_base_are_not_cold(docs: Docs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the flush before it evicts leaves them, with their acknowledgements."""
    docs.fill()
    monkeypatch.setattr(TabletFlush, "_evict", lambda *_: 0)
    docs.flush()
    counts = rerun(docs.db, docs.chain, "look", ["revision = 2"])
    assert (counts.looked_at, counts.chosen, counts.unknown) == (30, 30, 20)
    assert states(docs, ROWS[20])[0][0] == ("ran", False)
    docs.drain()
    assert docs.ran == dict.fromkeys(ROWS, 1)


def test_an_observer_that_the_maintainer_does_not_know_yet_loses_nothing(docs: Docs) -> None:
    """It was registered in the tablets, so writes leave marks, and the chain's record does not have it."""
    docs.put(*ROWS)
    assert flush(docs.db, "docs", docs.folder) == 0
    assert docs.drain() == 30
    assert docs.ran == dict.fromkeys(ROWS, 1)


def test_cells_that_came_back_from_a_base_are_not_observed_again(
    docs: Docs, store_url: str, namespace: str
) -> None:
    """Their acknowledgements do not come back, and a transaction that was rolled back leaves marks."""
    docs.db.set_base("docs", str(docs.folder))
    docs.put(*ROWS)
    docs.drain()
    docs.ran.clear()
    assert docs.db.flush("docs", everything=True).rows == 30
    docs.db.set_base("docs", None)
    assert not any(is_cold(docs.db, "docs", row.encode()) for row in ROWS)
    rolled_back(docs, store_url, namespace)
    assert docs.drain() == 0
    counts = rerun(docs.db, docs.chain, "look", ["revision = 1"])
    assert (counts.chosen, counts.unknown) == (30, 30)
    docs.drain()
    assert docs.ran == dict.fromkeys(ROWS, 1)
    assert rerun(docs.db, docs.chain, "look").unknown == 0


@pytest.mark.parametrize("oldest", ["acknowledged late", "not processed yet"])
def test_rows_that_have_to_stay_do_not_keep_the_others(
    docs: Docs, oldest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the budget of memory the rows move that can, though older ones have to stay."""
    monkeypatch.setattr(bases, "SHORTEST_KEEP", 0.0)
    monkeypatch.setattr(bases, "_SAMPLE", 200)
    old, young = ROWS[:15], ROWS[15:]
    Worker(docs.db, docs.chain).run_until_idle(PATIENCE)  # activates the chain
    docs.put(*old, text="text" * 2500)
    if oldest == "acknowledged late":
        docs.put(*young)
        docs.drain()
    else:
        with docs.db.transaction() as t:
            for row in young:
                if docs.typed:
                    t.upsert(Doc(id=row, lang="de"))
                else:
                    t.set("docs", row, "lang", b"de")
    docs.db.set_base("docs", str(tmp_path / "other"), memory=60_000)
    assert docs.db.flush("docs").rows >= 3
    assert docs.drain() == (0 if oldest == "acknowledged late" else 15)
