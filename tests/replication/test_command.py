"""``percolator replicate``, and the programs of its page."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from percolator_core import replication
from percolator_core.cli.app import app
from percolator_core.errors import ConfigurationError
from tests.replication.conftest import Shop
from tests.servers.plain import until
from tests.site.pages import blocks

CHAIN = {
    "chain/chain.yaml": "version: 1\nchain: shop\ntables:\n  items: {tablets: 2}\n  counts: {}\n",
    "chain/count.yaml": (
        "version: 1\nobserver: count\nobserve: items.name\nfunction: replicated_steps:count\n"
        "writes: [counts.seen]\n"
    ),
    "replicated_steps.py": (
        "def count(t, cell):\n"
        "    name = t.get(cell.table, cell.row, cell.column)\n"
        "    t.set('counts', cell.row, 'seen', name or b'gone')\n"
    ),
}


def command(shop: Shop, *more: str) -> list[str]:
    given = [
        "--slot",
        shop.slot,
        "--publication",
        "shop",
        "--url",
        shop.url,
        "--namespace",
        shop.db.namespace,
    ]
    return ["replicate", shop.conninfo, *given, *more]


def run(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.stdout, found.stderr


def test_the_command_copies_follows_and_wakes_observers(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in CHAIN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    shop.sql("CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE PUBLICATION shop FOR TABLE items")
    shop.sql("INSERT INTO items VALUES (1, 'one')")
    code, out, _ = run(*command(shop, "--once", "--json", "--chain", "chain", "--table", "items"))
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    assert report["tables"] == {"public.items": "items"}
    assert (report["copied"], report["new"]) == (1, 1)
    assert report["lag_bytes"] is not None
    shop.sql("INSERT INTO items VALUES (2, 'two')", "DELETE FROM items WHERE id = 1")
    code, out, _ = run(*command(shop, "--once"))
    assert code == 0
    assert out.split()[: out.split().index(shop.slot)][-2:] == ["position", "behind"]
    code, _, _ = run("drain", "chain", "--url", shop.url, "--namespace", shop.db.namespace)
    assert code == 0
    assert shop.rows("counts") == {"1": {"seen": "gone"}, "2": {"seen": "two"}}


def test_errors_have_exit_codes(shop: Shop) -> None:
    shop.items()
    code, _, err = run(*command(shop, "--table", "items=x=", "--once"))
    assert (code, "no table 'x='" in err) == (2, True)
    for text in ("=x", "items="):
        code, _, err = run(*command(shop, "--table", text))
        assert (code, "write PGTABLE=TABLE" in err) == (2, True)
    code, _, err = run(*command(shop, "--table", "items", "--table", "public.items"))
    assert (code, "may be named once" in err) == (2, True)
    code, _, err = run("replicate", "host=/nowhere", *command(shop)[2:])
    assert (code, "PostgreSQL cannot be reached" in err) == (3, True)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'percolator-core\[postgres\]'"):
        importlib.reload(replication)


def test_ctrl_c_ends_it_and_the_next_run_continues(shop: Shop) -> None:
    shop.items("INSERT INTO items VALUES (1, 'one', 1)")
    child = subprocess.Popen(
        [sys.executable, "-m", "percolator_core", *command(shop)], stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: shop.rows() == shop.expected())
        shop.sql("INSERT INTO items VALUES (2, 'two', 2)")
        until(lambda: shop.rows() == shop.expected())
    finally:
        os.kill(child.pid, signal.SIGINT)
        _, said = child.communicate()
    assert child.returncode == 130
    assert "run the same command again to continue" in said
    shop.sql("DELETE FROM items WHERE id = 1")
    assert shop.replicate().deleted == 1


def test_the_programs_of_the_page(shop: Shop) -> None:
    found = blocks("how-to/postgresql.md")
    (program,) = [block.text for block in found if block.language == "python"]
    statements = [block.text for block in found if block.language == "sql"]
    shop.sql("CREATE TABLE items (id int PRIMARY KEY, name text)", "INSERT INTO items VALUES (1, 'one')")
    shop.sql(*statements[0].replace("follower", f"follower_{shop.slot}").rstrip(";\n").split(";\n"))
    names: dict[str, Any] = {}
    exec(program, names)
    conninfo = shop.conninfo.replace("user=postgres", f"user=follower_{shop.slot}")
    try:
        report = names["follow"](f"{shop.url}", conninfo)
        assert report.copied == 1
        assert ("shop", False) in [row[:2] for row in shop.sql(statements[1])]
        shop.sql("SELECT pg_drop_replication_slot('shop')")
    finally:
        shop.sql(f"DROP OWNED BY follower_{shop.slot}", f"DROP ROLE follower_{shop.slot}")
