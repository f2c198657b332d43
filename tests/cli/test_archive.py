"""``publish``."""

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
