"""Admission: before a run, check that the mark belongs to the current table and to this chain."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from percolator_core.errors import LockTimeout, UnknownColumn
from percolator_core.notifications.dirty import DirtyIndex, Lease, known_table
from percolator_core.observers import Observer
from percolator_core.transaction.client import Client

GIVEN_BACK: Final = 0.05
"""Seconds until a cell that was given back after a conflict is due again."""

_WRONG_CHAIN: Final = 0.5
"""Seconds until a cell that another chain observes is due again."""


class Admission:
    """Checks before a run that its mark belongs to the current table and to this chain."""

    def __init__(self, client: Client, dirty: DirtyIndex, observers: Iterable[Observer]) -> None:
        self._client = client
        self._dirty = dirty
        self._columns = {observer.name: observer.observe for observer in observers}
        self._observed: dict[str, set[tuple[str, bytes]]] = {name: set() for name in self._columns}
        # Look up the stored names of the columns now: after a rename, the catalog does not know the names
        # that the chain declares.
        for name, columns in self._columns.items():
            for table in {table for table, _ in columns}:
                self._encode_columns(name, table)

    def admits(self, lease: Lease) -> bool:
        """Return True if the observer may run on the leased cell; give the cell back if not."""
        handle = known_table(self._client.catalog, lease.table)
        if handle is None:
            return False  # the table was dropped, and the mark with it
        if handle.version != lease.version:
            # Either the table was changed, and the catalog of this client may be out of date. Or the mark
            # belonged to a dropped table of that name and was deleted with it: giving back does nothing.
            self._client.catalog.expire()
            with suppress(LockTimeout):  # the next attempt finishes the schema change
                self._client.finish_schema_change(lease.table, handle.version)
            self._give_back(lease, GIVEN_BACK)
            return False
        if not self._observes(lease):
            # The mark is for another chain, in which an observer of this name watches the column. While that
            # chain is active, its workers take the mark. Later the mark is removed.
            self._give_back(lease, _WRONG_CHAIN)
            return False
        return True

    def _observes(self, lease: Lease) -> bool:
        cell = (lease.table, lease.column)
        if cell not in self._observed[lease.observer]:
            # A table that was created again may store its columns under other names.
            self._encode_columns(lease.observer, lease.table)
        return cell in self._observed[lease.observer]

    def _encode_columns(self, observer: str, table: str) -> None:
        handle = known_table(self._client.catalog, table)
        for of, column in self._columns[observer]:
            if handle is not None and of == table:
                with suppress(UnknownColumn):  # renamed, or the table was created again without the column
                    self._observed[observer].add((table, handle.encode(column)))

    def _give_back(self, lease: Lease, seconds: float) -> None:
        self._client.store.run(self._dirty.postpone(lease, seconds, failed=False))
