"""Changes of rows of the tables that a view reads, and the content of the acknowledgements of such rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from percolator_core.layout.acknowledgements import Ack
from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.layout.records import Cell
from percolator_core.notifications.row_change import RowChange
from percolator_core.transaction.transaction import Transaction
from percolator_core.views.packing import Packable, pack, unpack
from percolator_core.views.plan import Found


@dataclass(slots=True)
class Seen:
    """The content of a row's acknowledgement: the row's image, and its contribution to each branch."""

    image: bytes | None = None
    contributions: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, ack: Ack | None) -> Seen:
        """Return the content of an acknowledgement; without one, it is empty."""
        if ack is None or not ack.image:
            return cls()
        row, contributions = unpack(ack.image)
        return cls(row, dict(contributions))

    def pack(self) -> bytes:
        """Return the content in packed form: it is stored as `Ack.image`."""
        given: list[Packable] = [[number, one] for number, one in sorted(self.contributions.items())]
        return pack([self.image, given])


@dataclass(frozen=True, slots=True)
class SourceChange:
    """The change of a row of a table that a view reads.

    ``found`` is the row; None if it does not exist any more. ``is_contended`` is True if an earlier attempt
    of the run conflicted with another transaction.
    """

    table: str
    row: bytes
    timestamp: int
    transaction: Transaction
    seen: Seen
    found: Found | None
    is_contended: bool = False

    @property
    def column(self) -> str:
        """``*``: the change is one of the whole row."""
        return EVERY_COLUMN


SourceRow: TypeAlias = tuple[str, bytes]
"""A table that a view reads, and a row key."""

ContributionChange: TypeAlias = tuple[bytes | None, bytes | None]
"""The contribution of a source row before and after."""

AnyChange: TypeAlias = Cell | RowChange | SourceChange
"""The change that an observer processes: of a cell, of a whole row, or of a row that a view reads."""
