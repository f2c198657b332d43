"""The rights of `percolator backup` and `percolator restore` (docs/how-to/secure.md)."""

from __future__ import annotations

from pathlib import Path

from percolator_core import Worker, backup, restore
from tests.chains import chain_of, put, watch
from tests.security.jobs import refusals
from tests.security.rules import Rule, rule_for
from tests.security.test_acl import knows_selectors, own, scene
from tests.servers.plain import PATIENCE, Server

__all__ = ["own"]

EXTRA = ("+hexists", "+hscan")
"""The commands that the role of the worker lacks."""


def test_the_rule_of_the_worker_with_two_more_commands(own: Server, tmp_path: Path) -> None:
    worker = rule_for("worker", selectors=knows_selectors(own))
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    with scene(own, Rule("worker", (*worker.parts, *EXTRA)), 20) as found:
        db = found.connect()
        chain.create_tables(db)
        put(db, "a", b"1")
        Worker(db, chain).run_until_idle(timeout=PATIENCE)
        put(db, "b", b"1")
        backup(db, str(tmp_path))
        assert backup(db, str(tmp_path), keep=1).written == 0
        for table in found.helper.tables():
            found.helper.drop_table(table.name)
        assert restore(str(tmp_path), db).marks == 1
        Worker(db, chain).run_until_idle(timeout=PATIENCE)
    assert refusals(own) == []
    text = (Path(__file__).parents[2] / "docs/how-to/secure.md").read_text("utf-8")
    assert f"| `percolator backup` and `restore` | the rule of the worker with `{' '.join(EXTRA)}`" in text
