"""The suite of duplicate runs, tiny: what counts as one, and that doubled work is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from percolator_bench import Figure, Note, Scale, Target, duplicates
from percolator_bench.duplicates import WORKLOADS, Workload
from percolator_bench.servers import Place, place
from percolator_core.errors import PercolatorError
from percolator_core.observers import Chain
from percolator_core.worker import Worker
from percolator_core.worker.attempt import ObserverCounts
from tests.servers.plain import PATIENCE


@pytest.fixture
def here() -> Iterator[Place]:
    with place("unix") as made:
        yield made


def test_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(workload.times, workload.weak) for workload in WORKLOADS] == [
        (1, False),
        (50, False),
        (50, True),
    ]
    monkeypatch.setattr(duplicates, "WORKLOADS", WORKLOADS[:1])
    monkeypatch.setattr(duplicates, "WORKERS", 2)
    made = list(duplicates.measure(Scale(rounds=1, changes=200)))
    figures = {(figure.place, figure.name): figure for figure in made if isinstance(figure, Figure)}
    share = figures["each row once", "begun in vain"]
    assert (share.unit, share.target) == ("share", Target("at most", 0.01))
    for name in ("begun in vain", "of it, executed in vain", "of it, collapsed"):
        assert 0 <= figures["each row once", name].value < 1
    assert figures["each row once", "executions a change"].value >= 1
    (note,) = (one.text for one in made if isinstance(one, Note))
    assert note.startswith("each row once: 200 changes, 200 runs that committed, ")


def test_rows_that_change_again_and_again_are_copied_once_more_at_least(here: Place) -> None:
    chain = Chain.load(Path(duplicates.__file__).parent / "changes")
    chain.create_tables(here.db)
    worker = Worker(here.db, chain)
    for workload in WORKLOADS[1:]:
        row = b"row:weak" if workload.weak else b"row:strong"
        ran = 0
        for number in range(4):
            with here.db.transaction() as t:
                workload.change(t, row, b"%d" % number)
            if number % 2:
                ran += worker.run_until_idle(PATIENCE).ran
        # Two changes at a time became one run.
        assert ran == 2
        duplicates.check(here.db, workload, [row], ran)


def test_what_is_counted() -> None:
    counts = ObserverCounts(ran=90, collapsed=6, conflicts=3, failed=1)
    done = duplicates.Done(80, counts, 2.0)
    assert (done.executed, done.in_vain, done.begun) == (94, 4, 100)
    found = {figure.name: figure.value for figure in duplicates.figures_of(Workload("w", 1), [done])}
    assert found == {
        "begun in vain": 0.1,
        "of it, executed in vain": 4 / 94,
        "of it, collapsed": 0.06,
        "executions a change": 94 / 80,
        "changes": 40,
    }


def test_doubled_and_lost_work_is_an_error(here: Place) -> None:
    db = here.db
    db.create_table("changes")

    def write(column: str, value: bytes) -> None:
        with db.transaction() as t:
            t.set("changes", "row", column, value)

    write("written", b"1")
    with pytest.raises(PercolatorError, match="not at all"):
        duplicates.check(db, WORKLOADS[1], [b"row"], 0)
    write("copied", b"1")
    duplicates.check(db, WORKLOADS[1], [b"row"], 1)
    with pytest.raises(PercolatorError, match="1 copies were committed in 2 runs"):
        duplicates.check(db, WORKLOADS[1], [b"row"], 2)
    write("copied", b"1")
    with pytest.raises(PercolatorError, match="dealt with twice"):
        duplicates.check(db, WORKLOADS[1], [b"row"], 2)
    # Of weak notifications nobody can tell what they are for.
    write("noted", b"1")
    duplicates.check(db, WORKLOADS[2], [b"row"], 2)
    write("written", b"2")
    with pytest.raises(PercolatorError, match="not at all"):
        duplicates.check(db, WORKLOADS[1], [b"row"], 2)
