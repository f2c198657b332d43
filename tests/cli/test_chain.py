"""``check`` and ``graph``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Project


def test_check_shows_the_observers_in_order(project: Project) -> None:
    ended = project.ok("check", "chain")
    assert ended.out.splitlines()[0] == "chain words: 2 tables, 2 observers"
    rows = [line.split() for line in ended.out.splitlines()[3:]]
    assert [row[:3] for row in rows] == [["1", "split", "docs.text"], ["2", "total", "words.dirty"]]
    assert project.ok("check", "chain", "--json").json["generations"] == [["split"], ["total"]]


GOOD = {"observe": "docs.text", "function": "cli_steps:split", "writes": "[words.count]"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"observe": "nowhere.text"}, "table 'nowhere' is not declared"),
        ({"observe": "docs."}, "observe"),
        ({"observe": "words.dirty"}, "write mode: weak"),
        ({"observe": None}, "observe: is missing"),
        ({"mode": "loud"}, "'loud' is not known"),
        ({"function": "cli_steps"}, "is not module:function"),
        ({"function": "cli_steps:nothing"}, "nothing"),
        ({"function": "no_such_module:f"}, "no_such_module"),
        ({"retry": "{attempts: 0}"}, "out of range"),
        ({"retry": "{backoff: soon}"}, "backoff"),
        ({"timeout": "-1s"}, "timeout"),
        ({"observr": "x"}, "is not a known key"),
        ({"writes": "[lost.count]"}, "table 'lost' is not declared"),
        ({"version": "7"}, "version"),
        ({"function": "[unclosed"}, "split.yaml"),
    ],
)
def test_each_bad_declaration_is_one_line_and_exit_2(
    project: Project, changed: dict[str, str | None], said: str
) -> None:
    fields = {"version": "1", "observer": "split", **GOOD, **changed}
    text = "".join(f"{name}: {value}\n" for name, value in fields.items() if value is not None)
    (project.folder / "chain/split.yaml").write_text(text)
    for command in (["check", "chain"], ["drain", "chain"], ["worker", "chain"]):
        ended = project(*command)
        assert ended.code == 2
        assert said in ended.error
        assert ended.error.startswith("chain/split.yaml")
        assert ended.out == ""
    assert said in project("check", "chain", "--json").json["error"]["message"]


def test_each_problem_has_a_line(project: Project) -> None:
    (project.folder / "chain/split.yaml").write_text("version: 1\nobserver: Split\nobserve: docs.text\n")
    (project.folder / "chain/total.yaml").unlink()
    ended = project("check", "chain", "--json")
    assert ended.code == 2
    lines = [line.removeprefix("error: ") for line in ended.err.splitlines()]
    assert len(lines) == 2
    assert ended.json["error"]["messages"] == lines


def test_a_cycle_is_one_line_and_named_in_json(project: Project) -> None:
    path = project.folder / "chain/split.yaml"
    path.write_text(path.read_text().replace("words.count,", "words.count, docs.text,"))
    ended = project("check", "chain", "--json")
    assert ended.code == 2
    assert "split → docs.text → split" in ended.error
    assert ended.json["error"]["kind"] == "CyclicChain"
    assert ended.json["error"]["cycle"] == ["split", "docs.text", "split"]


def test_check_without_the_functions(project: Project) -> None:
    (project.folder / "cli_steps.py").unlink()
    assert project("check", "chain").code == 2
    assert project("check", "chain", "--no-import").code == 0


def test_graph_needs_no_code_of_the_project(project: Project) -> None:
    (project.folder / "cli_steps.py").unlink()
    assert project.ok("graph", "chain").out.startswith("flowchart LR\n")


@pytest.mark.parametrize(
    ("form", "start"),
    [("mermaid", b"flowchart"), ("dot", b"digraph"), ("svg", b"<svg"), ("png", b"\x89PNG")],
)
def test_graph_in_each_form(project: Project, form: str, start: bytes) -> None:
    if form == "png":
        pytest.importorskip("matplotlib")
    by_option, by_suffix = project.folder / "one", project.folder / f"two.{form}"
    project.ok("graph", "chain", "--format", form, "--output", str(by_option))
    assert project.ok("graph", "chain", "-o", str(by_suffix), "--json").json["format"] == form
    assert by_option.read_bytes().startswith(start)
    assert by_suffix.read_bytes()[:4] == by_option.read_bytes()[:4]


def test_graph_as_json(project: Project) -> None:
    found = project.ok("graph", "chain", "--format", "dot", "--json").json
    assert found["format"] == "dot"
    assert found["graph"].startswith("digraph")
    assert project("graph", "chain", "--format", "png", "--json").code == 2


def test_graph_to_a_place_that_cannot_be_written(project: Project) -> None:
    ended = project("graph", "chain", "-o", "no/such/folder/graph.svg")
    assert ended.code == 1
    assert "cannot be written" in ended.error
