"""``percolator consume``, and the programs of its page."""

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

from percolator_core import connect, kafka
from percolator_core.cli.app import app
from percolator_core.errors import ConfigurationError
from tests.kafka.conftest import Shop
from tests.servers.plain import until
from tests.site.pages import blocks

CHAIN = {
    "chain/chain.yaml": "version: 1\nchain: shop\ntables:\n  items: {tablets: 2}\n  counts: {}\n",
    "chain/count.yaml": (
        "version: 1\nobserver: count\nobserve: items.name\nfunction: consumed_steps:count\n"
        "writes: [counts.seen]\n"
    ),
    "consumed_steps.py": (
        "def count(t, cell):\n"
        "    name = t.get(cell.table, cell.row, cell.column)\n"
        "    t.set('counts', cell.row, 'seen', name or b'gone')\n"
    ),
}


def command(shop: Shop, *more: str) -> list[str]:
    given = {
        "--topic": shop.topic,
        "--table": "items",
        "--name": shop.name,
        "--url": shop.url,
        "--namespace": shop.db.namespace,
    }
    return ["consume", shop.kafka.servers, *(word for pair in given.items() for word in pair), *more]


def run(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.stdout, found.stderr


def test_the_command_writes_rows_and_wakes_observers(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in CHAIN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "settings").write_text("# a comment\n\nclient.id = shop=1\n")
    monkeypatch.chdir(tmp_path)
    shop.send(("1", {"title": "one"}), ("2", b"?"))
    more = ["--once", "--chain", "chain", "--columns", "title=name", "--config", "settings"]
    code, out, err = run(*command(shop, *more, "--json"))
    assert code == 0, err
    report: dict[str, Any] = json.loads(out)
    assert (report["read"], report["new"], report["bad"], report["behind"]) == (2, 1, 1, 0)
    shop.send(("1", None), ("3", {"title": "three"}), ("4", b"?"))
    code, out, err = run(*command(shop, *more))
    assert (code, out.split()[:9]) == (
        0,
        ["consumer", "read", "new", "changed", "unchanged", "deleted", "bad", "behind", shop.name],
    )
    assert "1 record put aside: `percolator scan kafka_aside` lists them" in err
    code, _, _ = run("drain", "chain", "--url", shop.url, "--namespace", shop.db.namespace)
    assert code == 0
    assert shop.rows("counts") == {"1": {"seen": "gone"}, "3": {"seen": "three"}}


def test_errors_have_exit_codes(shop: Shop, tmp_path: Path) -> None:
    shop.send(("1", b"?"))
    code, _, err = run(*command(shop, "--once", "--max-bad", "0"))
    assert (code, "correct the options or the table" in err) == (1, True)
    for text, why in (("client.id", "settings:1: write NAME=VALUE"), ("\x00=1", "is not valid")):
        (tmp_path / "settings").write_text(text)
        code, _, err = run(*command(shop, "--config", str(tmp_path / "settings")))
        assert (code, why in err) == (2, True), err
    code, _, err = run(*command(shop, "--config", str(tmp_path / "none")))
    assert (code, "cannot be read" in err) == (2, True)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'percolator-core\[kafka\]'"):
        importlib.reload(kafka)


def test_ctrl_c_ends_it_and_the_next_run_continues(shop: Shop) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "percolator_core", *command(shop)], stderr=subprocess.PIPE, text=True
    )
    try:
        shop.send(("1", {"n": 1}))
        until(lambda: shop.rows() == {"1": {"n": "1"}})
    finally:
        os.kill(child.pid, signal.SIGINT)
        _, said = child.communicate()
    assert child.returncode == 130
    assert "run the same command again to continue" in said
    shop.send(("1", None))
    assert shop.consume().deleted == 1


def test_the_programs_of_the_page(shop: Shop, tmp_path: Path) -> None:
    found = [block.text for block in blocks("how-to/kafka.md") if block.language == "python"]
    shop.send(("1", {"name": "one"}), ("2", b"?"))
    with connect(f"embedded:{tmp_path}", namespace="shop") as db:
        names: dict[str, Any] = {}
        exec(found[0], names)
        report = names["follow"](db.url, shop.kafka.servers, shop.topic)
        assert (report.new, report.bad) == (1, 1)
        exec(found[1], names)
        assert names["mend"](db, lambda key, value: {"name": key + value}) == 1
        rows = {row: cells["name"] for row, cells in db.snapshot().scan("items")}
        assert rows == {b"1": b"one", b"2": b"2?"}
        assert list(db.snapshot().scan("kafka_aside")) == []
        exec(found[3], names)
        producer = names["exporter"](shop.kafka.servers, shop.topic)
        producer.take(b"3", 1, b'{"name": "three"}')
        assert names["follow"](db.url, shop.kafka.servers, shop.topic).new == 1
