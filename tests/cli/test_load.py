"""``load``: in this process and with Spark."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from percolator_core.cli.load import parse_fields

if TYPE_CHECKING:
    from tests.cli.conftest import Project


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (None, None),
        ("a", {"a": "a"}),
        ("a,b=c", {"a": "a", "b": "c"}),
        (" a , b = c ", {"a": "a", "b ": " c"}),
    ],
)
def test_columns(text: str | None, columns: dict[str, str] | None) -> None:
    assert parse_fields(text) == columns


def test_a_source_that_is_not_there(project: Project) -> None:
    ended = project("load", "nowhere", "--table", "docs", "--chain", "chain")
    assert ended.code == 2
    assert "nowhere" in ended.error


def test_a_table_that_the_chain_does_not_declare(project: Project) -> None:
    ended = project("load", "nowhere", "--table", "nosuch", "--chain", "chain")
    assert ended.code == 2
    assert ended.error == "the chain 'words' declares no table 'nosuch': it has docs, words"


def test_a_load_that_names_no_key(project: Project) -> None:
    (project.folder / "in.jsonl").write_text("{}\n")
    ended = project("load", "in.jsonl", "--table", "docs", "--chain", "chain")
    assert ended.code == 2
    assert "name the field with --key FIELD" in ended.error


@pytest.mark.parametrize("option", ["--spark", "--master=local[2]"])
def test_spark_that_is_not_installed(project: Project, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    (project.folder / "in.jsonl").write_text('{"id": "a"}\n')
    monkeypatch.setitem(sys.modules, "pyspark", None)
    ended = project("load", "in.jsonl", "--table", "docs", "--chain", "chain", "--key", "id", option)
    assert ended.code == 2
    assert ended.error == (
        "Spark is not installed: pip install 'percolator-core[spark]', and install Java 17 or later"
    )
    drained = project("drain", "chain", "--spark")
    assert (drained.code, drained.error) == (2, ended.error)


@pytest.mark.parametrize(
    "ways", [(), pytest.param(("--spark",), marks=[pytest.mark.spark, pytest.mark.slow])]
)
def test_load_drain_and_load_again(project: Project, ways: tuple[str, ...]) -> None:
    lines = [json.dumps({"id": f"row{number}", "body": "a b"}) for number in range(20)]
    (project.folder / "in.jsonl").write_text("\n".join([*lines, "{not json"]) + "\n")
    load = [
        "load",
        "in.jsonl",
        "--table",
        "docs",
        "--chain",
        "chain",
        "--key",
        "id",
        "--columns",
        "body=text",
        *ways,
    ]
    ended = project.run(*load, "--json", timeout=120)
    assert ended.code == 0, ended.err
    counts = {name: ended.json[name] for name in ("read", "new", "bad", "deleted")}
    assert counts == {"read": 21, "new": 20, "bad": 1, "deleted": 0}
    assert "1 record malformed" in ended.err
    place = sum(len(line) + 1 for line in lines)
    assert f"The first: byte {place} of {project.folder / 'in.jsonl'}: not JSON" in ended.err
    project.ok("drain", "chain")
    assert project.ok("get", "words", "sum", "total").out == "40\n"

    (project.folder / "in.jsonl").write_text("\n".join(lines[:5]) + "\n")
    again = project.run(*load, "--delete-missing", "row", timeout=120)
    assert again.code == 0, again.err
    heads, row = (line.split() for line in again.out.splitlines())
    found = dict(zip(heads, row, strict=True))
    assert (found["unchanged"], found["deleted"]) == ("5", "15")

    (project.folder / "in.jsonl").write_text("{\n" * 5)
    bad = project.run(*load, "--max-bad", "1", "--json", timeout=120)
    assert bad.code == 1
    assert bad.json["error"]["report"]["bad"] >= 2
    assert "The first: byte 0 of " in bad.json["error"]["message"]
