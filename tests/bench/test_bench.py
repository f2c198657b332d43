"""Each suite, tiny: the shape of the results, never how fast this machine is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import fields
from io import FileIO
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from percolator_bench import SUITES, Figure, Note, Report, Scale, Target, progress, run
from percolator_bench.figure import Unit, median_figure
from percolator_bench.machine import this_machine
from percolator_bench.peers.threads import Threads
from percolator_bench.progress import StatusLine
from percolator_bench.rounds import Contestant, race
from percolator_bench.runner import interruptible
from percolator_core.errors import ConfigurationError
from tests.servers.plain import PATIENCE

TINY = Scale(operations=30, rounds=2, writes=3, cells=200)


def figures(suite: str) -> dict[tuple[str, str], Figure]:
    report = run([suite], TINY)
    assert {figure.suite for figure in report.figures} == {suite}
    assert all(figure.low <= figure.value <= figure.high for figure in report.figures)
    found = {(figure.place, figure.name): figure for figure in report.figures}
    assert len(found) == len(report.figures)
    return found


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
    prepared: list[int] = []

    def contestant(name: str) -> Contestant:
        def work(first: int, count: int) -> None:
            turns.append(name)
            numbers.extend(range(first, first + count))

        return Contestant(work, 8, lambda: prepared.append(len(turns)))

    told: list[tuple[str, ...]] = []
    with progress.listening(told.append), progress.step("suite"):
        rates = race({"a": contestant("a"), "b": contestant("b")}, 3)
    assert turns == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert prepared == list(range(8))
    assert len(numbers) == len(set(numbers)) == 2 * (2 + 3 * 8)
    pairs = zip(rates.of("a"), rates.of("b"), strict=True)
    assert rates.ratio("a", "b") == [a / b for a, b in pairs]
    assert told[0] == ("suite",)
    assert told[1] == ("suite", "warming up", "b")
    assert told[-1] == ("suite", "round 3 of 3", "b")


def test_progress_is_one_line_on_a_terminal_and_a_line_a_suite_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for file, expected in (
        (Terminal(), "\r\x1b[Ka\r\x1b[Ka, round 1\r\x1b[Kb\r\x1b[K"),
        (io.StringIO(), "measuring a\nmeasuring b\n"),
    ):
        line = StatusLine(file)
        for steps in (("a",), ("a", "round 1"), ("b",)):
            line.show(steps)
        line.clear()
        assert file.getvalue() == expected


def test_threads_work_together() -> None:
    numbers: list[int] = []
    together = threading.Barrier(4, timeout=60)

    def work(connection: str, number: int) -> None:
        together.wait()
        numbers.append(number)

    with Threads("abcd") as threads:
        threads.run(work, 10, 40)
    assert sorted(numbers) == list(range(10, 50))


def test_one_thread_works_in_the_callers_thread() -> None:
    seen: list[int] = []
    with Threads([None]) as threads:
        threads.run(lambda connection, number: seen.append(threading.get_ident()), 0, 3)
    assert seen == [threading.get_ident()] * 3


def test_a_failure_ends_the_threads_work() -> None:
    def work(connection: str, number: int) -> None:
        if number == 5:
            raise ZeroDivisionError
        started.append(number)

    started: list[int] = []
    with Threads("a") as threads, pytest.raises(ZeroDivisionError):
        threads.run(work, 0, 1000)
    assert started == [0, 1, 2, 3, 4]
    with Threads("ab") as threads, pytest.raises(ZeroDivisionError):
        threads.run(work, 0, 1000)


@pytest.fixture
def report() -> Report:
    made = [
        median_figure("micro", "unix socket", "get", "/s", samples=[100.0, 200.0, 300.0]),
        median_figure("micro", "unix socket", "r", "ratio", samples=[0.5], target=Target("at least", 0.4)),
        median_figure("memory", "per cell", "m", "bytes", samples=[130.0], target=Target("at most", 120)),
        median_figure("growth", "here", "step", "µs", samples=[1.5], axis="cells", at=10_000),
        median_figure("contention", "here", "aborts", "share", samples=[0.25], axis="hot", at=0.5),
    ]
    return Report(this_machine(), made, [Note("micro", "nobody else was measured")])


def test_table_says_what_is_met(report: Report) -> None:
    console = Console(width=120, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    with console.file:
        console.print(report.for_terminal())
    text = console.export_text()
    words = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert words["r"] == ["r", "0.50", "≥", "0.4", "met"]
    assert words["m"] == ["m", "130.0", "B", "≤", "120", "not", "met"]
    assert words["get"] == ["get", "200/s", "150..250"]
    assert f"{report.machine.cores} cores" in text
    assert "step, 10,000 cells" in text
    assert "aborts, 0.5 hot" in text
    assert "micro: nobody else was measured" in text
    assert [figure.name for figure in report.missed] == ["m"]


def test_a_narrow_terminal_cuts_no_number(report: Report) -> None:
    long = "a name that is so long that a terminal of sixty columns has no room for it"
    report.figures.append(median_figure("micro", "here", long, "/s", samples=[1e6, 2e6, 3e6]))
    console = Console(width=60, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    with console.file:
        console.print(report.for_terminal())
    text = console.export_text()
    assert "2,000,000/s" in text
    assert "1,500,000..2,500,000" in text
    assert "…" not in text


@pytest.mark.parametrize("unit", get_args(Unit))
def test_every_unit_can_be_printed(unit: Unit) -> None:
    """That each can be drawn is for test_plot.py, which needs matplotlib."""
    one = median_figure("s", "here", "f", unit, samples=[1.0, 2.0])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(Report(this_machine(), [one]).table())
    [line] = [line for line in console.export_text().splitlines() if line.startswith("f ")]
    assert line.split()[1][0] in "12"


def test_the_report_is_kept_after_each_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(scale: Scale) -> Iterator[Figure | Note]:
        yield median_figure("one", "here", "f", "/s", samples=[1.0])
        yield Note("one", "it is quick")

    def interrupted(scale: Scale) -> Iterator[Figure | Note]:
        raise KeyboardInterrupt

    monkeypatch.setitem(SUITES, "one", measure)
    monkeypatch.setitem(SUITES, "two", interrupted)
    kept: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        run(["one", "two"], TINY, keep=lambda report: kept.append(report.as_dict()))
    [report] = kept
    assert [figure["name"] for figure in report["figures"]] == ["f"]
    assert report["notes"] == [{"suite": "one", "text": "it is quick"}]


def test_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "percolator_core", "bench", "memory", "--cells", "100", "--json"]
    output = tmp_path / "bench.json"
    done = subprocess.run([*command, "--output", output], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert printed == json.loads(output.read_text())
    assert set(printed["machine"]) == {"cores", "python", "server", "date", "load"}
    assert {figure["suite"] for figure in printed["figures"]} == {"memory"}
    assert printed["notes"] == []
    assert done.stderr == "measuring memory\n"


def test_command_names_the_suites_there_are() -> None:
    command = [sys.executable, "-m", "percolator_core", "bench", "speed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert all(suite in done.stderr for suite in SUITES)


def test_help_names_all_suites_and_settings() -> None:
    command = [sys.executable, "-m", "percolator_core", "bench", "--help"]
    environment = os.environ | {"COLUMNS": "200"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert [suite for suite in SUITES if suite not in shown] == []
    options = [f"--{field.name.replace('_', '-')}" for field in fields(Scale)]
    assert [option for option in options if option not in shown] == []


def test_a_plot_that_cannot_be_drawn_is_refused_before_measuring(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "percolator_core", "bench", "memory", "--plot", f"{tmp_path}/bench.exe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "measuring" not in done.stderr


def test_an_interrupt_that_a_finalizer_swallowed_ends_the_run_at_its_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not interrupted")

    swallowed: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: swallowed.append(args.exc_type))
    shown: list[tuple[str, ...]] = []
    before = signal.getsignal(signal.SIGINT)
    with interruptible(shown.append) as tell:
        tell(("round 1",))
        Finalized()
        assert swallowed == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            tell(("round 2",))
    assert shown == [("round 1",)]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_at_any_moment_ends_the_threads() -> None:
    """With `concurrent.futures` it can leave a lock held, for which a thread then waits for ever."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    chance = random.Random(4)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(1000):
            with Threads("abcd") as threads, contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.003 * chance.random())
                while True:
                    threads.run(lambda connection, number: None, 0, 8)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder that sockets fit into, and that PostgreSQL's user may enter."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(short: Path, how: signal.Signals) -> None:
    arguments = [
        "bench",
        "micro",
        "--width",
        "4",
        "--operations",
        "50",
        "--rounds",
        "1000",
    ]
    # On a terminal, whose Ctrl-C also reaches what the command has started.
    master, slave = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "percolator_core", *arguments],
        stdout=slave,
        stderr=slave,
        env=os.environ | {"TMPDIR": str(short), "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(slave)
    with open(master, "rb", buffering=0) as terminal:  # noqa: PTH123
        try:
            before = read_until(terminal, b"round 1 of")
            os.killpg(command.pid, how)
            shown = before + read_until(terminal, None)
            assert command.wait(PATIENCE) == 130
        finally:
            command.kill()
            command.wait()
    assert b"interrupted" in shown
    assert b"Traceback" not in shown
    assert list(short.iterdir()) == []


def read_until(terminal: FileIO, wanted: bytes | None) -> bytes:
    """What is written to the terminal until ``wanted``, or until nobody is left at its other end."""
    shown = b""
    while wanted is None or wanted not in shown:
        try:
            shown += terminal.read(1000) or b""
        except OSError:
            assert wanted is None, shown.decode(errors="replace")
            break
    return shown
