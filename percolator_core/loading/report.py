"""The progress and the outcome of a load."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from percolator_core.errors import PercolatorError


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load. The counts are those of the tasks that have ended."""

    tasks: int
    tasks_done: int
    read: int
    new: int
    changed: int
    unchanged: int
    bad: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The outcome of a load. ``read`` = new + changed + unchanged + repeated + bad.

    If a task was repeated after a failure, the outcomes of the final attempt count. So ``unchanged`` then
    includes records that an earlier attempt wrote.
    """

    table: str
    format: str
    files: int
    tasks: int
    read: int
    new: int
    changed: int
    unchanged: int
    repeated: int
    """Records that were not loaded, because a later record of the same batch has the same key."""
    deleted: int
    bad: int
    aside: Path | None
    """The JSON-lines file of the malformed records."""
    kept_back: str | None
    """The reason why a requested deletion of missing rows was not done, or None."""
    start_seconds: float
    """Seconds until Spark had started; about 0 if it was already running."""
    load_seconds: float
    delete_seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the fields as values that JSON can represent."""
        return asdict(self) | {"aside": str(self.aside) if self.aside is not None else None}


class TooManyBadRecords(PercolatorError):
    """A load was stopped because of too many malformed records. Loaded rows stay.

    ``report`` is the outcome until the stop.
    """

    def __init__(self, message: str, report: LoadReport) -> None:
        super().__init__(message)
        self.report = report
