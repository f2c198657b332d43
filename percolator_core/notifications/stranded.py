"""Notifications of transactions that committed, but whose client died before it passed them on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from percolator_core.errors import UnknownTable
from percolator_core.maintenance.janitor import Janitor
from percolator_core.notifications.dirty import known_table

if TYPE_CHECKING:
    from percolator_core.database import Database


class Stranded:
    """Locks of transactions that committed, but whose client died before it made all of them visible.

    A weak notification waits in such a lock. So does the mark of a write that began before its column was
    observed: its cell is marked when the lock becomes a version.
    """

    def __init__(self, db: Database, observed: Iterable[tuple[str, str]]) -> None:
        """``observed`` has the observed columns, each with its table."""
        self._client = db.client
        self._tables = sorted({table for table, _ in observed})

    def roll_forward(self, older_than: float) -> int:
        """Settle the locks that nobody touched for that many seconds; returns how many were committed."""
        client = self._client
        handles = [known_table(client.catalog, table) for table in self._tables]
        places = [
            (handle.name, number, tag)
            for handle in handles
            if handle is not None
            for number, tag in enumerate(handle.tags)
        ]
        if not places:
            return 0
        locks = client.store.call(*[(b"ZCARD", tag + b"locks") for _, _, tag in places])
        some = [(table, number) for (table, number, _), count in zip(places, locks, strict=True) if count]
        if not some:
            return 0
        try:
            return Janitor(client).resolve(older_than, some).committed
        except (UnknownTable, ValueError):
            return 0  # a table was dropped meanwhile, with its locks, and perhaps made again
