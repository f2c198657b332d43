"""Changes of the views of a chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from percolator_core import Chain
from percolator_core.admin.views import fill, swap, to_fill
from tests.servers.plain import PATIENCE
from tests.views.test_stored_views import Shop

if TYPE_CHECKING:
    from percolator_core.schema.definitions import ViewRule


WATCHERS = """\
from percolator_core import observer

@observer("cheap.*", writes=["copies.*"], retry={"attempts": 1})
def watcher(t, change):
    name = str(change.key["id"])
    t.set("copies", "all", name, str(change.after.twice).encode())
    t.set("copies", "before", name, b"none" if change.before is None else b"some")
    if change.key["id"] == 2:
        t.remove("joined", id=2)
"""


def watch(shop: Shop, folder: Path) -> None:
    """Add an observer of the view ``cheap``, which also tries to remove a row of another one."""
    (folder / "view_watchers.py").write_text(WATCHERS)
    (folder / "shop" / "chain.yaml").write_text(
        "version: 1\nchain: shop\nschemas: view_models\nobservers: view_watchers\ntables: {copies: {}}\n"
    )
    shop.chain = Chain.load(folder / "shop")
    shop.chain.create_tables(shop.db)


def names(shop: Shop) -> set[bytes]:
    """Return the names of all keys, of all fields of hashes, and the members of all sets in the namespace.

    The tombstone of a dropped table is left out, which refuses late requests to its tablets.
    """
    store = shop.db.store
    found: set[bytes] = set()
    for key in store.one((b"KEYS", store.keyspace.prefix[:-1] + b"[:}]*")):
        kind = store.one((b"TYPE", key))
        inside = store.one((b"HKEYS", key)) if kind == b"hash" else []
        inside += store.one((b"ZRANGE", key, 0, -1)) if kind == b"zset" else []
        if inside != [b"gone"]:
            found.update((key, *inside))
    return found


def change_views(shop: Shop, folder: Path, **changed: str | None) -> None:
    """Write other SQL for views, or remove them, and activate the changed chain."""
    for name, sql in changed.items():
        path = folder / "shop" / "views" / f"{name}.sql"
        if sql is None:
            path.unlink()
        else:
            path.write_text(f"CREATE VIEW {name} AS {sql}")
    shop.chain = Chain.load(folder / "shop")
    shop.chain.create_tables(shop.db)


def show(shop: Shop, *names: str) -> None:
    """Fill views, and swap them."""
    for name in names:
        for one in to_fill(shop.db, shop.chain, name):
            fill(shop.db, shop.chain, one)
            shop.settle()
            swap(shop.db, shop.chain, one, timeout=PATIENCE)


def leaves_nothing(shop: Shop, version: ViewRule) -> bool:
    """Return True if no key, field or definition has the name of a version of a view."""
    name = version.table.encode()
    return not any(name in one for one in names(shop)) and version.table not in shop.db.catalog.refresh()


def rule_of(shop: Shop, name: str) -> ViewRule:
    rule = shop.chain.views[name].stored.view
    assert rule is not None
    return rule
