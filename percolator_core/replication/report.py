"""The progress, the outcome and the errors of a replication."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

from percolator_core.errors import PercolatorError


class ReplicationStopped(PercolatorError):
    """A change of PostgreSQL cannot be applied; the message has the table, the reason and the remedy.

    Earlier transactions are applied, and nothing of this one is.
    """


class SlotInUse(PercolatorError):
    """Another process replicates the slot: stop it, or use another slot."""


@dataclass(slots=True)
class ReplicationProgress:
    """The numbers of a running replication; `replicate` passes them to ``progress``."""

    phase: Literal["copying", "following"] = "copying"
    copied: int = 0
    """Rows of the copy that were read so far."""
    transactions: int = 0
    """Transactions of PostgreSQL with changes of the replicated tables that were applied."""
    changes: int = 0
    """Changes of rows in these transactions."""
    new: int = 0
    changed: int = 0
    deleted: int = 0
    """Rows that were written."""
    position: int = 0
    """All transactions that end at this position (LSN) of PostgreSQL's log or before are applied."""
    waiting: int = 0
    """Transactions that were received and are not applied yet."""
    lag_bytes: int | None = None
    """Bytes of PostgreSQL's log after ``position``, from any table; None until known."""


@dataclass(frozen=True, slots=True)
class ReplicationReport:
    """The outcome of a replication that has ended."""

    slot: str
    tables: dict[str, str] = field(default_factory=dict)
    """The tables of PostgreSQL, ``schema.table``, and their tables."""
    copied: int = 0
    transactions: int = 0
    changes: int = 0
    new: int = 0
    changed: int = 0
    deleted: int = 0
    position: str = "0/0"
    """As PostgreSQL writes it."""
    lag_bytes: int | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return the fields as values that JSON can represent."""
        return asdict(self)


def lsn_text(position: int) -> str:
    """Return a position as PostgreSQL writes it: ``16/B374D848``."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Parse a position as PostgreSQL writes it."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
