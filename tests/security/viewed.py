"""The job of a worker with views."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from percolator_core import Chain, Database, Hash, PrimaryKey, Table


class Sale(Table, name="sales", partition=[Hash("id", buckets=1)]):
    id: PrimaryKey[int]
    shop: str


SALE: Final[Any] = Sale


def keep(db: Database, run: Callable[[Database, Chain], Any]) -> None:
    """Make a view with groups, and write what changes it."""
    with TemporaryDirectory() as folder:
        chain = Path(folder) / "viewed"
        (chain / "views").mkdir(parents=True)
        (chain / "chain.yaml").write_text("version: 1\nchain: viewed\nschemas: tests.security.viewed\n")
        (chain / "views" / "shops.sql").write_text(
            "CREATE VIEW shops AS SELECT shop, count(*) AS n FROM sales GROUP BY shop"
        )
        loaded = Chain.load(chain)
    loaded.create_tables(db)
    run(db, loaded)
    with db.transaction() as t:
        t.insert(SALE(id=1, shop="east"))
        t.insert(SALE(id=2, shop="east"))
    run(db, loaded)
    assert [row["n"] for row in db.snapshot().select("shops")] == [2]
