"""``rerun``: from a change of code to its results."""

from __future__ import annotations

import io
import signal
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from percolator_core import Chain
from percolator_core.admin.rerun import RerunCounts
from percolator_core.cli.output import Output
from percolator_core.cli.rerun import _progress
from percolator_core.errors import StoreUnavailable
from percolator_core.scripts.calls import Call
from percolator_core.store import Store
from percolator_core.store.packing import Command

if TYPE_CHECKING:
    from typing import Any

    from tests.cli.conftest import Project

TEXTS = {"a": "one two", "b": "three", "c": "four five six"}


@pytest.fixture
def done(project: Project) -> Project:
    """A chain that has worked off three documents."""
    project.put(**TEXTS)
    project.ok("drain", "chain")
    return project


def new_code(project: Project, revision: int = 2) -> None:
    """From now on the observer counts each word for ten."""
    steps = project.folder / "cli_steps.py"
    steps.write_text(steps.read_text().replace("str(len((text", "str(10 * len((text"))
    with (project.folder / "chain" / "split.yaml").open("a") as file:
        file.write(f"revision: {revision}\n")


def test_after_a_change_of_code_the_results_are_those_of_the_new_code(done: Project) -> None:
    new_code(done)
    looked = done.ok("rerun", "chain", "split", "--outdated", "--dry-run")
    assert "3 cells would be observed again" in looked.out
    assert done.ok("status", "--json").json["idle"]

    ended = done.ok("rerun", "chain", "split", "--outdated")
    rows = [line.split() for line in ended.out.splitlines()]
    assert rows == [
        ["column", "looked", "at", "chosen", "marked"],
        ["docs.text", "3", "3", "3"],
        ["3", "cells", "will", "be", "observed", "again"],
    ]
    assert "percolator drain chain" in ended.err
    shown = done.ok("status", "chain")
    assert [line.split()[2:4] for line in shown.out.splitlines() if line.startswith("split")] == [["2", "3"]]
    assert [one["revision"] for one in done.ok("status", "chain", "--json").json["observers"]] == [2, 1]

    assert done.run("drain", "chain").code == 0
    assert done.ok("get", "words", "sum", "total").out == "60\n"
    again = done.ok("rerun", "chain", "split", "--outdated", "--json").json
    counts = {"looked_at": 3, "chosen": 0, "marked": 0, "unknown": 0}
    assert again == {
        "chain": "words",
        "observer": "split",
        "revision": 2,
        "dry_run": False,
        **counts,
        "columns": {"docs.text": counts},
    }


def test_a_part(done: Project) -> None:
    def chosen(*arguments: str) -> int:
        found: int = done.ok("rerun", "chain", "split", "--dry-run", "--json", *arguments).json["chosen"]
        return found

    assert chosen() == 3
    assert chosen("--where", "row=x'61'") == 1
    assert chosen("--where", "row>'a'", "--where", "text^='four'") == 1
    assert chosen("--where", "revision<2") == 3
    assert chosen("--where", "revision<2", "--outdated") == 0
    assert chosen("--limit", "2") == 2
    assert chosen("--limit", "0") == 3
    assert done.ok("rerun", "chain", "split", "--where", "row='a'", "--json").json["marked"] == 1
    assert done.ok("drain", "chain", "--json").json["observers"]["split"]["ran"] == 1
    assert done.ok("rerun", "chain", "total", "--json").json["columns"] == {
        "words.dirty": {"looked_at": 1, "chosen": 1, "marked": 1, "unknown": 0}
    }


def test_a_misspelt_name_is_told_for_what_it_is_taken(done: Project) -> None:
    ended = done.ok("rerun", "chain", "split", "--where", "revison<'2'", "--where", "row>='a'")
    assert ended.err == (
        "no cell meets every condition: all names but row and revision are read as columns of the "
        "same row, here revison\n"
    )
    assert "revison" not in done.ok("rerun", "chain", "split", "--where", "revision<1").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "words has no observer 'nobody': it has split, total"),
        (["split", "--where", "text"], "an operator such as =, in or is null is expected after text"),
        (["split", "--where", "revision<new"], "a value is expected, not new"),
        (
            ["split", "--where", "row=x'xy'"],
            "row holds bytes: write a text in single quotes, or bytes such as x'00ff', not x'xy'",
        ),
        (["split", "--rate", "0"], "0.001"),
    ],
)
def test_what_it_refuses(done: Project, arguments: list[str], said: str) -> None:
    ended = done("rerun", "chain", *arguments)
    assert ended.code == 2
    assert said in ended.error


def test_an_observer_that_is_not_active(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs", tablets=4)
    ended = project("rerun", "chain", "split")
    assert ended.code == 2
    assert "split is not active" in ended.error
    assert "start a worker with the chain" in ended.error


def test_an_interrupt_comes_between_two_batches(done: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Store.command

    def interrupt(self: Store, call: Call[Any]) -> Command:
        if call[0] == "mark":
            signal.raise_signal(signal.SIGINT)  # the acknowledgements are gone, the marks are not set
        return command(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "command", interrupt)
        ended = done("rerun", "chain", "split", "--rate", "1", "--json")
    assert ended.code == 130
    assert "run the same command again; it marks the rest" in ended.error
    assert done.ok("status", "--json").json["backlog"] == 1
    assert done.ok("rerun", "chain", "split", "--json").json["marked"] == 2


def test_an_error_says_that_repeating_it_marks_the_rest(
    done: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailable("the store is away: start it")

    with monkeypatch.context() as patch:
        patch.setattr("percolator_core.admin.rerun._Rerun._mark", fail)
        ended = done("rerun", "chain", "split")
    assert ended.code == 3
    assert "marked cells stay marked: fix the error" in ended.err
    assert done.ok("rerun", "chain", "split", "--where", "revision=1", "--json").json["marked"] == 3


def test_a_bar_on_a_terminal(done: Project) -> None:
    output = Output()
    output.errors = Console(file=io.StringIO(), force_terminal=True, width=100)
    split = Chain.load("chain").observers["split"]
    with done.connect() as db, _progress(output, db, split) as show:
        show(RerunCounts(looked_at=2))
    assert "rerunning split" in output.errors.file.getvalue()  # type: ignore[attr-defined]
    assert "2/3" in output.errors.file.getvalue()  # type: ignore[attr-defined]
