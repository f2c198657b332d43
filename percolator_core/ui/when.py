"""The time of a page's snapshot: now, or a time in the past."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import SnapshotTooOld
from percolator_core.notation.error import NotationError
from percolator_core.notation.times import parse_time, show_time

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.ui.links import Links

QUICK: Final = (("now", ""), ("5 min ago", "5m"), ("1 h ago", "1h"), ("1 day ago", "1d"))
"""Times that a page offers as buttons."""


@dataclass(frozen=True, slots=True)
class When:
    """The time of a page's snapshot.

    ``asked`` is the text of the request. ``at`` is the timestamp of the snapshot (µs); None means now.
    """

    asked: str
    at: int | None
    now: int
    is_forced: bool = False
    """True if a committing transaction is the reason why the page does not show the requested time."""

    @property
    def ago(self) -> float:
        """Seconds before now."""
        return 0.0 if self.at is None else (self.now - self.at) / 1e6

    @property
    def shown(self) -> str:
        """The text for the form: the text that the user typed, or the time if that text is a timestamp."""
        if self.at is None or not self.asked.isdecimal():
            return self.asked
        return show_time(self.at, to="microseconds")

    @property
    def link(self) -> str:
        """The text for links: the timestamp, so that a link always leads to the same time."""
        return "" if self.at is None else str(self.at)


def parse_when(db: Database, text: str) -> When:
    """Parse a time, or a length of time before now. Raises NotationError."""
    now = db.store.now()
    moment = parse_time(text, "the time")
    if isinstance(moment, timedelta):
        moment = now - moment // timedelta(microseconds=1)
    if isinstance(moment, datetime):
        moment = int(moment.timestamp()) * 1_000_000 + moment.microsecond
    if moment is not None and moment < 1:
        raise NotationError(f"{text!r} is before 1970")
    if moment is not None and moment >= 2**53:
        raise NotationError(f"{text!r} is too late: the timestamps of a store end in the year 2255")
    return When(text, moment, now)


def message(error: Exception) -> str:
    """Return the sentence that a page shows for an error."""
    if isinstance(error, SnapshotTooOld):
        return (
            "The page cannot show that time: the table or a column was created or dropped since then, or "
            "garbage collection has dropped the versions of that time. Choose a later time, or let garbage "
            "collection keep versions longer (--keep of `percolator gc`, or keep of the maintenance DAG)."
        )
    return str(error)


def choices(links: Links, table: str, when: When, path: str, **kept: Any) -> list[tuple[str, str, bool]]:
    """Return the times for the buttons: label, link, and True for the time that the page shows."""
    return [(name, links.table(table, path, at=at, **kept), at == when.asked) for name, at in QUICK]
