"""A table with a base equals its twin without one, while maintainers die and files are damaged."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from percolator_core import BaseDamaged, Database, Snapshot
from percolator_torture.clients.schedule import DEFAULT, OF_BASES, Nemesis
from percolator_torture.faults.damage import (
    Vandal,
    bases_of,
    note_refusal,
    read_refusals,
    unnamed_files,
)
from percolator_torture.faults.doom import STEPS
from percolator_torture.suites.settings import Settings
from percolator_torture.suites.workload_suite import run_workload
from percolator_torture.workloads.twin import (
    COLD,
    SEEN,
    WARM,
    ColdItem,
    Twin,
    WarmItem,
    differences,
)

SEED = 8
BROKEN = Path(__file__).with_name("broken_client.py")


@pytest.mark.slow
def test_twins_are_equal_under_all_nemeses() -> None:
    result = run_workload("twin", Settings(seed=SEED, transactions=800, kills=2, clients=2))
    assert result.ok, f"seed {result.seed}, histories in {result.folder}: {result.wrong}"
    figures = result.figures
    assert set(figures["struck"]) >= {nemesis.value for nemesis in OF_BASES}
    assert sum(figures["bases"]["killed"].values()) == figures["struck"]["kill-maintainer"] == 2
    assert figures["bases"]["damaged"] == {"lost": 1, "torn": 1}
    assert figures["bases"]["passes"]["ok"] > 20
    assert figures["locks_left"] == 0
    [table] = result.tables
    assert len(table.rows) >= len(STEPS) + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "nemeses"), [("leave_out_the_base", ()), ("answer_without_lost_files", (Nemesis.LOSE_FILE,))]
)
def test_a_client_that_reads_a_base_wrongly_is_found_out(bug: str, nemeses: tuple[Nemesis, ...]) -> None:
    program = (sys.executable, str(BROKEN), bug)
    wrong: list[str] = []
    # On a busy machine a run may end before a client reads a lost file; such a run shows nothing.
    for seed in range(SEED, SEED + 4):
        settings = Settings(
            seed=seed, transactions=3000, kills=20, clients=2, nemeses=nemeses, program=program
        )
        result = run_workload("twin", settings)
        if result.folder is not None:
            shutil.rmtree(result.folder)
        wrong += result.wrong
        if wrong:
            break
    assert any("twins differ" in sentence for sentence in wrong), wrong


def test_other_workloads_have_no_faults_of_bases() -> None:
    settings = Settings(transactions=50, kills=0, clients=1, nemeses=(Nemesis.LOSE_FILE,))
    result = run_workload("counter", settings)
    assert result.ok
    assert result.figures["struck"] == {}
    assert "bases" not in result.figures
    assert set(DEFAULT) > OF_BASES


# What it must find.


@pytest.fixture
def twins(db: Database, tmp_path: Path) -> Database:
    """Both twins with the same rows, some of which are in the base."""
    Twin(1).create(db, tmp_path)
    with db.transaction() as t:
        for number in range(20):
            for table in (COLD, WARM):
                t.set(table, f"row{number:02}", "b", b"%d" % number)
            for model in (ColdItem, WarmItem):
                t.upsert(model(id=number, a=number % 3))
    for table in db.maintainer().tables():
        db.flush(table, everything=True)
    return db


def test_equal_twins_do_not_differ(twins: Database) -> None:
    assert list(differences(twins, "now")) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.set(COLD, "row03", "b", b"other"),
        lambda t: t.delete(COLD, "row03", "b"),
        lambda t: t.set(WARM, "row99", "b", b"1"),
        lambda t: t.remove(ColdItem, id=3),
        lambda t: t.upsert(WarmItem(id=3, a=7)),
        lambda t: t.set(SEEN, "row03", COLD, b"1"),
    ],
)
def test_a_difference_of_one_cell_is_found(twins: Database, spoil: Callable[..., object]) -> None:
    with twins.transaction() as t:
        spoil(t)
    [first, *_] = differences(twins, "now")
    assert first.startswith("now: ")


def test_files_that_nobody_names_are_found(twins: Database) -> None:
    tables = twins.maintainer().tables()
    assert list(unnamed_files(twins, tables)) == []
    tablet = next(bases_of(twins, [COLD]))
    Path(f"{tablet.location.folder}/{tablet.name.rpartition('/')[0]}/rows-x.parquet").write_bytes(b"")
    [sentence] = unnamed_files(twins, tables)
    assert "rows-x.parquet" in sentence


@pytest.mark.parametrize("kind", ["lost", "torn"])
def test_a_damaged_file_is_refused_until_it_is_back(twins: Database, tmp_path: Path, kind: str) -> None:
    vandal = Vandal(twins, tmp_path)
    for seed in range(6):
        restore = vandal.damage("torn" if kind == "torn" else "lost", random.Random(seed))
        assert restore is not None
        assert list(differences_or_refusal(twins)) == ["refused"]
        restore()
        assert list(differences_or_refusal(twins)) == []
    assert (vandal.refused, vandal.wrong) == (6, [])


def differences_or_refusal(db: Database) -> list[str]:
    try:
        return list(differences(db, "now"))
    except BaseDamaged:
        return ["refused"]


def test_a_reader_that_is_not_refused_is_found(
    twins: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for read in ("scan", "select"):
        monkeypatch.setattr(Snapshot, read, lambda *_: iter([1, 2]))
    vandal = Vandal(twins, tmp_path)
    restore = vandal.damage("lost", random.Random(1))
    assert restore is not None
    restore()
    [sentence] = vandal.wrong
    assert "returned 2 rows without the file" in sentence


def test_a_refusal_needs_damage_to_that_file_at_that_time(twins: Database, tmp_path: Path) -> None:
    vandal = Vandal(twins, tmp_path)
    before = time.monotonic_ns()
    restore = vandal.damage("lost", random.Random(1))
    assert restore is not None
    [damage] = vandal.damages
    error = BaseDamaged("file:///base", damage.file, "it is missing")
    note_refusal(tmp_path, "c0.1", error, before)
    restore()
    note_refusal(tmp_path, "c0.1", error, before)
    assert list(vandal.unjustified(read_refusals(tmp_path))) == []
    note_refusal(tmp_path, "c0.1", error, time.monotonic_ns())
    note_refusal(tmp_path, "c0.2", BaseDamaged("file:///base", "other", "it is missing"), before)
    assert len(list(vandal.unjustified(read_refusals(tmp_path)))) == 2
