"""The progress and the outcome of a load."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from percolator_core.errors import PercolatorError


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load; the counts grow when a task ends."""

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

    If a task failed and ran again, its records count once, by the outcome of the last run. So after a failure
    ``unchanged`` includes records that this load wrote.
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
    """Records that were replaced by a later record with the same key, near them in the same file."""
    deleted: int
    bad: int
    aside: Path | None
    """The JSON-lines file of the malformed records."""
    kept_back: str | None
    """The reason why missing rows were not deleted although the caller asked for it; None if there is
    none."""
    start_seconds: float
    """Seconds until Spark had started; about 0 if it was already running."""
    load_seconds: float
    delete_seconds: float

    def to_json(self) -> dict[str, object]:
        """The fields, in types that JSON has."""
        return asdict(self) | {"aside": str(self.aside) if self.aside is not None else None}


class TooManyBadRecords(PercolatorError):
    """A load was stopped because of more malformed records than allowed. Loaded rows stay.

    ``report`` is the outcome until then.
    """

    def __init__(self, message: str, report: LoadReport) -> None:
        super().__init__(message)
        self.report = report
