"""The suite of kills, tiny: a worker is killed and replaced, and a total that is wrong is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from percolator_bench import Figure, Note, Scale, kills
from percolator_bench.servers import Place
from percolator_core.errors import PercolatorError
from percolator_core.layout.records import Cell
from percolator_core.observers import Chain, ObserverTransaction
from percolator_core.worker.attempt import ObserverCounts

EVENTS = 300


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of it are in tests/spark; and the first worker is killed before it holds anything."""
    monkeypatch.setattr(kills, "count_in_spark", lambda lines: None)
    monkeypatch.setattr(kills, "FIRST", 0.0)
    monkeypatch.setattr(kills, "EVERY", 60.0)


def test_all_events_are_counted_once_though_a_worker_is_killed() -> None:
    made = list(kills.measure(Scale(events=EVENTS)))
    found = {one.name: one for one in made if isinstance(one, Figure)}
    assert found["changes"].value > 0
    assert found["workers killed"].value == 1
    assert found["repeated runs"].unit == "count"
    assert found["runs that lost against another"].value >= 0
    [note] = [one for one in made if isinstance(one, Note)]
    assert str(note).startswith(f"kills: {EVENTS} events of ")
    assert "counted anew by a loop: all totals agree" in note.text


@pytest.mark.parametrize("again", [[], [7]], ids=["once", "twice"])
def test_an_update_made_twice_is_an_error(again: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nobody(here: Place, chain: Chain, processes: int) -> Iterator[None]:
        chain.create_tables(here.db)
        yield

    def counted(here: Place, workers: None, events: int) -> kills.Done:
        kills.write_events(here.db, range(events), keys=3)
        for number in [*range(events), *again]:
            with here.db.transaction() as t:
                kills.count(cast(ObserverTransaction, t), Cell("events", b"event:%d" % number, "key", 0))
        return kills.Done(1.0, 0, ObserverCounts())

    monkeypatch.setattr(kills, "workers_of", nobody)
    monkeypatch.setattr(kills, "run_workers", counted)
    if not again:
        assert list(kills.measure(Scale(events=20)))
        return
    with pytest.raises(PercolatorError, match=r"1 totals .* lost or made twice.*key:"):
        list(kills.measure(Scale(events=20)))


@pytest.mark.parametrize("counted", [{}, {"a": (1, 7)}, {"a": (2, 8)}, {"a": (2, 7), "b": (1, 1)}], ids=str)
def test_totals_that_differ(counted: kills.Totals) -> None:
    events = {"a": (2, 7)}
    kills.compare(events, {"a": (2, 7)})
    with pytest.raises(PercolatorError, match="1 totals"):
        kills.compare(events, counted)


def test_counting_anew(tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    events = [("a", "3"), ("b", "1"), ("a", "4")]
    lines.write_text("".join(json.dumps({"key": key, "amount": amount}) + "\n" for key, amount in events))
    assert kills.count_in_python(lines) == {"a": (2, 7), "b": (1, 1)}
