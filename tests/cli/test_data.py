"""``tables``, ``get``, ``scan``, ``history``, and which namespace they look into."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from percolator_core import connect
from percolator_core.cli import namespaces
from percolator_core.cli.bytestext import json_bytes, parse_bytes, show_bytes

if TYPE_CHECKING:
    from tests.cli.conftest import Project

BINARY = b"\xff\x00row"


@pytest.fixture
def filled(project: Project) -> Project:
    with project.connect() as db:
        db.create_table("docs", tablets=4, notify_only=["woken"])
        for row in (b"a", b"b", b"b/1", b"hex:41", BINARY):
            with db.transaction() as t:
                t.set("docs", row, "text", b"of " + row)
                t.set("docs", row, "size", b"1")
    return project


def test_tables(filled: Project) -> None:
    assert filled.ok("tables").out.splitlines()[1].split() == ["docs", "4", "woken"]
    listed = filled.ok("tables", "--json").json
    assert listed["tables"] == [{"name": "docs", "tablets": 4, "notify_only": ["woken"]}]


def test_get(filled: Project) -> None:
    rows = [line.split() for line in filled.ok("get", "docs", "a").out.splitlines()]
    assert rows == [["column", "value"], ["size", "1"], ["text", "of", "a"]]
    assert filled.ok("get", "docs", "a", "text").out == "of a\n"
    found = filled.ok("get", "docs", "a", "text", "--json").json
    assert found["row"] == {"text": "a"}
    assert found["columns"] == {"text": {"text": "of a"}}


@pytest.mark.parametrize("key", ["hex:ff00726f77", "base64:/wByb3c="])
def test_get_of_a_binary_row(filled: Project, key: str) -> None:
    value = b"of " + BINARY
    assert filled.ok("get", "docs", key, "text").out == f"hex:{value.hex()}\n"
    found = filled.ok("get", "docs", key, "text", "--json").json
    assert base64.b64decode(found["row"]["base64"]) == BINARY
    process = filled.start("get", "docs", key, "text", "--raw", text=False)
    assert process.communicate(timeout=60)[0] == value


@pytest.mark.parametrize("arguments", [["missing"], ["a", "nothing"], ["a", "--at", "5"]])
def test_get_of_what_is_not_there(filled: Project, arguments: list[str]) -> None:
    ended = filled("get", "docs", *arguments)
    assert ended.code == 1
    assert ended.error


def test_get_in_the_past(filled: Project) -> None:
    with filled.connect() as db:
        before = db.timestamp()
        with db.transaction() as t:
            t.set("docs", "a", "text", b"new")
    assert filled.ok("get", "docs", "a", "text").out == "new\n"
    assert filled.ok("get", "docs", "a", "text", "--at", str(before)).out == "of a\n"
    moment = datetime.fromtimestamp(before / 1e6, UTC).isoformat()
    assert filled.ok("get", "docs", "a", "text", "--at", moment).out == "of a\n"


def test_scan_in_order_of_the_keys(filled: Project) -> None:
    found = filled.ok("scan", "docs", "--json", "--columns", "size").json
    assert [row["row"] for row in found["rows"]] == [
        {"text": "a"},
        {"text": "b"},
        {"text": "b/1"},
        {"text": "hex:41"},
        {"base64": base64.b64encode(BINARY).decode()},
    ]
    lines = filled.ok("scan", "docs", "--prefix", "b").out.splitlines()
    assert lines == ["b", "  size  1", "  text  of b", "b/1", "  size  1", "  text  of b/1"]
    shown = filled.ok("scan", "docs", "--start", "b0", "--columns", "size").out.splitlines()[0::2]
    assert shown == ["hex:6865783a3431", "hex:ff00726f77"]
    assert filled.ok("scan", "docs", "--stop", "b").out.splitlines()[0] == "a"


def test_scan_goes_on_where_it_was_cut(filled: Project) -> None:
    ended = filled.ok("scan", "docs", "--limit", "2")
    assert ended.out.splitlines()[0::3] == ["a", "b"]
    assert "--start 'b/1' goes on" in ended.err
    back = filled.ok("scan", "docs", "--limit", "2", "--reverse")
    assert back.out.splitlines()[0::3] == ["hex:ff00726f77", "hex:6865783a3431"]
    rest = back.err.partition("--stop '")[2].partition("'")[0]
    assert filled.ok("scan", "docs", "--stop", rest, "--reverse").out.splitlines()[0::3] == ["b/1", "b", "a"]
    assert filled.ok("scan", "docs", "--limit", "0").err == ""


def test_scan_of_nothing_is_still_json(filled: Project) -> None:
    assert filled.ok("scan", "docs", "--prefix", "zzz", "--json").json["rows"] == []


def test_history(filled: Project) -> None:
    with filled.connect() as db, db.transaction() as t:
        t.delete("docs", "a", "text")
    versions = filled.ok("history", "docs", "a", "text", "--json").json["versions"]
    assert [version["value"] for version in versions] == [None, {"text": "of a"}]
    assert versions[0]["commit_timestamp"] > versions[1]["commit_timestamp"]
    assert "(deleted)" in filled.ok("history", "docs", "a", "text").out
    assert filled("history", "docs", "a", "never").code == 1


def test_unknown_names(filled: Project) -> None:
    assert filled("scan", "nothing").code == 1
    assert filled("get", "docs", "a", "woken").code == 1


def test_the_only_namespace_is_found(tmp_path: Path, project: Project) -> None:
    url = f"embedded:{tmp_path / 'own'}"
    with connect(url, "looked at only"):
        empty = project("tables", "--url", url, store=False)
        assert empty.code == 2
        assert "holds no tables yet" in empty.error
        with connect(url, "one: {ns}") as db:
            db.create_table("docs")
        assert project("tables", "--url", url, "--json", store=False).json["namespace"] == "one: {ns}"
        with connect(url, "two") as db:
            db.create_table("docs")
        several = project("tables", "--url", url, store=False)
        assert several.code == 2
        assert "name one with --namespace: one: {ns}, two" in several.error
        assert project("tables", "--url", url, "--namespace", "two", store=False).code == 0


@pytest.mark.parametrize("command", [["status"], ["tables"], ["get", "docs", "a"], ["gc"], ["locks"]])
def test_an_unknown_namespace_is_refused_and_not_made(filled: Project, command: list[str]) -> None:
    ended = filled(*command, "--namespace", "typo {of} mine")
    assert ended.code == 2
    assert "has no namespace 'typo {of} mine': there are: " in ended.error
    assert filled.namespace in ended.error
    with filled.connect() as db:
        assert db.store.one((b"KEYS", b"*typo*")) == []


def test_a_namespace_made_between_the_two_looks_is_not_refused(
    filled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([False])
    holds = namespaces._holds
    monkeypatch.setattr(namespaces, "_holds", lambda client, key: next(looks, True) and holds(client, key))
    assert filled("tables").code == 0
    assert next(looks, None) is None


def test_an_unknown_namespace_of_an_empty_store(tmp_path: Path, project: Project) -> None:
    url = f"embedded:{tmp_path / 'own'}"
    with connect(url, "looked at only"):
        ended = project("status", "--url", url, "--namespace", "looked at only", store=False)
    assert ended.code == 2
    assert "has no namespace 'looked at only': it holds no tables yet" in ended.error


def test_a_namespace_without_its_tables_is_still_known(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs")
        db.drop_table("docs")
    assert project.ok("tables", "--json").json["tables"] == []


@given(st.binary())
def test_what_is_shown_can_be_given_back(data: bytes) -> None:
    assert parse_bytes(show_bytes(data)) == data
    assert len(show_bytes(data, 10)) <= 10
    kept = json.loads(json.dumps(json_bytes(data)))
    assert data == (kept["text"].encode() if "text" in kept else base64.b64decode(kept["base64"]))


@given(st.text())
def test_text_stands_for_itself(text: str) -> None:
    try:
        data = text.encode()
        parsed = parse_bytes(text)
    except (UnicodeEncodeError, typer.BadParameter):
        return
    assert parsed == data or text.startswith(("hex:", "base64:"))
    assert parse_bytes(show_bytes(data)) == data
