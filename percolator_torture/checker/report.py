"""The result of a check."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from percolator_torture.histories.history import CellKey

KEPT: Final = 100
"""A report has at most this many violations of one name; further violations are only counted."""


class Anomaly(StrEnum):
    """The names of violations."""

    FUTURE_READ = "future read"
    """A read saw a version committed at or above its start: read skew, circular flow, OTV."""
    STALE_READ = "stale read"
    """A read missed the newest version committed below its start: long fork, lost reads."""
    ABORTED_READ = "aborted read"
    """A read saw a value of a transaction that certainly did not commit (G1a)."""
    INTERMEDIATE = "intermediate version"
    """A read saw, or the store has, a value that its writer itself had overwritten (G1b)."""
    OWN_WRITE = "own write missed"
    """A transaction did not see its own newest write."""
    PHANTOM = "phantom"
    """A scan missed a cell of its range, or saw one that did not exist."""
    NOWHERE = "version from nowhere"
    """A read saw, or the store has, a value that no recorded transaction wrote to this cell."""
    OVERLAP = "overlapping writers"
    """Two committed writers of a cell were concurrent (G0, lost update)."""
    COMMIT_BELOW_START = "commit below start"
    """A commit timestamp is not above the start timestamp."""
    REPEATED_TIMESTAMP = "repeated timestamp"
    """A timestamp was given out twice."""
    REPEATED_VERSION = "repeated version"
    """The store has a version of a cell twice."""
    TIMESTAMPS_DIFFER = "timestamps differ"
    """A version has other timestamps than its transaction."""
    MISSING = "committed write missing"
    """A write of a transaction that returned ok, or that a read saw, is not in the store."""
    PRESENT = "aborted write present"
    """A write of a transaction that certainly did not commit is in the store."""
    PARTIAL = "partial commit"
    """Some writes of a transaction of unknown outcome are in the store, and others are not."""
    REAL_TIME = "real time"
    """Transaction A is ordered before B, although B had returned before A began."""
    LOCK = "leftover lock"
    """A lock is left although all clients have ended and locks were resolved."""
    ORPHAN = "orphan"
    """An index entry refers to nothing, or a row has no index entry."""
    NOTIFICATION = "leftover notification"
    """A cell is marked for observers although all observers have run."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation: the transactions (by id) and cells that are involved, and a sentence."""

    name: Anomaly
    transactions: tuple[str, ...]
    cells: tuple[CellKey, ...]
    sentence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"


@dataclass(slots=True)
class Report:
    """The size of the history, and its violations.

    ``violations`` has at most `KEPT` of each name, in the order of the checks; ``counts`` counts all.
    ``committed_unknown`` is the number of transactions of unknown outcome that had committed. ``lost`` are
    the transactions (by id) that returned ok and lack a write. ``torn`` are the transactions of unknown
    outcome that lack a write.
    """

    transactions: int = 0
    reads: int = 0
    scans: int = 0
    versions: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    committed_unknown: int = 0
    lost: set[str] = field(default_factory=set)
    torn: set[str] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[Anomaly] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """True if there are no violations."""
        return not self.counts

    @property
    def names(self) -> set[Anomaly]:
        """The names of the violations."""
        return set(self.counts)

    def add(
        self, name: Anomaly, transactions: tuple[str, ...], cells: tuple[CellKey, ...], sentence: str
    ) -> None:
        """Add a violation."""
        self.counts[name] += 1
        if self.counts[name] <= KEPT:
            self.violations.append(Violation(name, transactions, cells, sentence))

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        checked = (
            f"{self.transactions} transactions ({outcomes}; {self.committed_unknown} unknown committed), "
            f"{self.reads} reads, {self.scans} scans, {self.versions} versions"
        )
        if self.ok:
            return f"{checked}: nothing is wrong"
        counts = ", ".join(f"{count} x {name}" for name, count in self.counts.items())
        return "\n".join([f"{checked}: {counts}", *map(str, self.violations)])
