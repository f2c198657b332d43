"""The acknowledgements of whole rows, which a flush removes from the store.

A row moves to a base after each observer of whole rows has processed it, and its acknowledgements do not move
with it. While it is in the base, a run compares it with the base's row
(`percolator_core.notifications.row_change`). When it comes back into a store, it needs acknowledgements
again: without one, it would count as a new row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from percolator_core.base.row_set import BaseRow
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.acknowledgements import Ack, pack_image
from percolator_core.layout.keys import EVERY_COLUMN, MARKER, acknowledgement, is_of_view


def acknowledgements(
    handle: TableHandle, observed: Mapping[str, Mapping[str, Sequence[str]]], row: BaseRow
) -> dict[bytes, bytes]:
    """Return the acknowledgements that a row of a base needs in a store, by column.

    ``observed`` has the active observers by table and column. The revision that ran is not known, so it is
    the first one: a rerun for earlier revisions then finds the row.
    """
    # The acknowledgements of views stay in the store.
    every = handle.definition.observers(observed).get(EVERY_COLUMN, ())
    observers = [name for name in every if not is_of_view(name)]
    if not observers:
        return {}
    value = Ack(image=pack_image(handle.image({MARKER: b"", **row.cells}))).pack()
    return {acknowledgement(name, MARKER): value for name in observers}
