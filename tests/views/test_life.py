"""The life of a view: nobody but its runs writes its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Chain, ConfigurationError
from percolator_core.admin.quarantine import Quarantine
from percolator_core.layout.records import PUT
from percolator_core.loading import load, open_source
from percolator_core.notifications.queue import ADDED
from percolator_core.transaction.transaction import Transaction
from percolator_core.views.stored import groups_table
from tests.views.shops import watch
from tests.views.test_stored_views import Shop

if TYPE_CHECKING:
    from collections.abc import Callable


def groups(t: Transaction) -> str:
    return groups_table(t.handle_of("sums").definition.stored)


WRITES: dict[str, Callable[[Transaction], object]] = {
    "insert": lambda t: t.insert("cheap", id=7, twice=1),
    "upsert": lambda t: t.upsert("cheap", id=1, twice=1),
    "update": lambda t: t.update("cheap", id=7, twice=1),
    "remove": lambda t: t.remove("cheap", id=7),
    "a cell": lambda t: t.put(t.handle_of("cheap"), b"row", t.handle_of("cheap").marker.encoded, (PUT, b"")),
    "set": lambda t: t.set(groups(t), "row", "state", b""),
    "delete": lambda t: t.delete(groups(t), "row", "state"),
    "notify": lambda t: t.notify(groups(t), "row", ADDED),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_only_the_runs_of_a_view_write_its_tables(shop: Shop, write: Callable[[Any], object]) -> None:
    with shop.db.transaction() as t:
        t.insert(shop.order(id=1, price=1.0, amount=3, customer=1))
    shop.settle()
    with (
        pytest.raises(ConfigurationError, match=r"view.*: change the tables that"),
        shop.db.transaction() as t,
    ):
        write(t)
    shop.must_be_right()


def test_a_load_into_a_view_is_refused_before_its_first_row(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "twice": 2}\n')
    with pytest.raises(ConfigurationError, match="cheap is a view: change the tables that the view reads"):
        load(shop.db, "cheap", open_source(str(tmp_path / "rows.jsonl")))


def test_an_observer_that_declares_writes_to_a_view_is_refused(shop: Shop, tmp_path: Path) -> None:
    for table in ("cheap", groups_table(shop.chain.views["sums"].stored.name)):
        (tmp_path / "shop" / "writer.yaml").write_text(
            "version: 1\nobserver: writer\nobserve: orders.note\nfunction: view_models:Order\n"
            f"writes: [{table}.*]\n"
        )
        with pytest.raises(ConfigurationError, match=f"'{table}' belongs to the view .*: write the tables"):
            Chain.load(tmp_path / "shop")


def test_an_observer_acknowledges_rows_of_a_view_and_writes_none(shop: Shop, tmp_path: Path) -> None:
    watch(shop, tmp_path)
    with shop.db.transaction() as t:
        for key in (1, 2):
            t.insert(shop.order(id=key, price=1.0, amount=3))
    shop.settle()
    assert shop.db.snapshot().get_row("copies", "all") == {"1": b"6"}
    [failed] = Quarantine(shop.db, shop.chain).cells()
    assert "joined is a view: change the tables that the view reads" in failed.error
    shop.must_be_right()


def test_the_definition_of_a_view_does_not_change(shop: Shop) -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: shop.db.drop_table("cheap"),
        lambda: shop.db.drop_table(shop.chain.views["cheap"].stored.name),
        lambda: shop.db.drop_table(groups_table(shop.chain.views["sums"].stored.name)),
        lambda: shop.db.rename_column("cheap", "twice", "double"),
        lambda: shop.db.drop_column("cheap", "twice"),
    )
    for change in changes:
        with pytest.raises(ConfigurationError, match="view"):
            change()
    assert [column.name for column in shop.db.catalog.table("cheap").definition.columns] == ["id", "twice"]
