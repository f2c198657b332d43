"""The progress, the outcome and the errors of a consumer."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from percolator_core.errors import PercolatorError


class ConsumptionStopped(PercolatorError):
    """The consumer cannot go on without a decision; the message has the partition, the reason and the remedy.

    Earlier records are written, and their offsets are stored.
    """


class PartitionInUse(PercolatorError):
    """Another process has taken over a partition: let it go on, or give this consumer another name."""


@dataclass(slots=True)
class ConsumptionProgress:
    """The numbers of a running consumer; `consume` passes them to ``progress``."""

    partitions: int = 0
    """Partitions that this process reads at the moment."""
    read: int = 0
    """Records whose transaction has committed."""
    new: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    """Records by what they did to their row."""
    bad: int = 0
    """Records that were put aside."""
    behind: int = 0
    """Offsets between the stored ones and the ends of this process's partitions, as far as known."""


@dataclass(frozen=True, slots=True)
class ConsumptionReport:
    """The outcome of a consumer that has ended; the numbers are those of `ConsumptionProgress`."""

    name: str
    topic: str
    table: str
    read: int
    new: int
    changed: int
    unchanged: int
    deleted: int
    bad: int
    behind: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the fields as values that JSON can represent."""
        return asdict(self)
