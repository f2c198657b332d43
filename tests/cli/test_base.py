"""``flush`` and ``compact``, and bases in ``status``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Project


@pytest.fixture
def based(project: Project) -> Project:
    """A store with two tables, one of which has a base, to which nothing has moved yet."""
    with project.connect() as db:
        db.create_table("docs", tablets=2)
        db.create_table("words", tablets=2)
        db.set_base("docs", str(project.folder / "base"), cold_after=timedelta(hours=1))
        with db.transaction() as t:
            for row in "abc":
                t.set("docs", row, "text", b"x")
    return project


def test_flush(based: Project) -> None:
    assert based.ok("flush", "--json").json["tables"]["docs"]["rows"] == 0
    found = based.ok("flush", "--everything", "--json").json["tables"]
    assert set(found) == {"docs"}
    assert found["docs"]["rows"] == 3
    assert found["docs"]["bytes"] > 0
    shown = based.ok("flush", "docs", "--rate", "50MB", "--share", "0.5")
    assert shown.out.split()[:8] == ["table", "rows", "written", "time", "docs", "0", "0", "B"]


def test_compact(based: Project) -> None:
    based.ok("flush", "--everything")
    with based.connect() as db, db.transaction() as t:
        for row in "abc":
            t.set("docs", row, "more", b"y")
    based.ok("flush", "--everything")
    found = based.ok("compact", "--json").json["tables"]["docs"]
    assert found["files"] == 0
    assert "files removed" in based.ok("compact", "docs").out


def test_status_shows_bases(based: Project) -> None:
    based.ok("flush", "--everything")
    tables = {one["name"]: one for one in based.ok("status", "--json").json["tables"]}
    base = tables["docs"]["base"]
    assert (base["rows"], base["height"], base["error"]) == (3, 1, "")
    assert base["location"] == f"file://{based.folder}/base"
    assert tables["words"]["base"] is None
    assert f"file://{based.folder}/base" in based.ok("status").out


def test_status_tells_that_a_base_is_damaged(based: Project) -> None:
    based.ok("flush", "--everything")
    for path in based.folder.rglob("manifest-*"):
        path.unlink()
    base = next(one["base"] for one in based.ok("status", "--json").json["tables"] if one["base"])
    assert "is damaged" in base["error"]
    assert "is damaged" in based.ok("status").out


def test_without_a_base_nothing_is_flushed(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs", tablets=2)
    for command in ("flush", "compact"):
        assert project.ok(command, "--json").json == {"tables": {}}
        shown = project.ok(command)
        assert shown.out.startswith("no table has a base")
        assert not shown.err


def test_what_cannot_be_flushed(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs", tablets=2)
    for command in ("flush", "compact"):
        for arguments, said in (
            (["docs"], "'docs' has no base"),
            (["docs", "--rate", "quick"], "is not a size"),
            (["docs", "--share", "2"], "share is above 0"),
        ):
            ended = project(command, *arguments)
            assert ended.code != 0
            assert said in ended.err
