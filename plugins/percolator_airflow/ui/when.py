"""The time that a page of data shows: now, or one in the past."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import SnapshotTooOld
from percolator_core.notation.error import NotationError
from percolator_core.notation.times import parse_length, parse_time, show_time

if TYPE_CHECKING:
    from percolator_airflow.ui.links import Links
    from percolator_core.database import Database

QUICK: Final = (("now", ""), ("5 min ago", "5m"), ("1 h ago", "1h"), ("1 day ago", "1d"))
"""Times that are one click away."""


@dataclass(frozen=True, slots=True)
class When:
    """The time that a page shows: what was asked for, as a timestamp (µs) once it is known; None is now."""

    asked: str
    at: int | None
    now: int
    is_forced: bool = False
    """Whether a transaction that is committing is why it is not the time that was asked for."""

    @property
    def ago(self) -> float:
        """Seconds back from now."""
        return 0.0 if self.at is None else (self.now - self.at) / 1e6

    @property
    def shown(self) -> str:
        """As the form has it: what was typed, and a bare timestamp as a time."""
        if self.at is None or not self.asked.isdecimal():
            return self.asked
        return show_time(self.at, to="microseconds")

    @property
    def link(self) -> str:
        """As links have it: always the same moment."""
        return "" if self.at is None else str(self.at)


def when_meant(db: Database, text: str) -> When:
    """The time that a text means: a moment, or a length of time ago. Raises NotationError."""
    now = db.store.now()
    try:
        moment = parse_time(text, "the time")
    except NotationError as error:
        try:
            moment = now - int(parse_length(text.removesuffix(" ago")).total_seconds() * 1e6)
        except (NotationError, OverflowError):
            raise NotationError(f"{error}, or 15m for a quarter of an hour ago") from None
    if isinstance(moment, datetime):
        moment = int(moment.timestamp()) * 1_000_000 + moment.microsecond
    if moment is not None and moment < 1:
        raise NotationError(f"{text!r} is before 1970")
    if moment is not None and moment >= 2**53:
        raise NotationError(f"{text!r} is behind the last time that a store can tell, in the year 2255")
    return When(text, moment, now)


def told(error: Exception) -> str:
    """What a person is told of a time, or of anything else, that cannot be shown."""
    if isinstance(error, SnapshotTooOld):
        return (
            "Nothing is known of that time: the table, or a column of it, was made or dropped since, or "
            "garbage collection has dropped the versions of then. Choose a later time, or have the "
            "maintenance DAG keep more (keep)."
        )
    return str(error)


def choices(links: Links, table: str, when: When, path: str, **kept: Any) -> list[tuple[str, str, bool]]:
    """The times that are one click away: name, link, and whether it is the one that is shown."""
    return [(name, links.table(table, path, at=at, **kept), at == when.asked) for name, at in QUICK]
