"""Row keys and conditions of typed tables: ``failed``, ``retry``, ``locks``, ``trace`` and ``rerun``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from percolator_core.cli.check_store import check_store
from percolator_core.errors import LockTimeout
from percolator_core.layout.keys import CellAddress, encode_primary
from percolator_core.layout.records import DELETE, PUT
from percolator_core.notation.typedtext import Rows
from percolator_core.schema.definition_changes import without_column
from percolator_core.schema.definitions import Column, TableDefinition, to_json
from percolator_core.scripts import calls
from percolator_core.tables.indexes import indexes_of
from tests.cli import typed
from tests.flushing import flush

if TYPE_CHECKING:
    from tests.cli.conftest import Project

KEY = {"shop": "north", "number": -7}


@pytest.fixture
def models(project: Project) -> Any:
    models = typed.make(project)
    with (project.folder / "shop" / "total.yaml").open("a") as file:
        file.write("retry: {attempts: 1}\n")
    return models


@pytest.fixture
def failing(project: Project, models: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A chain whose observer has failed for the orders that are not paid."""

    def fails(t: Any, cell: Any) -> None:
        if not t.find(models.Order, **models.Order.key_of(cell.row)).paid:
            raise ValueError("not paid")

    monkeypatch.setattr(models, "total", fails)
    project("drain", "shop")
    return project


def test_quarantine(failing: Project) -> None:
    shown = failing.ok("failed", "shop").out
    assert "total  orders shop=north number=-7 paid  1 attempt," in shown
    assert "shop=south number=120" in shown
    assert "hex:" not in shown
    listed = failing.ok("failed", "shop", "--json").json["failed"]
    assert sorted(one["row"]["number"] for one in listed) == [-7, 120]
    chosen = failing.ok("failed", "shop", "--row", "number=-7 shop=north", "--json").json["failed"]
    assert [one["row"] for one in chosen] == [KEY]
    refused = failing("retry", "shop", "--row", "shop=north number=x")
    assert (refused.code, "number of orders is of type int" in refused.error) == (2, True)
    assert failing.ok("retry", "shop", "--row", "shop=north number=8", "--json").json["retried"] == 0
    assert failing.ok("retry", "shop", "--row", "shop=north number=-7", "--json").json["retried"] == 1


def test_a_trace(failing: Project) -> None:
    row = "shop=north number=-7"
    assert failing.ok("trace", "shop", "orders", row).out.startswith(f"orders {row} paid  written")
    found = failing.ok("trace", "shop", "orders", row, "--json").json
    assert (found["row"], found["changes"][0]["row"]) == (KEY, KEY)
    ended = failing("trace", "shop", "orders", "shop=north number=9")
    assert "row shop=north number=9 of orders has no such change" in ended.error


def test_locks(project: Project, models: Any) -> None:
    with project.connect() as db:
        handle = db.catalog.table("orders")
        row = models.Order.row_key(**KEY)
        primary = encode_primary(CellAddress(handle.tag(row), row, b"paid"))
        cell = (b"1", row, b"paid", b"0", b"never committed")
        lock = (1000, b"nobody", primary)
        tags = [handle.tag(row)]
        db.store.run(calls.prewrite(tags, (), "primary", db.timestamp(), cell, lock, handle.version))
    assert "orders  shop=north number=-7  paid" in project.ok("locks").out
    [listed] = project.ok("locks", "--json").json["locks"]
    assert (listed["row"], listed["primary"]["row"]) == (KEY, KEY)


def test_a_part_is_rerun(project: Project, models: Any) -> None:
    project.ok("drain", "shop")

    def chosen(*texts: str) -> int:
        wheres = [part for text in texts for part in ("--where", text)]
        found: int = project.ok("rerun", "shop", "total", "--dry-run", "--json", *wheres).json["chosen"]
        return found

    assert chosen() == 3
    assert chosen("amount > 1") == 2  # as texts or bytes 20 and 1.50 would not compare so
    assert chosen("amount >= 1.5", "shop ^= 'no'") == 1
    assert chosen("number < 0") == 1
    assert chosen("shop = 'north' and number = -7") == 1
    assert chosen("weight is null") == 2
    assert chosen("revision<2", "number > 0") == 2
    assert chosen("revision=0") == 0
    with project.connect() as db, db.transaction() as t:
        t.remove(models.Order, **KEY)
    assert chosen() == 3
    assert chosen("weight is null") == 1
    assert project.ok("rerun", "shop", "total", "--where", "number=7", "--json").json["marked"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("row^=north", "--where 'row^=north': orders has no column 'row': it has shop, number"),
        ("number", "an operator such as =, in or is null is expected after number"),
        ("amount=much", "--where 'amount=much': "),
    ],
)
def test_what_a_rerun_refuses(project: Project, models: Any, text: str, said: str) -> None:
    project.ok("drain", "shop")
    ended = project("rerun", "shop", "total", "--where", text)
    assert (ended.code, said in ended.error) == (2, True), ended.err


def test_rows_of_what_is_not_as_it_was() -> None:
    definition = TableDefinition("t", columns=(Column("n", "int"), Column("v", "int")), key=("n",))
    rows = Rows([definition, TableDefinition("raw")])
    assert rows.show("t", bytes.fromhex("8000000000000007")) == "7"
    assert rows.data("t", b"no key") == {"text": "no key"}
    assert (
        rows.show("t", b"no key") == rows.show("raw", b"no key") == rows.show("gone", b"no key") == "no key"
    )
    assert rows.show("raw", b"no key", 3) == "no…"


def test_rows_of_a_base(project: Project, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.ok("drain", "shop")
    with project.connect() as db:
        count = flush(db, "orders", project.folder / "base", observers=["total"])
    assert count > 2
    dry = project.ok("rerun", "shop", "total", "--dry-run", "--where", "revision = 7", "--json")
    assert (dry.json["chosen"], dry.json["unknown"]) == (count, count)
    assert f"{count} cells of these moved to the base" in dry.err
    cell = ("history", "orders", "shop=north number=-7", "paid")
    [version] = project.ok(*cell, "--json").json["versions"]
    assert version["start_timestamp"] is None
    assert "in the base" in project.ok(*cell).out
    monkeypatch.setattr("percolator_core.cli.check_store._QUICK", 2)
    found = project("doctor", "--json", "--namespace", project.namespace).json["findings"]
    [indexes] = [one for one in found if one["check"] == f"{project.namespace}: indexes"]
    assert indexes["found"].startswith("not compared for orders, with over 2 rows")
    project.ok("rerun", "shop", "total")
    project.ok("drain", "shop")
    [outcome] = project.ok("trace", "shop", "orders", "shop=north number=-7", "--json").json["changes"]
    assert [one["state"] for one in outcome["outcomes"]] == ["collected", "ran"]


def busy(*_: object) -> None:
    raise LockTimeout("try later")


def test_indexes_are_looked_at_and_mended(
    project: Project, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = project.namespace

    def found(*arguments: str) -> dict[str, dict[str, str]]:
        listed = project("doctor", "--json", "--namespace", name, *arguments).json["findings"]
        return {one["check"]: one for one in listed if one["check"].startswith(name)}

    assert found()[f"{name}: indexes"]["found"] == "2 compared with their tables, without a difference"
    with project.connect() as db:
        handle, index = db.catalog.table("orders"), db.catalog.table("orders(customer)")
        row = models.Order.row_key(**KEY)
        with db.transaction() as t:
            for value, kind in ((b"ada@a", DELETE), (b"nobody", PUT)):
                entry = indexes_of(handle)[0].entry(value, row)
                t.put(index, entry, index.marker.encoded, (kind, b""))
    told = found()
    assert f"{name}: indexes" not in told
    assert told[f"{name}: orders"] == {
        "check": f"{name}: orders",
        "verdict": "fail",
        "found": "orders(customer): rows without their entry: 1, entries without their row: 1",
        "mend": "another program changed the store: run percolator reindex orders",
    }
    monkeypatch.setattr("percolator_core.cli.check_store._QUICK", 2)
    assert found()[f"{name}: indexes"]["found"].startswith("not compared for orders, with over 2 rows")
    assert found("--indexes")[f"{name}: orders"]["verdict"] == "fail"
    with monkeypatch.context() as patch:
        patch.setattr("percolator_core.tables.verify._missing", busy)
        assert found("--indexes")[f"{name}: orders"]["found"] == "its indexes were not compared: try later"
    assert project.ok("reindex", "orders", "--json").json == {"table": "orders", "indexes": 2, "mended": 2}
    assert project.ok("reindex", "orders").out.split() == ["indexes", "entries", "repaired", "2", "0"]
    assert found("--indexes")[f"{name}: indexes"]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("last", "found"), [("fence", "a schema change is under way"), ("publish", "cells of a dropped column")]
)
def test_an_unfinished_change_of_a_table_is_told(
    project: Project, models: Any, last: str, found: str
) -> None:
    """Broken off when its tablets were fenced, and before what it left was swept."""
    with project.connect() as db:
        changes, entry = db.schema_changes, db.catalog.entry("orders")
        assert entry is not None
        new = without_column(entry.definition, "weight")
        held = changes.begin(entry, {"kind": "define", "definition": to_json(new), "sweep": ["weight"]})
        assert held is not None
        next(step for step in changes.steps(held) if step == last)
    name = project.namespace
    (told,) = (one for one in check_store(project.url, name) if one.check == f"{name}: orders")
    assert told.verdict == "warn"
    assert told.found.startswith(found)
    assert "percolator gc" in told.mend
    project.ok("gc", "--keep", "1h")
    assert not [one for one in check_store(project.url, name) if one.check == f"{name}: orders"]
