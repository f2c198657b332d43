"""``percolator torture``: the figures that every change has to reach, and the command itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from percolator_core.cli.app import app
from percolator_core.errors import ConfigurationError
from percolator_torture.clients.schedule import HARMLESS
from percolator_torture.losses.failover import SETTINGS
from percolator_torture.suites import runner
from percolator_torture.suites.loss_suites import run_failover
from percolator_torture.suites.markdown import write_report
from percolator_torture.suites.result import Result, Table
from percolator_torture.suites.runner import chosen, run
from percolator_torture.suites.settings import Settings
from tests.servers.plain import PATIENCE, Server, until

SEED = 4


def invoke(*arguments: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(app, ["torture", *arguments])
    return ended.exit_code, ended.stdout, ended.stderr


def results_of(*names: str, **settings: Any) -> list[Result]:
    results = list(run(names, Settings(seed=SEED, **settings)))
    for result in results:
        assert result.ok, f"{result.suite}, seed {SEED}, histories in {result.folder}: {result.wrong}"
    return results


# The figures.


@pytest.mark.slow
def test_bank_and_append_with_clients_killed() -> None:
    """20,000 transactions and 20 kills in all: none lost, none doubled, all or nothing, no lock left."""
    results = results_of("bank", "append", transactions=10_000, kills=10)
    figures = [result.figures for result in results]
    assert sum(one["transactions"] for one in figures) == 20_000
    assert sum(one["struck"]["kill"] for one in figures) == 20
    for one in figures:
        assert (one["lost"], one["doubled"], one["violations"], one["locks_left"]) == (0, 0, 0, 0)
        assert one["undetermined"]["torn"] == 0


@pytest.mark.slow
def test_power_cuts_lose_nothing_acknowledged() -> None:
    (result,) = results_of("aof", rounds=10)
    always = result.figures["always"]
    found = always["found"]
    assert (always["rounds"], found["lost"], found["torn"], found["doubled"]) == (10, 0, 0, 0)


@pytest.mark.slow
def test_timestamps_over_restarts() -> None:
    (result,) = results_of("oracle", rounds=20)
    assert (result.figures["restarts"], result.figures["repeated"], result.figures["backwards"]) == (20, 0, 0)
    assert result.figures["clock_jumps"] > 0


@pytest.mark.slow
def test_failovers_are_measured() -> None:
    result = run_failover(Settings(seed=SEED, rounds=2), SETTINGS[:2])
    assert [row["rounds"] for row in result.figures["rows"]] == [2, 2, 2, 2]
    assert len(result.tables[0].rows) == 4
    assert result.tables[0].rows[0][-1] == "1.00"


# The command.


def test_it_prints_json() -> None:
    code, out, _ = invoke(
        "counter", "--transactions", "200", "--kills", "0", "--clients", "1", "--nemesis", "none", "--seed",
        "3", "--json",
    )  # fmt: skip
    assert code == 0
    told = json.loads(out)
    assert told["ok"]
    assert not told["interrupted"]
    assert told["seed"] == 3
    (suite,) = told["suites"]
    assert (suite["suite"], suite["wrong_count"], suite["folder"]) == ("counter", 0, None)
    assert suite["figures"]["transactions"] == 200
    assert suite["figures"]["faults"] == {}


@pytest.mark.parametrize(
    ("workload", "transactions"), [("bank", "300"), pytest.param("twin", "600", marks=pytest.mark.slow)]
)
def test_it_leaves_nothing_on_a_server_of_the_users(
    server: Server, tmp_path: Path, workload: str, transactions: str
) -> None:
    page = tmp_path / "page.md"
    with server.client() as client:
        before = set(client.keys())
        code, out, err = invoke(
            workload, "--transactions", transactions, "--kills", "1", "--clients", "2", "--url", server.unix,
            "--report", str(page),
        )  # fmt: skip
        assert code == 0, out + err
        # Liveness tokens of killed clients end by themselves.
        left = {key for key in client.keys("*") if client.ttl(key) < 0}
        assert left <= before
    assert f"{workload}: ok" in out
    assert all(told in out for told in (f"{transactions} transactions, ", "1 x kill, ", "1 x stop"))
    assert page.read_text().startswith("<!-- torture: figures -->")
    assert (
        f"`percolator torture {workload} --transactions {transactions} --kills 1 --clients 2 --url URL --seed"
        in page.read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sink"], "there is no suite 'sink': choose from bank"),
        (["aof", "--url", "redis://127.0.0.1:1/0"], "aof kills servers"),
        (
            ["bank", "--url", "redis://127.0.0.1:1/0", "--nemesis", "kill,server-kill"],
            "server-kill cannot be",
        ),
        (["ring", "--url", "redis+cluster://127.0.0.1:1", "--nemesis", "clock-back"], "clock-back cannot be"),
        (["bank", "--nemesis", "flood"], "there is no nemesis 'flood'"),
        (["bank", "--nemesis", ""], "no nemesis is named"),
        (["bank", "--transactions", "0"], "--transactions"),
    ],
)
def test_it_refuses_what_cannot_be(arguments: list[str], message: str) -> None:
    code, _, err = invoke(*arguments)
    assert code == 2, err
    assert message in err


def test_all_on_a_server_of_the_users_is_all_workloads() -> None:
    assert chosen(["all"], Settings()) == list(runner.SUITES)
    assert chosen([], Settings(url="redis://127.0.0.1:1/0", nemeses=HARMLESS)) == [
        "bank",
        "append",
        "counter",
        "long-fork",
        "ring",
        "twin",
    ]
    with pytest.raises(ConfigurationError, match="transactions is 1 or more"):
        Settings(transactions=0)


def test_something_wrong_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Result("bank", 1, "done", "found", wrong=["the bank is broke"], folder="somewhere")
    monkeypatch.setitem(runner.SUITES, "bank", lambda settings: wrong)
    code, out, err = invoke("bank", "--seed", "1")
    assert code == 1
    assert "wrong: the bank is broke" in out
    assert "the histories are in somewhere" in out
    told = "1 suite found errors (bank): --seed 1 repeats the plan, the histories are in somewhere"
    assert told in err
    wrong.folder = None
    _, _, err = invoke("bank", "--seed", "1")
    assert "repeats the plan\n" in err


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        yield Path(folder)


def test_ctrl_c_ends_it_early_and_tells_what_was_found(scratch: Path) -> None:
    command = [
        sys.executable, "-m", "percolator_core", "torture", "counter", "ring", "--transactions", "10000000",
        "--kills", "0", "--clients", "2", "--seed", "1", "--json",
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        until(lambda: len(list(scratch.glob("*/c*.a.history"))) == 2)
        until(lambda: all(path.stat().st_size > 2000 for path in scratch.glob("*/c*.a.history")))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, out + err
    told = json.loads(out)
    (suite,) = told["suites"]
    assert told["interrupted"]
    assert suite["interrupted"]
    assert suite["wrong"] == []
    assert suite["figures"]["transactions"] > 0
    assert "interrupted; all checks until then passed" in err
    assert list(scratch.iterdir()) == []
    assert mentioning(str(scratch)) == []


def mentioning(text: str) -> list[str]:
    """The processes whose arguments or environment have a text."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for file in ("cmdline", "environ"):
            try:
                if text.encode() in (process / file).read_bytes():
                    found.append(f"{process.name} {file}")
            except OSError:
                continue  # it has ended, or is somebody else's
    return found


def test_a_report_replaces_its_section_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "page.md"
    table = Table("Losses", ("setting", "lost"), [("none", "3")])
    figures = {"faults": {"twice": 2}}
    result = Result("oracle", 7, "20 restarts", "0 repeated", tables=[table], figures=figures, seconds=60)
    write_report(page, "one", "2 cores", "percolator torture oracle", [result])
    assert "2 cores: `percolator torture oracle`\n" in page.read_text()
    assert "| oracle | 20 restarts | 0 repeated | 1.0 |" in page.read_text()
    assert "**Losses**\n\n| setting | lost |\n| --- | --- |\n| none | 3 |" in page.read_text()
    page.write_text("# Before\n\n" + page.read_text() + "\nAfter.\n")
    write_report(page, "two", "2 cores", "again", [Result("oracle", 7, "1 restart", "0 repeated")])
    later = Result("oracle", 7, "30 restarts", "0 repeated", wrong=["a lock"])
    write_report(page, "one", "2 cores", "again", [later])
    text = page.read_text()
    assert "20 restarts" not in text
    assert "- oracle: a lock" in text
    assert text.startswith("# Before\n")
    assert "\nAfter.\n" in text
    assert text.count("<!-- torture:") == text.count("<!-- end -->") == 2
