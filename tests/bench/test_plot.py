"""Pictures of reports: that they can be drawn, and what is drawn together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from percolator_bench import Figure, Report, Target
from percolator_bench.figure import Unit, median_figure
from percolator_bench.machine import this_machine
from percolator_core.errors import ConfigurationError

pytest.importorskip("matplotlib")

from percolator_bench import plot


def curve(
    name: str, unit: Unit = "/s", place: str = "here", at: Sequence[float] = (1, 16, 256)
) -> list[Figure]:
    return [
        median_figure("micro", place, name, unit, samples=[x + 1.0, x + 2.0, x + 4.0], axis="in flight", at=x)
        for x in at
    ]


def draw(figures: list[Figure], path: Path) -> bytes:
    plot.draw(Report(this_machine(), figures), path)
    return path.read_bytes()


def test_all_that_there_is(tmp_path: Path) -> None:
    figures = [
        *curve("get: percolator"),
        *curve("get: PostgreSQL"),
        *curve("time: percolator", "µs", at=(0, 0.5, 1)),
        median_figure("micro", "here", "get ÷ raw", "ratio", samples=[0.9], target=Target("at least", 0.97)),
        median_figure("micro", "here", "2r2w ÷ raw", "ratio", samples=[50.0], target=Target("at least", 5)),
        median_figure(
            "oracle", "one", "n", "/s", samples=[2e6], axis="callers", at=4, target=Target("at least", 1e6)
        ),
    ]
    assert draw(figures, tmp_path / "deep" / "bench.png").startswith(b"\x89PNG")


@pytest.mark.parametrize("unit", get_args(Unit))
def test_every_unit(unit: Unit, tmp_path: Path) -> None:
    bar = median_figure("s", "here", "f", unit, samples=[0.0])
    assert b"<svg" in draw([bar, *curve("f", unit)], tmp_path / "bench.svg")


def test_targets_of_a_curve_are_drawn(tmp_path: Path) -> None:
    one = median_figure(
        "oracle", "here", "n", "/s", samples=[5.0], axis="callers", at=8, target=Target("at least", 20_000)
    )
    two = median_figure("oracle", "here", "n", "/s", samples=[9.0], axis="callers", at=4)
    assert "≥ 20,000" in draw([one, two], tmp_path / "bench.svg").decode()


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"bench\.exe"):
        draw(curve("f"), tmp_path / "bench.exe")


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to draw"):
        draw([], tmp_path / "bench.png")


def test_what_can_be_compared_shares_a_panel() -> None:
    figures = [*curve("get: a"), *curve("get: b"), *curve("set: a"), *curve("get: a", "µs")]
    panels, rest = plot.panels_of_lines(figures)
    assert [panel.title for panel in panels] == [
        "micro: get per second, here",
        "micro: set per second, here",
        "micro: get, microseconds, here",
    ]
    assert {figure.name for figure in panels[0].figures} == {"get: a", "get: b"}
    assert rest == []


def test_a_full_panel_is_cut_by_place_and_so_are_its_suites_others() -> None:
    few = [*curve("set: a", place="one"), *curve("set: a", place="two")]
    [panel], _ = plot.panels_of_lines(few)
    assert panel.places == ["one", "two"]
    assert panel.named(few[0], "a") == "a (one)"
    many = [
        one for place in ("one", "two") for number in range(6) for one in curve(f"get: {number}", place=place)
    ]
    panels, _ = plot.panels_of_lines([*many, *few])
    assert [panel.places for panel in panels] == [["one"], ["two"]] * 2


def test_a_point_alone_is_a_bar() -> None:
    panels, rest = plot.panels_of_lines(curve("f", at=[7]))
    assert panels == []
    [bars] = plot.panels_of_bars(rest)
    assert len(bars.figures) == 1


def test_a_name_has_one_colour_and_peers_have_different_ones() -> None:
    colours = plot.Colours()
    names = ["percolator", "redis-py", "redis-py pipeline", "PostgreSQL", "WATCH/MULTI", "something"]
    first = [colours.of(name) for name in names]
    assert len(set(first)) == len(names)
    assert [colours.of(name) for name in names] == first
