"""The parts of a trace: changes, their outcomes for each observer, and runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from percolator_core.runtime.html import ShownInNotebook

COLLAPSED: Final = 100
"""The greatest number of changes that is counted for one run."""

WriteKind: TypeAlias = Literal["put", "delete", "notify"]
State: TypeAlias = Literal["ran", "pending", "leased", "retrying", "quarantined", "collected", "unobserved"]

WAITING: Final = frozenset({"pending", "leased", "retrying"})
"""States of a change that the observer has not observed yet."""


@dataclass(frozen=True, slots=True)
class WrittenCell:
    """A cell that a run wrote."""

    table: str
    row: bytes
    column: str
    kind: WriteKind


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a change for one observer.

    ``state`` is one of

    - ``ran``: the run with number ``run`` observed the change, and began ``lag`` seconds after the change.
      ``again`` is True if the run repeats an earlier run, as a rerun does;
    - ``pending``: no worker has claimed the cell;
    - ``leased``: a worker has claimed the cell, and may have died;
    - ``retrying``: the cell waits for a retry after ``attempts`` failed attempts;
    - ``quarantined``: the cell is in quarantine after ``attempts`` failed attempts, with the last ``error``;
    - ``collected``: unknown, because the acknowledgement is gone: garbage collection has dropped it, or the
      row has moved to the base;
    - ``unobserved``: there is no run and no mark: the observer was not active when the cell was written.
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

    The timestamp is None for notifications of the traced row: the store keeps only their runs.
    """

    table: str
    row: bytes
    column: str
    kind: WriteKind
    timestamp: int | None
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run that committed: ``observer``, woken by ``(table, row, column)``.

    ``number`` counts the runs of the trace by start timestamp, from 1. ``recorded`` is True if the written
    cells are known: ``written`` is their number, and ``cells`` has the first thousand. ``changes`` has the
    written cells that are observed and were followed; ``unfollowed`` counts the observed ones that were not
    followed. ``changes_seen`` is at least 1. It counts the changes of ``(table, row, column)`` that the run
    observed, at most `COLLAPSED`. For a weak observer it counts the notifications in this trace.
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
        """The time from the start of the run to its commit."""
        return (self.commit_timestamp - self.start_timestamp) / 1e6


@dataclass(frozen=True, slots=True)
class Trace(ShownInNotebook):
    """The ``changes`` of a row, and the ``runs`` that they caused, sorted by start timestamp.

    ``uncertain`` counts changes before the safe point of garbage collection. Versions of that time have been
    dropped, so runs may be missing, or a later run may be shown in place of an earlier one.
    """

    table: str
    row: bytes
    changes: tuple[Change, ...]
    runs: tuple[Run, ...]
    uncertain: int

    @property
    def seconds(self) -> float | None:
        """The time from the first change to the last commit of a run; None without a run."""
        if not self.runs:
            return None
        begins = [change.timestamp for change in self.changes if change.timestamp is not None]
        first = min([*begins, self.runs[0].start_timestamp])
        return (max(run.commit_timestamp for run in self.runs) - first) / 1e6

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of all changes, also of changes by runs."""
        changes = [*self.changes, *(change for run in self.runs for change in run.changes)]
        return tuple(outcome for change in changes for outcome in change.outcomes)

    @property
    def waiting(self) -> int:
        """Outcomes that wait for a run; 0 when all changes have been observed."""
        return sum(outcome.state in WAITING for outcome in self.outcomes)

    @property
    def quarantined(self) -> int:
        """Outcomes in quarantine."""
        return sum(outcome.state == "quarantined" for outcome in self.outcomes)

    @property
    def unrecorded(self) -> int:
        """Runs whose writes were not recorded."""
        return sum(not run.recorded for run in self.runs)

    @property
    def unfollowed(self) -> int:
        """Changes that were not followed because of ``depth`` or ``limit``."""
        return sum(run.unfollowed for run in self.runs)
