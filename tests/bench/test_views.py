"""``bench views``: every figure, and the check of the views at the end."""

from __future__ import annotations

import pytest

from percolator_bench import Figure, Scale, views
from percolator_core.admin.views import Comparison
from percolator_core.errors import PercolatorError

SMALL = Scale(rounds=1, rows=1000, operations=20, writes=3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_FEW", 100), ("_CUSTOMERS", 3), ("_ORDERS", 5)):
        monkeypatch.setattr(views, name, size)


def test_every_figure() -> None:
    made = {one.name: one for one in views.measure(SMALL) if isinstance(one, Figure)}
    assert [name for name in made if "filled" in name] == [
        "few_prices: rows filled",
        "prices: rows filled",
        "shown_orders: rows filled",
    ]
    assert made["changes of single rows"].value > 0
    assert "cost of a change: 1,000 rows ÷ 100 rows" in made
    assert 0 <= made["one hot group, 64 writers: conflicts a committed write"].value < 2
    assert made["a customer changes: 5 orders are right"].samples == 3
    assert made["a price changes: its category is right"].samples == 3
    assert made["rebuild by DuckDB: the query"].value > 0


def test_a_wrong_view_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "compare", lambda *_: Comparison("prices", 100, 1, 0, 0, 0))
    with pytest.raises(PercolatorError, match="differs from its query"):
        list(views.measure(SMALL))
