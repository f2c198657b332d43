"""Changes and runs while a trace is made, and their conversion into the parts of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from percolator_core.admin.trace.found import Change, Outcome, Run, WriteKind, WrittenCell
from percolator_core.layout.acknowledgements import Ack
from percolator_core.layout.records import DELETE, NOTIFY, PUT, Version

_KINDS: Final[dict[int, WriteKind]] = {PUT: "put", DELETE: "delete", NOTIFY: "notify"}

_Name: TypeAlias = Callable[[str, bytes], str]
"""Returns the name of a table's column from its encoded form."""

RunKey: TypeAlias = tuple[str, str, bytes, bytes, int]
"""Observer, table, row, column, commit timestamp."""


@dataclass(slots=True)
class FollowedChange:
    """A change that is followed. ``start_ts`` is its transaction's start timestamp, 0 if that is not needed.

    ``is_cold`` is True if the base has the newest version of the cell: then the first run for the change is
    not known, and each known run is a rerun.
    """

    table: str
    row: bytes
    column: bytes
    kind: int
    timestamp: int | None
    start_ts: int = 0
    is_cold: bool = False
    outcomes: list[tuple[Outcome, RunKey | None]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, bytes, bytes, int | None]:
        """The cell and the timestamp."""
        return self.table, self.row, self.column, self.timestamp


@dataclass(slots=True)
class FollowedRun:
    """A run that is followed. ``before`` is the start timestamp of the previous run on the same cell."""

    key: RunKey
    version: Version
    ack: Ack
    before: int
    causes: int = 0
    seen: int = 1
    changes: list[FollowedChange] = field(default_factory=list)
    unfollowed: int = 0


def frozen(change: FollowedChange, numbers: dict[RunKey, int], name: _Name) -> Change:
    """Return the change as a part of the result; ``numbers`` has the number of each run."""
    outcomes = tuple(
        outcome if key is None else replace(outcome, run=numbers[key]) for outcome, key in change.outcomes
    )
    kind = _KINDS[change.kind]
    return Change(
        change.table, change.row, name(change.table, change.column), kind, change.timestamp, outcomes
    )


def frozen_run(run: FollowedRun, numbers: dict[RunKey, int], name: _Name) -> Run:
    """Return the run as a part of the result."""
    observer, table, row, column, _ = run.key
    written = run.ack.writes or ()
    return Run(
        number=numbers[run.key],
        observer=observer,
        table=table,
        row=row,
        column=name(table, column),
        start_timestamp=run.version.start_ts,
        commit_timestamp=run.version.commit_ts,
        revision=run.ack.revision,
        recorded=run.ack.writes is not None,
        written=run.ack.written,
        cells=tuple(
            WrittenCell(one.table, one.row, name(one.table, one.column), _KINDS[one.kind]) for one in written
        ),
        changes=tuple(frozen(change, numbers, name) for change in run.changes),
        unfollowed=run.unfollowed,
        changes_seen=run.seen,
    )
