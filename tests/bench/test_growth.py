"""The growth suite, tiny: both stores, alike at first."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from percolator_bench import Figure, Scale, Target, growth, progress
from percolator_bench.servers import Place, place


@pytest.fixture
def here() -> Iterator[Place]:
    with place("unix") as made:
        yield made


def measured(scale: Scale) -> dict[tuple[str, float | None], Figure]:
    figures = list(growth.measure(scale))
    found = {(figure.name, figure.at): figure for figure in figures}
    assert len(found) == len(figures)
    assert {figure.axis for figure in figures} == {"cells"}
    assert all(figure.value > 0 for figure in figures if figure.unit == "ratio")
    return found


@pytest.mark.slow
def test_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "SIZES", (300, 600))
    monkeypatch.setattr(growth, "ROUNDS", 1)
    told: list[tuple[str, ...]] = []
    with progress.listening(told.append):
        found = measured(Scale(operations=20, rounds=2, cells_max=1000))
    for size in (300, 600):
        for what in ("transaction", "scan step", "plain HGETALL"):
            for name in ("wall", "CPU", "server's CPU"):
                assert found[f"{what}, {name}", size].unit == "µs"
            for name in ("wall", "CPU"):
                ratio = found[f"{what}, {name} ÷ 300 cells", size]
                assert ratio.samples == 2
                judged = size == 600 and what != "plain HGETALL"
                assert ratio.target == (Target("at most", 1.2) if judged else None)
            assert found[f"{what}, server's CPU ÷ 300 cells", size].samples == 2
    assert ("loading 600 cells", "50%") in told


@pytest.mark.slow
def test_a_small_machine_stops_sooner_and_has_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "ROUNDS", 1)
    found = measured(Scale(operations=20, rounds=1, cells_max=500))
    assert {at for _, at in found} == {500}
    assert not any(figure.target for figure in found.values())


def test_what_is_there_stays_as_large(here: Place) -> None:
    store = growth.GrowingStore(here)
    store.grow(50)
    store.grow(100)
    store.transactions(10)
    store.clear_histories()
    found = list(here.db.snapshot().scan("bench"))
    assert len(found) == store.rows == 20
    assert {len(cells) for _, cells in found} == {5}
    row = min(growth.row_key(number) for number in range(20))
    assert len(here.db.history("bench", row, "title")) == 1


def test_a_scan_has_a_full_step_ahead_of_it(here: Place) -> None:
    store = growth.GrowingStore(here)
    store.grow(20_000)
    assert store.rows == 4000
    # Its first look at the catalog, a second after the first table, is an HGETALL as well.
    here.db.catalog.due = time.monotonic() + 60
    here.raw.config_resetstat()
    store.scans(5)
    read = here.raw.info("commandstats")["cmdstat_hgetall"]["calls"]
    # Keys are spread evenly: a start in the front three quarters has a page behind it.
    assert read == 5 * 512
