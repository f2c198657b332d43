"""The finding suite, tiny: stores of several sizes take turns, and what is not found is an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from percolator_bench import Figure, Scale, Target, finding, growth, progress
from percolator_bench.servers import Place, place
from percolator_core.errors import PercolatorError
from percolator_core.notifications.dirty import DirtyIndex


@pytest.fixture
def here() -> Iterator[Place]:
    with place("unix") as made:
        yield made


def measured(scale: Scale) -> dict[tuple[str, float | None], Figure]:
    figures = list(finding.measure(scale))
    found = {(figure.name, figure.at): figure for figure in figures}
    assert len(found) == len(figures)
    assert {(figure.suite, figure.axis) for figure in figures} == {("finding", "clean cells")}
    return found


def test_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "SIZES", (1000, 4000))
    monkeypatch.setattr(finding, "CLAIMS", 3)
    told: list[tuple[str, ...]] = []
    with progress.listening(told.append):
        found = measured(Scale(rounds=1, observed=5000))
    what = "claim of 1,000 dirty cells"
    for size in (1000, 4000):
        for name in ("wall", "server's CPU"):
            assert found[f"{what}, {name}", size].unit == "ms"
            assert found[f"{what}, {name}", size].samples == 2
    for name in ("wall", "server's CPU"):
        assert (f"{what}, {name} ÷ 1,000 cells", 1000) not in found
        ratio = found[f"{what}, {name} ÷ 1,000 cells", 4000]
        assert ratio.value > 0
        assert ratio.target == Target("at most", 1.2)
    assert ("loading 4,000 cells", "0%") in told
    assert ("round 2 of 2",) in told


def test_a_small_machine_stops_sooner_and_has_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "CLAIMS", 1)
    found = measured(Scale(rounds=1, observed=50))
    assert {at for _, at in found} == {50}
    assert not any(figure.target for figure in found.values())


def test_a_round_leaves_all_cells_clean(here: Place) -> None:
    store = finding.Store(here, 1500)
    index = DirtyIndex(here.db.client, {("bench", column): ("watch",) for column in growth.COLUMNS})
    assert len(list(here.db.snapshot().scan("bench"))) == store.rows == 300
    assert index.backlog() == {"watch": 0}
    store.make_dirty()
    assert index.backlog() == {"watch": 1000}
    store.claim()
    store.claim()
    assert index.backlog() == {"watch": 1000}
    store.make_clean()
    assert index.backlog() == {"watch": 0}


def test_a_mark_that_is_not_found_is_an_error(here: Place) -> None:
    store = finding.Store(here, 100)
    store.make_dirty()
    handle = here.db.catalog.table("bench")
    tag = handle.tag(finding.row_key(3))
    assert here.raw.zpopmin(tag + b"dirty:watch")
    with pytest.raises(PercolatorError, match="99 of 100 dirty cells were found"):
        store.claim()
