"""Runs for whole rows: an observer of a table gets each changed row as it was and as it is.

The acknowledgement of such a run keeps the row's *image*: the cells as the run saw them. The next run
compares the row with this image. So `RowChange.before` is exactly what the last committed run of this
observer saw, whatever garbage collection, a flush, or a restore has removed since; and a run that finds no
difference has nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.acknowledgements import NEVER_RAN, Ack, Image, pack_image, unpack_image
from percolator_core.layout.keys import EVERY_COLUMN, MARKER, acknowledgement
from percolator_core.layout.records import PUT
from percolator_core.notifications.dirty import Lease
from percolator_core.tables.binding import binding_of
from percolator_core.tables.model import Table
from percolator_core.transaction.transaction import Transaction


@dataclass(frozen=True, slots=True)
class RowChange:
    """The change of a row that woke an observer of a whole table.

    ``key`` has the values of the key columns of a typed table by name; it is empty for a raw table.
    ``before`` is the row as the observer's last committed run saw it, ``after`` is the row now: instances of
    the model, or, for a raw table, dicts of bytes by column. None means that there was, or is, no such row.
    ``columns`` has the names of the columns whose values differ. ``timestamp`` is the newest commit timestamp
    of the row, in microseconds. One run may serve several commits.
    """

    table: str
    row: bytes
    timestamp: int
    key: Mapping[str, Any]
    before: Any
    after: Any
    columns: frozenset[str]

    @property
    def column(self) -> str:
        """``*``: the change is one of the whole row."""
        return EVERY_COLUMN


def begin_row(
    transaction: Transaction, lease: Lease, revision: int, models: Mapping[str, type[Table]]
) -> RowChange | None:
    """Begin a run for a row: take the snapshot, and write the acknowledgement first, so that it is primary.

    Return the change. Return None if the row is as the last run saw it, unless a rerun asks for another run.
    """
    acked = acknowledgement(lease.observer, lease.column)
    handle, [found] = transaction.whole_rows(lease.table, [lease.row], acked)
    if handle.is_typed:
        transaction.keep(handle, lease.row, found)
    rows = _Rows(handle, models.get(lease.table), lease.row)
    now = handle.image(found.cells)
    done = None if found.ack is None or found.ack.value is None else Ack.unpack(found.ack.value)
    if done is not None and done.image is not None:
        seen = rows.known(unpack_image(done.image), now)
    else:
        # A row moves to the base after it was processed, and its acknowledgement is removed. So the base has
        # it as the last run saw it.
        seen = handle.image(found.of_base)
    changed = {name for name in now.keys() | seen.keys() if now.get(name) != seen.get(name)}
    is_redone = done is not None and done.revision == NEVER_RAN and bool(now)
    is_unchanged = now.keys() == seen.keys() and not changed and not is_redone
    if is_unchanged and (found.ack is None or found.timestamp <= found.ack.start_ts):
        return None
    transaction.write(lease.table, lease.row, acked, (PUT, Ack(revision, image=pack_image(now)).pack()))
    if is_unchanged:
        return None  # the row changed and changed back: a backup has to know that this was processed
    columns = frozenset(handle.decode(name) for name in changed if name != MARKER)
    return RowChange(
        lease.table, lease.row, found.timestamp, rows.key(), rows.decoded(seen), rows.decoded(now), columns
    )


class _Rows:
    """Converts one row between cells, its image, and what an observer gets."""

    def __init__(self, handle: TableHandle, model: type[Table] | None, row: bytes) -> None:
        self._handle = handle
        self._model = model
        self._row = row

    def known(self, seen: Image, now: Image) -> Image:
        """Return an earlier image with the present columns of the table.

        A column that the table got later was null. The earlier value of a column whose type has changed is
        not known; it counts as unchanged once.
        """
        shown = self._handle.shown
        if not self._handle.is_typed or not seen:
            return seen
        retired = {stored.rpartition(b".")[2] for stored in seen if stored not in shown}
        values = {
            stored: now.get(stored) if stored not in seen and name.encode() in retired else seen.get(stored)
            for stored, name in shown.items()
        }
        return {MARKER: b"", **values}

    def key(self) -> dict[str, Any]:
        """Return the values of the key columns by name."""
        if not self._handle.is_typed:
            return {}
        key: dict[str, Any] = binding_of(self._handle, None).decode(
            self._row, {}, self._handle.definition.key
        )
        return key

    def decoded(self, image: Image) -> Any:
        """Return the row as an observer gets it; None if the image is empty."""
        if not image:
            return None
        if not self._handle.is_typed:
            return {self._handle.decode(name): value for name, value in image.items()}
        columns = self._handle.definition.by_name
        cells = {
            name: columns[name].missing if image[stored] is None else image[stored]
            for stored, name in self._handle.shown.items()
        }
        binding = binding_of(self._handle, self._model)
        return binding.decode(self._row, cells, binding.columns)
