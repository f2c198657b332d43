"""What a trace consists of: changes, what observers made of each, and runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

COLLAPSED: Final = 100
"""More changes than these that one run dealt with are not counted."""

Kind: TypeAlias = Literal["put", "delete", "notify"]
State: TypeAlias = Literal["ran", "pending", "leased", "retrying", "quarantined", "collected", "unobserved"]

WAITING: Final = frozenset({"pending", "leased", "retrying"})
"""States of an observer that has yet to deal with a change."""


@dataclass(frozen=True, slots=True)
class WrittenCell:
    """A cell that a run wrote."""

    table: str
    row: bytes
    column: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one observer made of a change.

    ``state`` is one of

    - ``ran``: ``run`` is the number of the run that dealt with it, which began ``lag`` seconds after the
      change; ``again`` tells that it repeats an earlier one, as a rerun for newer code does;
    - ``pending``: no worker has claimed the cell yet; ``leased``: a worker has it, or died with it;
      ``retrying``: it waits, after ``attempts`` that failed;
    - ``quarantined``: given up after ``attempts``, for ``error``;
    - ``collected``: garbage collection has dropped what would tell;
    - ``unobserved``: neither a run nor a mark: the observer was not active when the cell was written.
    """

    observer: str
    state: State
    run: int | None = None
    lag: float | None = None
    again: bool = False
    attempts: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an observed cell, committed at ``timestamp`` (µs).

    That is None for notifications from outside: they leave nothing behind but the runs that they woke.
    """

    table: str
    row: bytes
    column: str
    kind: Kind
    timestamp: int | None
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run that committed: ``observer``, woken by ``(table, row, column)``.

    ``number`` counts the runs of the trace by their begin, from 1. ``recorded`` tells whether what it wrote
    is known: ``written`` is how many cells, ``cells`` the first thousand of them, ``changes`` those that
    observers watch and that were followed, ``unfollowed`` how many were not. ``changes_seen`` is how many
    changes it dealt with at once, at least 1: those of its cell (`COLLAPSED` at most), or the notifications
    in this trace.
    """

    number: int
    observer: str
    table: str
    row: bytes
    column: str
    start_timestamp: int
    commit_timestamp: int
    revision: int
    recorded: bool
    written: int
    cells: tuple[WrittenCell, ...]
    changes: tuple[Change, ...]
    unfollowed: int
    changes_seen: int

    @property
    def seconds(self) -> float:
        """From its begin to its commit."""
        return (self.commit_timestamp - self.start_timestamp) / 1e6


@dataclass(frozen=True, slots=True)
class Trace:
    """What became of a row's ``changes``: ``runs`` has every run once, by begin.

    ``uncertain`` counts changes from before the safe point of garbage collection: of that time only the
    newest versions are left, so that runs may be missing, or a later run stand for an earlier one.
    """

    table: str
    row: bytes
    changes: tuple[Change, ...]
    runs: tuple[Run, ...]
    uncertain: int

    @property
    def seconds(self) -> float | None:
        """From the first write to the last commit that it caused; None where no run is known."""
        if not self.runs:
            return None
        begins = [change.timestamp for change in self.changes if change.timestamp is not None]
        first = min([*begins, self.runs[0].start_timestamp])
        return (max(run.commit_timestamp for run in self.runs) - first) / 1e6

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Of all changes, those that runs made included."""
        changes = [*self.changes, *(change for run in self.runs for change in run.changes)]
        return tuple(outcome for change in changes for outcome in change.outcomes)

    @property
    def waiting(self) -> int:
        """How often an observer has yet to deal with a change; 0 when the changes have come to their end."""
        return sum(outcome.state in WAITING for outcome in self.outcomes)

    @property
    def quarantined(self) -> int:
        """How often an observer gave up on a change."""
        return sum(outcome.state == "quarantined" for outcome in self.outcomes)

    @property
    def unrecorded(self) -> int:
        """Runs of which it is not known what they wrote."""
        return sum(not run.recorded for run in self.runs)

    @property
    def unfollowed(self) -> int:
        """Changes that were not followed, for ``depth`` or ``limit``."""
        return sum(run.unfollowed for run in self.runs)
