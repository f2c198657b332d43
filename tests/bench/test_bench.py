"""Each suite, tiny: the shape of the results, never how fast this machine is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from percolator_core.bench import SUITES, Figure, Report, Scale, Target, run
from percolator_core.bench.figure import median_figure
from percolator_core.bench.machine import this_machine
from percolator_core.bench.rounds import Contestant, race
from percolator_core.errors import ConfigurationError

TINY = Scale(operations=30, rounds=2, writes=3, cells=200)


def figures(suite: str) -> dict[tuple[str, str], Figure]:
    report = run([suite], TINY)
    assert {figure.suite for figure in report.figures} == {suite}
    assert all(figure.low <= figure.value <= figure.high for figure in report.figures)
    found = {(figure.place, figure.name): figure for figure in report.figures}
    assert len(found) == len(report.figures)
    return found


def test_micro() -> None:
    found = figures("micro")
    for where in ("unix socket", "TCP loopback"):
        for name in ("raw get", "get", "raw set", "write", "2r2w", "hub get", "hub 2r2w, width 64"):
            assert found[where, name].unit == "/s"
            assert found[where, name].value > 0
            assert found[where, name].samples == TINY.rounds
        assert found[where, "get ÷ raw get"].target == Target("at least", 0.9)
        assert found[where, "hub get ÷ hub raw get"].target == Target("at least", 0.9)
        assert found[where, "write ÷ raw set"].target == Target("at least", 0.45)
        assert found[where, "hub 2r2w, width 256 ÷ 2r2w"].target == Target("at least", 8)


def test_latency() -> None:
    found = figures("latency")
    for where in ("unix socket", "TCP loopback"):
        median = found[where, "observer's commit, median"]
        assert median.samples == TINY.writes
        assert median.target == Target("at most", 5)
        assert 0 < median.value <= found[where, "observer's commit, p99"].value


def test_memory() -> None:
    found = figures("memory")
    assert len(found) == 6
    targeted = [name for (_, name), figure in found.items() if figure.target]
    assert targeted == ["5 columns, 20-byte values", "5 columns, 100-byte values"]
    assert all(figure.unit == "bytes" for figure in found.values())


def test_unknown_suite_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="micro, latency, memory"):
        run(["speed"], TINY)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds"):
        Scale(rounds=0)


def test_targets() -> None:
    samples = [1.0, 2.0, 4.0]
    assert median_figure("s", "here", "f", "ms", samples=samples, target=Target("at most", 2)).met
    assert not median_figure("s", "here", "f", "ratio", samples=samples, target=Target("at least", 3)).met
    assert median_figure("s", "here", "f", "/s", samples=samples).met is None


def test_a_race_takes_turns_and_ratios_are_of_one_round() -> None:
    turns: list[str] = []
    numbers: list[int] = []

    def contestant(name: str) -> Contestant:
        def work(first: int, count: int) -> None:
            turns.append(name)
            numbers.extend(range(first, first + count))

        return Contestant(work, 8)

    rates = race({"a": contestant("a"), "b": contestant("b")}, 3)
    assert turns == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert len(numbers) == len(set(numbers)) == 2 * (2 + 3 * 8)
    pairs = zip(rates.of("a"), rates.of("b"), strict=True)
    assert rates.ratio("a", "b") == [a / b for a, b in pairs]


@pytest.fixture
def report() -> Report:
    made = [
        median_figure("micro", "unix socket", "get", "/s", samples=[100.0, 200.0, 300.0]),
        median_figure("micro", "unix socket", "r", "ratio", samples=[0.5], target=Target("at least", 0.4)),
        median_figure("memory", "per cell", "m", "bytes", samples=[130.0], target=Target("at most", 120)),
    ]
    return Report(this_machine(), made)


def test_table_says_what_is_met(report: Report) -> None:
    console = Console(width=120, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    with console.file:
        console.print(report.table())
    text = console.export_text()
    assert "200/s" in text
    assert "met" in text
    assert "not met" in text
    assert f"{report.machine.cores} cores" in text
    assert [figure.name for figure in report.missed] == ["m"]


def test_plot(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from percolator_core.bench.plot import draw

    draw(report, tmp_path / "deep" / "bench.png")
    assert (tmp_path / "deep" / "bench.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigurationError, match=r"bench\.exe"):
        draw(report, tmp_path / "bench.exe")


def test_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "percolator_core.bench", "memory", "--cells", "100", "--json"]
    output = tmp_path / "bench.json"
    done = subprocess.run([*command, "--output", output], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert printed == json.loads(output.read_text())
    assert set(printed["machine"]) == {"cores", "python", "server", "date", "load"}
    assert {figure["suite"] for figure in printed["figures"]} == {"memory"}


def test_command_names_the_suites_there_are() -> None:
    command = [sys.executable, "-m", "percolator_core.bench", "speed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert all(suite in done.stderr for suite in SUITES)
