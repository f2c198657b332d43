"""``publish``, ``backup`` and ``restore``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable

if TYPE_CHECKING:
    from tests.cli.conftest import Project


def test_publish(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs", tablets=2)
        with db.transaction() as t:
            for row in "abc":
                t.set("docs", row, "text", b"x")
    first = project.ok("publish", "docs", "open/docs", "--json").json
    assert first["table"] == "docs"
    assert (first["version"], first["mode"], first["rows"]) == (0, "full", 3)
    with project.connect() as db, db.transaction() as t:
        t.delete("docs", "b", "text")
    shown = project.ok("publish", "docs", "open/docs", "--keep", "7d").out.splitlines()
    assert shown[0].split() == ["table", "as", "of", "version", "rows", "time", "written"]
    assert shown[1].split()[-1] == "changes"
    assert DeltaTable(project.folder / "open" / "docs").count() == 2


def test_backup_and_restore(project: Project) -> None:
    """With a chain: one cell is done, one is dirty, and one is in quarantine."""
    project.ok("drain", "chain")
    with project.connect() as db, db.transaction() as t:
        t.set("docs", "a", "text", b"one two")
        t.set("docs", "b", "text", b"boom")
    project.ok("drain", "chain")
    with project.connect() as db, db.transaction() as t:
        t.set("docs", "c", "text", b"three")
    first = project.ok("backup", "saved", "--json").json
    assert (first["number"], first["tables"]) == (1, 2)
    shown = project.ok("backup", "saved", "--keep", "1").out.splitlines()
    assert shown[0].split() == ["backup", "as", "of", "tables", "written", "shared", "size", "time"]
    assert shown[1].split()[4:6] == ["0", str(first["written"])]
    refused = project("restore", "saved")
    assert refused.code == 2
    assert "is not empty" in refused.error
    with project.connect() as db:
        for table in ("docs", "words"):
            db.drop_table(table)
    assert project("restore", "saved", "--base", "docs").error.endswith("such as items=file:base")
    assert "there is no backup 1 at" in project("restore", "saved", "--backup", "1").error
    found = project.ok("restore", "saved", "--base", "docs=file:base", "--json").json
    assert found["namespace"] == project.namespace
    assert (found["number"], found["marks"], found["quarantined"]) == (2, 2, 1)
    project.ok("drain", "chain")
    with project.connect() as db:
        assert db.base("docs") is not None
        words = dict(db.snapshot().scan("words"))
        assert {row: cells.get("count") for row, cells in words.items()} == {
            b"a": b"2",
            b"c": b"1",
            b"sum": None,
        }
        assert words[b"sum"]["total"] == b"3"
    assert [one["row"] for one in project.ok("failed", "chain", "--json").json["failed"]] == [{"text": "b"}]
