"""``migrate``, and the errors that name it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Project

CHAIN = """\
version: 1
chain: words
schemas: cli_migrated
tables:
  docs: {tablets: 4}
  words: {tablets: 2, notify_only: [dirty]}
"""

MODELS = """\
from typing import Annotated

from percolator_core import Indexed, PrimaryKey, RenamedFrom, Table


class Item(Table, name="items"):
    id: PrimaryKey[int]
"""


@pytest.fixture
def declare(project: Project) -> Iterator[Declare]:
    (project.folder / "chain" / "chain.yaml").write_text(CHAIN)
    yield Declare(project)
    sys.modules.pop("cli_migrated", None)


class Declare:
    """Writes the fields of the model."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def __call__(self, *fields: str) -> None:
        sys.modules.pop("cli_migrated", None)
        text = MODELS + "".join(f"    {field}\n" for field in fields)
        (self._project.folder / "cli_migrated.py").write_text(text)


def test_a_chain_is_migrated(project: Project, declare: Declare) -> None:
    declare("price: int", "note: str | None = None")
    found = project.ok("migrate", "chain", "--json").json
    assert {(one["kind"], one["table"]) for one in found["differences"]} == {
        ("create table", name) for name in ("docs", "items", "words")
    }
    assert project.ok("migrate", "chain").out.strip() == "the tables agree with the chain"
    with project.connect() as db, db.transaction() as t:
        t.insert("items", id=1, price=5, note="n")
    declare("cost: Annotated[str, RenamedFrom('price')]", "stars: Indexed[int] = 3")
    planned = project("migrate", "chain", "--dry-run")
    assert planned.code == 2
    assert "5 differences, 1 refused; nothing was changed" in planned.out
    assert "the column items.price is renamed to cost; its data does not change" in planned.out
    assert "refused: its data would be lost: allow it with --allow-drop items.note" in planned.out
    refused = project("migrate", "chain", "--json")
    assert refused.code == 2
    assert "allow it with --allow-drop items.note" in refused.json["error"]["message"]
    done = project.ok("migrate", "chain", "--allow-drop", "items.note")
    assert "5 changes made" in done.out
    with project.connect() as db:
        assert db.snapshot().find("items", id=1) == {"id": 1, "cost": "5", "stars": 3}
    assert project.ok("migrate", "chain", "--dry-run", "--json").json == {"dry_run": True, "differences": []}


def test_a_narrower_type_is_named(project: Project, declare: Declare) -> None:
    declare("price: str")
    project.ok("migrate", "chain")
    with project.connect() as db, db.transaction() as t:
        t.insert("items", id=1, price="5")
    declare("price: int")
    refused = project("migrate", "chain")
    assert refused.code == 2
    assert "allow it with --allow-narrowing items.price" in refused.err
    project.ok("migrate", "chain", "--allow-narrowing", "items.price")
    with project.connect() as db:
        assert db.snapshot().find("items", id=1) == {"id": 1, "price": 5}


@pytest.mark.parametrize("command", [["drain", "chain"], ["worker", "chain"]])
def test_commands_that_find_another_definition_name_it(
    project: Project, declare: Declare, command: list[str]
) -> None:
    declare("price: int")
    project.ok("migrate", "chain")
    declare("price: str")
    refused = project(*command)
    assert refused.code == 2
    assert "`percolator migrate` changes it" in refused.err
    assert "drop" not in refused.err
