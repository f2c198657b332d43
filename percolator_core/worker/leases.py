"""The check of a leased cell before its run: is the mark of the table as it is now, and of this chain?"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from percolator_core.errors import LockTimeout, UnknownColumn
from percolator_core.maintenance.schema_change import SchemaChanges
from percolator_core.notifications.dirty import DirtyIndex, Lease, known_table
from percolator_core.observers import Observer
from percolator_core.transaction.client import Client

_GIVEN_BACK: Final = 0.05
_TURNED_AWAY: Final = 0.5


class Admission:
    """Gives back the leased cells that are not to be run here."""

    def __init__(self, client: Client, dirty: DirtyIndex, observers: Iterable[Observer]) -> None:
        self._client = client
        self._dirty = dirty
        self._columns = {observer.name: observer.observe for observer in observers}
        self._observed: dict[str, set[tuple[str, bytes]]] = {name: set() for name in self._columns}
        # Now, by the names that the chain has: a column that is renamed later keeps its name in the store.
        for name, columns in self._columns.items():
            for table in {table for table, _ in columns}:
                self._learn(name, table)

    def admits(self, lease: Lease) -> bool:
        """Whether to run the cell's observer; gives the cell back if not.

        Raises:
            StoreUnavailable: the store is away; the lease then ends by itself.
        """
        handle = known_table(self._client.catalog, lease.table)
        if handle is None:
            return False  # the table was dropped, and the mark with it
        if handle.version != lease.version:
            # The table was changed, and this client may not know it yet. Or it was made again, and the mark
            # was of the table before: then it is gone, and to give it back does nothing.
            self._catch_up(lease.table, handle.version)
            self._give_back(lease, _GIVEN_BACK)
            return False
        if not self._observes(lease):
            # In another chain an observer of this name watches the column. While that chain is active, its
            # workers take the mark; later it is removed.
            self._give_back(lease, _TURNED_AWAY)
            return False
        return True

    def _observes(self, lease: Lease) -> bool:
        cell = (lease.table, lease.column)
        if cell not in self._observed[lease.observer]:
            # A table that was made again may have other names for its columns in the store.
            self._learn(lease.observer, lease.table)
        return cell in self._observed[lease.observer]

    def _learn(self, observer: str, table: str) -> None:
        handle = known_table(self._client.catalog, table)
        for of, column in self._columns[observer]:
            if handle is not None and of == table:
                with suppress(UnknownColumn):  # renamed, or of a table that was made again without it
                    self._observed[observer].add((table, handle.encode(column)))

    def _catch_up(self, table: str, version: bytes) -> None:
        self._client.catalog.expire()
        with suppress(LockTimeout):  # whoever comes next carries the change on
            SchemaChanges(self._client).carry_on(table, version)

    def _give_back(self, lease: Lease, seconds: float) -> None:
        self._client.store.one(self._dirty.postpone(lease, seconds, failed=False))
