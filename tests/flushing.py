"""Flushes of whole tables, for tests of what reads above a base."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from percolator_core import Database
from percolator_core.base import manifest as manifests
from percolator_core.base.flush import TabletFlush
from percolator_core.base.location import Location
from percolator_core.base.manifest import Manifest, TabletFolder
from percolator_core.base.tablet import TabletBase
from percolator_core.layout.keys import BASE, meta_key, row_prefix


def flush(
    db: Database,
    table: str,
    folder: Path,
    before: int | None = None,
    *,
    observers: Sequence[str] = (),
    safe: int | None = None,
) -> int:
    """Flush the rows that nobody has changed after ``before``; return how many have left the store.

    Without ``before``, all rows go that may. ``safe`` is the safe point; without it, garbage is collected.
    """
    safe = db.collect_garbage(timedelta(0)).safe_point if safe is None else safe
    handle, location, gone = db.catalog.table(table), Location(str(folder)), 0
    for number, tag in enumerate(handle.tags):
        reference = db.store.one((b"HGET", meta_key(tag), BASE)) or b""
        _, name = manifests.split_reference(reference)
        manifest = manifests.load(location, name) if name else Manifest(0, 0)
        base = TabletBase(handle.definition, location, manifest, db.client.bases.cache)
        tablet_folder = TabletFolder(tag, handle.version, location, f"{table}/{number}")
        gone += (
            TabletFlush(db.store, tablet_folder, base, reference, observers)
            .run(safe, safe if before is None else min(before, safe))
            .rows
        )
    return gone


def is_cold(db: Database, table: str, row: bytes) -> bool:
    """Return True if the store has nothing of a row."""
    tag = db.catalog.table(table).tag(row)
    return not db.store.one((b"EXISTS", row_prefix(tag) + row))
