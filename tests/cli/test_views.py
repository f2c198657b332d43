"""``views`` and ``check --data``: a view from its file to its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cli import typed

if TYPE_CHECKING:
    from tests.cli.conftest import Project


@pytest.fixture
def shop(project: Project) -> Project:
    """A chain whose tables have rows, and then get a view."""
    typed.make(project)
    project.ok("drain", "shop")
    (project.folder / "shop" / "views").mkdir()
    (project.folder / "shop" / "views" / "counts.sql").write_text(
        "CREATE VIEW counts AS SELECT shop, count(*) AS n FROM orders GROUP BY shop"
    )
    return project


def listed(project: Project) -> Any:
    [view] = project.ok("views", "shop", "--json").json["views"]
    return view


def test_a_view_is_filled_and_compared(shop: Project) -> None:
    shown = shop.ok("views", "shop", "--fill", "counts")
    assert "rows given to counts, 0 of which it had already; 0 marked for workers" in shown.err
    view = listed(shop)
    assert (view["name"], view["reads"], view["waiting"], view["filled"]) == ("counts", ["orders"], 0, True)
    with shop.connect() as db, db.transaction() as t:
        key = next(t.select("orders", columns=["shop", "number"]))
        t.remove("orders", **key)
    assert listed(shop)["waiting"] == 1
    before = shop("check", "shop", "--data")
    assert before.code == 1
    assert "counts differ from their queries: wait until the chain is idle" in before.error
    shop.ok("drain", "shop")
    [same] = shop.ok("check", "shop", "--data", "--json").json["views"]
    assert (same["missing"], same["extra"], same["different"]) == (0, 0, 0)
    with shop.connect() as db, db.transaction() as t:
        t.update("counts", shop=next(t.select("counts"))["shop"], n=99)
    wrong = shop("check", "shop", "--data")
    assert (wrong.code, "counts differ from their queries: fill it again" in wrong.error) == (1, True)


def test_an_unknown_view(shop: Project) -> None:
    refused = shop("views", "shop", "--fill", "sums")
    assert (refused.code, "has no view 'sums': it has counts" in refused.error) == (2, True)
