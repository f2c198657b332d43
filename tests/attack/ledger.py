"""Which tables there were, and when: the facts by which reads and writes are judged.

Every change of a table is written down with a timestamp taken before it and one taken after it. Between the
two both definitions may be in use; everywhere else a timestamp has one definition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Final

GRACE: Final = 5.0
"""Seconds after a change during which a client that has not looked since may still be refused."""


@dataclass(frozen=True)
class Shape:
    """A table as it is between two changes.

    ``incarnation`` distinguishes a table from an earlier one of the same name. ``columns`` has for each name
    the column's identity, which a new name does not change, and another column of the same name does not
    share. ``letters`` are those with which row keys may begin: a range is cut before rows are written into
    it.
    """

    incarnation: str
    typed: bool
    columns: Mapping[str, str]
    tablets: int
    letters: str = "a"

    def __str__(self) -> str:
        kind = "typed" if self.typed else "raw"
        return f"{self.incarnation} ({kind}, {self.tablets} tablets, columns {', '.join(self.columns)})"


@dataclass
class Change:
    """From one shape to another; None is no table. Timestamps of the store, and monotonic seconds."""

    what: str
    shape: Shape | None
    after: int
    """The change is not in use at or below this timestamp."""
    before: float = inf
    """It is in use at and above this timestamp."""
    began: float = field(default_factory=time.monotonic)
    ended: float = inf


class Ledger:
    """The changes of all tables. Threads may share it; only one at a time changes a table."""

    def __init__(self) -> None:
        self._changes: dict[str, list[Change]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._numbers: dict[str, int] = {}

    def tables(self) -> list[str]:
        """The names of all tables that there ever were."""
        return list(self._changes)

    def number(self, name: str) -> int:
        """A number that no other incarnation, or column, of that name has."""
        self._numbers[name] = self._numbers.get(name, 0) + 1
        return self._numbers[name]

    def now(self, table: str) -> Shape | None:
        """The shape after the last change that has ended."""
        for change in reversed(self._changes.get(table, [])):
            if change.ended < inf:
                return change.shape
        return None

    @contextmanager
    def hold(self, table: str) -> Iterator[bool]:
        """Yield True if nobody else is changing the table; nobody will before the block ends."""
        lock = self._locks.setdefault(table, threading.Lock())
        if not lock.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def begin(self, table: str, what: str, shape: Shape | None, now: int) -> Change:
        """A change begins, at a timestamp taken now."""
        change = Change(what, shape, now)
        self._changes.setdefault(table, []).append(change)
        return change

    @staticmethod
    def end(change: Change, now: int) -> None:
        """It is made."""
        change.before, change.ended = now, time.monotonic()

    def refused(self, table: str, change: Change) -> None:
        """It was not made, and nothing of it is left."""
        self._changes[table].remove(change)

    def at(self, table: str, timestamp: int) -> list[Shape | None]:
        """The shapes that may be in use at a timestamp, the newest one first."""
        found: list[Shape | None] = []
        for change in reversed(self._changes.get(table, [])):
            if timestamp <= change.after:
                continue
            found.append(change.shape)
            if timestamp >= change.before:
                return found
        return [*found, None]

    def later(self, table: str, timestamp: int) -> list[Shape]:
        """The shapes that the table got after a timestamp, while it was the same table."""
        at = [shape.incarnation for shape in self.at(table, timestamp) if shape is not None]
        return [
            change.shape
            for change in self._changes.get(table, [])
            if change.after >= timestamp and change.shape is not None and change.shape.incarnation in at
        ]

    def changed_since(self, table: str, moment: float) -> bool:
        """Return True if the table was being changed after a moment, or shortly before it."""
        return any(change.ended + GRACE > moment for change in self._changes.get(table, []))

    def story(self, table: str, at: float = inf) -> str:
        """The changes of a table around a timestamp, for a person."""
        changes = self._changes.get(table, [])
        upto = sum(1 for change in changes if change.after < at)
        lines = [f"{change.after}…{change.before}: {change.what}" for change in changes]
        return "; ".join(lines[max(0, upto - 2) : upto + 2]) or "it was never made"
