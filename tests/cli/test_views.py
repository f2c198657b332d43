"""``views`` and ``check --data``: a view from its file to its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables import rows
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
        counts, one = t.handle_of("counts"), next(t.select("counts"))
        t.writes_view = counts.view
        rows.remove(t, counts, KeyCodec(counts.definition).encode([one["shop"]]))
    wrong = shop("check", "shop", "--data")
    assert (wrong.code, "counts differ from their queries: fill it again" in wrong.error) == (1, True)


def test_a_changed_view_is_shown_and_a_removed_one_dropped(shop: Project) -> None:
    file = shop.folder / "shop" / "views" / "counts.sql"
    shop.ok("views", "shop", "--fill", "counts")
    shop.ok("drain", "shop")
    file.write_text("CREATE VIEW counts AS SELECT shop, 2 * count(*) AS n FROM orders GROUP BY shop")
    shop.ok("drain", "shop")
    with shop.connect() as db, db.transaction() as t:
        key = next(t.select("orders", columns=["shop", "number"]))
        t.remove("orders", **key)
    late = shop("views", "shop", "--fill", "counts", "--timeout", "0")
    assert (late.code, "changes of counts were left" in late.error) == (4, True)
    changed = shop.ok("views", "shop")
    assert "the SQL of counts has changed: `percolator views shop --fill counts`" in changed.err
    shop.ok("drain", "shop")
    assert (listed(shop)["filled"], listed(shop)["shown"]) == (True, False)
    shop.ok("views", "shop", "--fill", "counts", "--timeout", "0")
    assert (listed(shop)["shown"], listed(shop)["versions"]) == (True, 1)
    file.unlink()
    shop.ok("drain", "shop")
    assert "`percolator views shop --drop counts`" in shop.ok("views", "shop").err
    shop.ok("views", "shop", "--drop", "counts")
    assert shop.ok("views", "shop", "--json").json == {"chain": "shop", "views": [], "left": []}


def test_an_unknown_view(shop: Project) -> None:
    refused = shop("views", "shop", "--fill", "sums")
    assert (refused.code, "has no view 'sums': it has counts" in refused.error) == (2, True)
