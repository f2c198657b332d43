"""Reruns: cells that an observer has dealt with made dirty again, all or some, after a change of its code.

>>> from percolator_core.admin.rerun import rerun
>>> rerun(db, chain, "parse", ["revision<2"]).marked
12

Whether a change was dealt with is what its acknowledgement says (paper, section 2.4). So a rerun deletes
acknowledgements, a batch in one transaction, and sets the dirty marks of the batch once that has committed:
the other way round a worker could find a mark, see the change acknowledged, and clear the mark. A run that
began before loses against the deletion, or leaves the mark alone; so each cell is followed by a run that
began later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from percolator_core.admin.condition import Condition
from percolator_core.admin.row_filter import Asked, Choice, choice, of_runs
from percolator_core.errors import ConfigurationError, SnapshotTooOld, TransactionConflict
from percolator_core.layout.acknowledgements import Ack
from percolator_core.layout.keys import acknowledgement
from percolator_core.layout.records import DELETE, Version, Write, unpack_version
from percolator_core.notifications.activation import active
from percolator_core.scripts import calls
from percolator_core.transaction.scan import PAGE_BYTES

if TYPE_CHECKING:
    from percolator_core.catalog.table_handle import TableHandle
    from percolator_core.database import Database
    from percolator_core.observers import Chain, Observer
    from percolator_core.transaction.transaction import Transaction

_NEVER_RAN: Final = 0
"""The revision of a cell without an acknowledgement."""

_BATCH: Final = 500
"""Rows of a batch at most: its transaction is one call, and others wait meanwhile."""

_ROUNDS: Final = 100
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.25
_LONGEST_SLEEP: Final = 0.25
"""Seconds; ``progress`` is called that often while marks are held back."""


@dataclass(slots=True)
class CellCounts:
    """Cells of one column.

    ``looked_at``: those that the observer has dealt with, or has yet to. ``chosen``: those that meet all
    conditions. ``marked``: those of them that were not dirty already.
    """

    looked_at: int = 0
    chosen: int = 0
    marked: int = 0


@dataclass(slots=True)
class RerunCounts:
    """What a rerun did, by ``table.column`` and in all."""

    columns: dict[str, CellCounts] = field(default_factory=dict)

    @property
    def looked_at(self) -> int:
        """Cells that the observer has dealt with, or has yet to."""
        return sum(one.looked_at for one in self.columns.values())

    @property
    def chosen(self) -> int:
        """Those that meet all conditions: each is dirty now, unless it was a dry run."""
        return sum(one.chosen for one in self.columns.values())

    @property
    def marked(self) -> int:
        """Those of the chosen that were not dirty already."""
        return sum(one.marked for one in self.columns.values())


def rerun(
    db: Database,
    chain: Chain,
    observer: str,
    where: Iterable[Asked] = (),
    *,
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Callable[[RerunCounts], object] | None = None,
    to_bytes: Callable[[str], bytes] = str.encode,
) -> RerunCounts:
    """Make cells of an observer dirty again, so that workers redo them, and what follows from them.

    These are, for a strong observer, the cells of its columns that were ever written, deleted ones included,
    as long as the deletion is remembered; for a weak one, the cells that it ran for and whose acknowledgement
    garbage collection has not dropped. Memory does not grow with the table.

    When it breaks off, call it again: what was marked stays marked, and a cell whose acknowledgement is gone
    meets every condition on its revision until it has run.

    Args:
        db: where the tables are.
        chain: the chain that is active there.
        observer: the observer's name.
        where: conditions that a cell must meet, all of them. On the revision, and on rows of raw tables: as
            text, ``language=en``, or as `Condition`. On rows of typed tables: as a predicate,
            ``Document.page_rank > 0.5``, or as text, ``page_rank > 0.5 and url ^= 'https:'``.
        limit: choose so many cells at most, 1 or more.
        rate: choose so many cells a second at most, above 0.
        dry_run: only count.
        progress: called with the counts after each batch. What it raises ends the rerun between two batches.
        to_bytes: makes the values in texts for raw tables bytes; their UTF-8 unless told otherwise.

    Raises:
        ConfigurationError: the chain has no such observer, or another chain is active; the message says how
            to mend it.
        TypeError, ValueError: a condition, limit or rate that cannot be.
        UnknownTable: an observed table is not there.
        UnknownColumn: a condition names a notify-only column, or one that a typed table does not have.
        TransactionConflict, LockTimeout, CommitUndetermined, StoreUnavailable: call it again.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is 1 or more, not {limit}")
    if rate is not None and not rate > 0:
        raise ValueError(f"rate is a number of cells a second above 0, not {rate}")
    asked = list(where)
    runs = of_runs(asked)
    observed = _active(db, chain, observer)
    # All conditions are looked at before anything is done.
    choices = {
        table: choice(db.catalog.table(table), asked, to_bytes)
        for table in dict.fromkeys(table for table, _ in observed.observe)
    }
    work = _Rerun(db, observed, choices, runs, limit=limit, rate=rate, dry_run=dry_run, tell=progress)
    return work.run()


def _active(db: Database, chain: Chain, name: str) -> Observer:
    observer = chain.observers.get(name)
    if observer is None:
        raise ConfigurationError(
            f"{chain.name} has no observer {name!r}: name one of {', '.join(chain.observers)}"
        )
    if not active(db.client).allows(chain.digest):
        raise _inactive(db, name)
    return observer


def _inactive(db: Database, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} is not active in the namespace {db.namespace!r} as the chain declares it: "
        "start a worker with the chain, or drain it, and then rerun"
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows of one tablet up to ``high``, and what is read of them."""

    handle: TableHandle
    tag: bytes
    high: bytes | None
    column: bytes
    acked: bytes
    choice: Choice
    counts: CellCounts

    @property
    def columns(self) -> list[bytes]:
        """All that is read, encoded: observed column, acknowledgement, columns of conditions."""
        return [self.column, self.acked, *self.choice.columns]


class _Taken(NamedTuple):
    """A batch: how many cells were looked at, the rows of those chosen, and the bound to go on from."""

    looked_at: int
    rows: list[bytes]
    resume: bytes


class _Rerun:
    """One rerun: tablet by tablet, a batch of rows at a time."""

    def __init__(
        self,
        db: Database,
        observer: Observer,
        choices: Mapping[str, Choice],
        of_the_run: Sequence[Condition],
        *,
        limit: int | None,
        rate: float | None,
        dry_run: bool,
        tell: Callable[[RerunCounts], object] | None,
    ) -> None:
        self._db = db
        self._store = db.store
        self._observer = observer
        self._choices = choices
        self._of_the_run = of_the_run
        self._limit = limit
        self._rate = rate
        self._dry_run = dry_run
        self._tell = tell
        self._most = _BATCH if rate is None else max(1, min(_BATCH, int(rate)))
        self._page = self._most
        self._counts = RerunCounts()
        self._started = time.monotonic()

    def run(self) -> RerunCounts:
        """All tablets of all columns that the observer watches."""
        for table, column in self._observer.observe:
            for place, first in self._places(table, column):
                low = b"[" + first
                while low and not self._is_enough():
                    low = self._batch(place, low)
                    self._hold_back()
        return self._counts

    def _places(self, table: str, column: str) -> Iterator[tuple[_Place, bytes]]:
        """Where to look for cells, each with the row key to begin at."""
        handle, found = self._db.catalog.table(table), self._choices[table]
        encoded = handle.encode(column)
        acked = acknowledgement(self._observer.name, encoded)
        counts = self._counts.columns[f"{table}.{column}"] = CellCounts()
        for tag, low, high in found.ranges:
            yield _Place(handle, tag, high, encoded, acked, found, counts), low

    def _is_enough(self) -> bool:
        return self._limit is not None and self._counts.chosen >= self._limit

    def _batch(self, place: _Place, low: bytes) -> bytes:
        """Choose among the next rows, and mark; returns the bound to go on from, nothing at the end."""
        looked_at, rows, resume = self._take_back_at_last(place, low)
        # Only now, see above. A crash here leaves cells that have neither an acknowledgement nor a mark; the
        # same rerun finds them again.
        marked = self._mark(place, rows) if rows and not self._dry_run else 0
        place.counts.looked_at += looked_at
        place.counts.chosen += len(rows)
        place.counts.marked += marked
        return resume

    def _take_back_at_last(self, place: _Place, low: bytes) -> _Taken:
        """A batch that meets runs under way becomes smaller: of a single row, one in a few gets through."""
        pause = _FIRST_PAUSE
        for remaining in reversed(range(_ROUNDS)):
            try:
                taken = self._take_back(place, low)
            except (TransactionConflict, SnapshotTooOld):
                if not remaining:
                    raise
            else:
                self._page = min(self._most, self._page * 2)
                return taken
            self._page = max(1, self._page // 2)
            self._store.sleep(random.uniform(0, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)
        raise AssertionError("unreachable")

    def _take_back(self, place: _Place, low: bytes) -> _Taken:
        """Delete the acknowledgements of a batch.

        One tablet's cells at a time commit in one call, so none is still locked when this returns.
        """
        with self._db.transaction() as t:
            found, resume = self._read(t, place, low)
            cells = [(row, versions) for row, versions in found if self._is_known(versions)]
            rows = [row for row, versions in cells if self._is_chosen(place, row, versions)]
            if self._limit is not None:
                rows = rows[: self._limit - self._counts.chosen]
            if not self._dry_run:
                for row in rows:
                    # One that is not there is deleted too: a first run under way has to begin again.
                    t.write(place.handle.name, row, place.acked, Write(DELETE, b""))
        return _Taken(len(cells), rows, resume)

    def _read(
        self, t: Transaction, place: _Place, low: bytes
    ) -> tuple[list[tuple[bytes, list[Version | None]]], bytes]:
        high = b"+" if place.high is None else b"(" + place.high
        bounds = (t.start_timestamp, low, high, self._page, PAGE_BYTES)
        scanned = self._store.run(calls.scan(place.tag, *bounds, "forward", 0, place.columns))
        if scanned is None:
            raise SnapshotTooOld("garbage collection has passed a snapshot of this rerun: call it again")
        found = [
            (row, self._versions(t, place, row, cells[::2]))
            for row, cells in zip(scanned.rows, scanned.cells, strict=True)
        ]
        return found, scanned.resume

    def _versions(
        self, t: Transaction, place: _Place, row: bytes, cells: Sequence[Any]
    ) -> list[Version | None]:
        """The versions of a row's cells as a scan has them: the newest one, or as read.lua replies it."""
        versions: list[Version | None] = []
        for cell in cells:
            if type(cell) is not list:
                versions.append(None if cell is None else unpack_version(cell))
            elif len(cell) == 2:
                return t.versions(place.handle.name, row, place.columns)  # waits for the lock, or resolves it
            else:
                versions.append(unpack_version(cell[0]) if cell else None)
        return versions

    def _is_known(self, versions: Sequence[Version | None]) -> bool:
        """Whether the observer has dealt with the cell, or has yet to."""
        observed, acked = versions[:2]
        return (acked if self._observer.mode == "weak" else observed) is not None

    def _is_chosen(self, place: _Place, row: bytes, versions: Sequence[Version | None]) -> bool:
        acked = versions[1]
        if not place.choice.holds(row, [None if one is None else one.value for one in versions[2:]]):
            return False
        if acked is not None and acked.value is None:
            return True  # a rerun was asked for, and may have broken off before it marked the cell
        revision = _NEVER_RAN if acked is None or acked.value is None else Ack.unpack(acked.value).revision
        return all(one.holds(revision) for one in self._of_the_run)

    def _mark(self, place: _Place, rows: Sequence[bytes]) -> int:
        name, mode = self._observer.name, self._observer.mode
        marked = self._store.run(calls.mark(place.tag, name, mode, place.column, rows))
        if marked is None:
            raise _inactive(self._db, name)
        return marked

    def _hold_back(self) -> None:
        """Tell how it goes, and wait where the marks come faster than wanted."""
        self._say()
        if self._rate is None or self._dry_run:
            return
        due = self._started + self._counts.chosen / self._rate
        while (left := due - time.monotonic()) > 0:
            self._store.sleep(min(left, _LONGEST_SLEEP))
            self._say()

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(self._counts)


__all__ = ["CellCounts", "Condition", "RerunCounts", "rerun"]
