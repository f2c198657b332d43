"""What all commands share: help, errors, exit codes, JSON."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from rich.console import Console

from percolator_core import __version__
from percolator_core.cli import output as outputs
from percolator_core.cli.app import COMMANDS, app, installed
from percolator_core.cli.output import EXIT_CODES, ExitCode, Failure, Output, exit_code
from percolator_core.errors import (
    ConfigurationError,
    RowNotFound,
    StoreUnavailable,
    UnknownColumn,
    UnknownTable,
)

if TYPE_CHECKING:
    from tests.cli.conftest import Project

ROOT = Path(__file__).resolve().parents[2]
GROUP: Any = typer.main.get_command(app)
ALL = [*COMMANDS, *installed()]


def test_help_names_every_command_and_every_exit_code(project: Project) -> None:
    ended = project.ok("--help")
    for name in ALL:
        assert f"│ {name} " in ended.out
    for code, meaning in EXIT_CODES.items():
        assert f"{int(code):>3}  {meaning}" in ended.out


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_and_the_common_options(project: Project, name: str) -> None:
    ended = project.ok(name, "--help")
    assert "--json" in ended.out
    assert "--debug" in ended.out
    first = (GROUP.get_command(None, name).help or "").splitlines()[0]
    assert first.endswith(".")


def test_every_exit_code_has_a_meaning_and_is_documented() -> None:
    assert set(EXIT_CODES) == set(ExitCode)
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    for code, meaning in EXIT_CODES.items():
        assert f"| {int(code)} | {meaning} |" in page


OURS = {
    *("check", "graph", "load", "worker", "drain", "wait", "status", "tables", "get", "scan", "history"),
    *("failed", "retry", "discard", "locks", "resolve", "gc", "reindex"),
}


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert set(ALL) >= OURS
    examples = "\n".join(re.findall(r"^\$ .*", page, re.MULTILINE))
    assert [name for name in sorted(OURS) if f"percolator {name}" not in examples] == []


def test_a_command_whose_module_is_missing_is_not_hidden(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        COMMANDS, "check", COMMANDS["check"]._replace(function="percolator_core.cli.nowhere:check")
    )
    assert "percolator_core.cli.nowhere" in project("check", "chain").error


def test_no_such_command(project: Project) -> None:
    assert project("chekc", "chain").code == 2


def test_help_loads_nothing_heavy_beyond_the_package_itself() -> None:
    code = (
        "import sys, percolator_core; before = set(sys.modules); sys.argv = ['percolator', '--help']\n"
        "from percolator_core.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'matplotlib', 'networkx', 'redis', 'pydantic'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(project: Project) -> None:
    assert project.ok("--version").out == f"percolator {__version__}\n"


def test_no_arguments_show_the_help(project: Project) -> None:
    ended = project()
    assert ended.code == ExitCode.USAGE
    assert "Usage: percolator" in ended.out
    assert not ended.err
    assert ended.code == 2


@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_help_fills_its_lines(project: Project, command: str) -> None:
    about = project.ok(*filter(None, [command]), "--help").out.partition("╭")[0]
    lines = [line.strip() for line in about.splitlines()]
    for line, following in pairwise(lines):
        # The first word of the next line had no place in an earlier line.
        assert not following or not line or len(line) + len(following.split()[0]) > 70


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "there is no command 'nonsense'"),
        (["statsu"], "there is no command 'statsu'; did you mean 'status'?"),
        (["get"], "Missing argument 'TABLE'."),
        (["get", "docs", "a", "--what"], "No such option: --what"),
        (["scan", "docs", "--limit", "many"], "Invalid value for '--limit'"),
        (["get", "docs", "hex:zz"], "'hex:zz' is not valid hex"),
        (["get", "docs", "a", "--at", "yesterday"], "is not a time"),
        (["get", "docs", "a", "--at", "2026-11-20T10:00"], "has no time zone"),
        (["get", "docs", "a", "--at", "99999999999999999"], "microseconds"),
        (["get", "docs", "a", "--raw"], "--raw needs exactly one column"),
        (["gc", "--keep", "long"], "is not a duration"),
        (["failed", "chain", "--observer", "nobody"], "has no observer 'nobody': it has split, total"),
        (["graph", "chain", "-o", "graph.jpeg"], "is no known format"),
        (["load", "x.csv", "--table", "docs", "--columns", "a,=b"], "FIELD=COLUMN"),
        (["tables", "--url", "nonsense://"], "not the URL of a store"),
        (["check", "nowhere"], "there is no such folder"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(project: Project, arguments: list[str], said: str) -> None:
    ended = project(*arguments)
    assert ended.code == ExitCode.USAGE
    assert said in ended.error
    assert ended.out == ""
    again = project(*arguments, "--json")
    assert again.code == ExitCode.USAGE
    assert said in again.json["error"]["message"]
    assert again.json["error"]["exit_code"] == 2


def test_a_missing_embedded_store_is_not_made_by_a_look(project: Project) -> None:
    ended = project("tables", "--url", "embedded:nothing-here")
    assert ended.code == ExitCode.UNAVAILABLE
    assert "there is no store in" in ended.error
    assert not (project.folder / "nothing-here").exists()


def test_a_server_that_is_not_there_is_exit_3(project: Project) -> None:
    ended = project("tables", "--url", "redis://127.0.0.1:1/0")
    assert ended.code == ExitCode.UNAVAILABLE
    assert ended.error
    named = project("status", "--url", "redis://127.0.0.1:1/0", "--namespace", "")
    assert named.code != 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), 2),
        (StoreUnavailable("x"), 3),
        (TimeoutError("x"), 4),
        (UnknownTable("x"), 2),
        (UnknownColumn("x"), 2),
        (RowNotFound("x"), 1),
        (RuntimeError("x"), 1),
        (KeyboardInterrupt(), 130),
        (Failure("x", ExitCode.NOT_IDLE), 4),
    ],
)
def test_exit_codes_of_errors(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize("debug", [False, True])
def test_a_traceback_only_with_debug(project: Project, debug: bool) -> None:
    project.put()
    ended = project("get", "no-table", "a", *(["--debug"] if debug else []))
    assert ended.code == ExitCode.USAGE
    assert "there is no table 'no-table'" in ended.error
    assert ("Traceback" in ended.err) == debug


def test_an_unexpected_error_is_one_line_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("percolator_core.cli.options.StoreOptions.existing", broken)
    ended = project("tables", "--json")
    assert ended.code == ExitCode.FAILURE
    assert ended.error == "RuntimeError: first line second line (--debug shows where)"
    assert ended.json["error"]["kind"] == "RuntimeError"


def test_an_interrupt_says_how_to_go_on(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("percolator_core.cli.options.StoreOptions.existing", interrupt)
    ended = project("wait", "chain")
    assert ended.code == 130
    assert ended.error == "interrupted; nothing is lost: `percolator wait chain` continues to wait"


def test_lines_are_not_folded_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.result(None, "word " * 100)
    output.error(Failure("word " * 100))
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [[], ["drain"], ["check"]])
def test_flags_have_no_type_in_the_help(project: Project, command: list[str]) -> None:
    text = project(*command, "--help").out
    assert "--help" in text
    assert "bool" not in text.lower()


ROWS = [("document_processor", "documents.contents", "12,345"), ("rank", "pages.inlinks", "7")]
WORDS = {"observer", "observes", "backlog"}.union(*ROWS)


def shown_at(width: int, *columns: str) -> list[str]:
    made = outputs.table(*columns)
    for row in ROWS:
        made.add_row(*row[: len(columns)])
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(made)
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [200, 47, 46, 40, 33])
def test_tables_do_not_break_words(width: int) -> None:
    lines = shown_at(width, "observer", "observes", ">backlog")
    assert set(" ".join(lines).split()) == WORDS if width > 46 else set(" ".join(lines).split()) <= WORDS
    assert {word for row in ROWS for word in row} <= set(" ".join(lines).split())
    assert max(map(len, lines)) <= width


def test_a_table_that_is_too_wide_has_a_paragraph_for_each_row() -> None:
    assert shown_at(46, "observer", "observes", ">backlog") == [
        "document_processor",
        "  observes documents.contents  backlog 12,345",
        "rank  observes pages.inlinks  backlog 7",
    ]


def test_a_narrow_table_has_its_long_texts_on_several_lines() -> None:
    made = outputs.table("check", "result")
    made.add_row("known faults", "clients can run code on its machine")
    console = Console(width=30, file=io.StringIO())
    with console.capture() as capture:
        console.print(made)
    assert [line.rstrip() for line in capture.get().splitlines()] == [
        "check         result",
        "known faults  clients can run",
        "              code on its",
        "              machine",
    ]
