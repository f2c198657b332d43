"""Reruns: after a change of an observer's code, make the cells that the observer has observed dirty again.

>>> from percolator_core.admin.rerun import rerun
>>> rerun(db, chain, "parse", ["revision<2"]).marked
12

An observed change has an acknowledgement (paper, section 2.4). So a rerun deletes the acknowledgements of a
batch in one transaction, and sets the dirty marks after the commit. An acknowledgement of a whole row is not
deleted: it gets the revision 0 and keeps the row's image, so that the next run gets the row as it was before.
If the marks came first, a worker could claim a mark, find the acknowledgement, and clear the mark. A run that
began before the deletion either conflicts with the deletion or does not clear the mark. So each cell gets a
run that begins after the deletion.

A flush moves only cells without a mark to the base, and drops their acknowledgements. So a cell of the base
counts as observed if it has no acknowledgement. To make the cell count as not observed, a rerun writes a
version that deletes the acknowledgement. This version stays in the store until the next run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from percolator_core.admin.row_filter import Asked, RowFilter, revision_filter, row_filter
from percolator_core.base.bases import above_base
from percolator_core.base.row_set import BaseRow
from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, SnapshotTooOld, TransactionConflict
from percolator_core.layout.acknowledgements import NEVER_RAN, Ack
from percolator_core.layout.keys import MARKER, acknowledgement, decode_column
from percolator_core.layout.records import DELETE, PUT, VERSION_HEADER, Version, Write
from percolator_core.notifications.activation import active
from percolator_core.observers import Chain, Observer
from percolator_core.scripts import calls
from percolator_core.transaction.scan import PAGE_BYTES
from percolator_core.transaction.transaction import Transaction

_RowVersions: TypeAlias = tuple[bytes, list[Version | None]]
"""A row key, and the versions of the columns that are read in this row."""

_BATCH: Final = 500
"""A batch has at most this many rows: its transaction is one request, for which other clients wait."""

_ROUNDS: Final = 100
"""A batch that conflicts with runs is attempted at most this many times."""
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.25
_LONGEST_SLEEP: Final = 0.25
"""Seconds between two calls of ``progress`` while the rate delays the next batch."""


@dataclass(slots=True)
class CellCounts:
    """Counts of one column, as in `RerunCounts`."""

    looked_at: int = 0
    chosen: int = 0
    marked: int = 0
    unknown: int = 0


@dataclass(slots=True)
class RerunCounts(CellCounts):
    """Counts of a rerun in total, and the same counts by ``table.column`` in ``columns``.

    ``looked_at`` counts the cells that the observer has observed or will observe. ``chosen`` counts those of
    them that meet all conditions; they are all dirty now, except after a dry run. ``marked`` counts the
    chosen cells that were not dirty before. ``unknown`` counts the chosen cells of the base, which does not
    have the revision that ran last.
    """

    columns: dict[str, CellCounts] = field(default_factory=dict)


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
) -> RerunCounts:
    """Make cells of an observer dirty again, so that workers run it again.

    For a strong observer these are the cells of its columns that have a version; deleted cells have one until
    garbage collection. For a weak observer these are the cells that it ran for, until garbage collection
    drops their acknowledgements. Memory does not grow with the table.

    After an error, call this again. Marked cells stay marked. If a rerun has deleted the acknowledgement of
    a cell, the cell meets every condition on its revision until the observer has run for it. So does a cell
    that has moved to the base, because the base does not keep acknowledgements.

    Args:
        db: the database with the tables.
        chain: the active chain.
        observer: the observer's name.
        where: conditions, all of which a cell must meet. A condition is a text, such as ``revision < 2``,
            ``row ^= 'doc-' and language = 'en'`` or ``page_rank > 0.5``, or a predicate, such as
            ``Document.page_rank > 0.5``.
        limit: the greatest number of cells to choose, 1 or more.
        rate: the greatest number of cells to choose per second, above 0.
        dry_run: only count.
        progress: called with the counts after each batch. If it raises, the rerun ends between two batches.

    Raises:
        ConfigurationError: the chain has no such observer, or another chain is active; the message says what
            to do.
        TypeError, ValueError: a condition, limit or rate is invalid.
        UnknownTable: an observed table does not exist.
        UnknownColumn: a condition names a notify-only column, or a column that a typed table does not have.
        BaseDamaged: a file of a base is missing or damaged.
        TransactionConflict, LockTimeout, CommitUndetermined, StoreUnavailable: call it again.
    """
    pace = _Pace(limit, rate, dry_run, progress)
    return _Rerun(db, _active(db, chain, observer), list(where), pace).run()


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
    """The rows of one tablet up to ``high``, and the columns to read in them."""

    handle: TableHandle
    tag: bytes
    high: bytes | None
    column: bytes
    acked: bytes
    filter: RowFilter
    counts: CellCounts

    @property
    def columns(self) -> list[bytes]:
        """The encoded columns to read: observed column, acknowledgement, columns of conditions."""
        return [self.column, self.acked, *self.filter.columns]


class _Taken(NamedTuple):
    """A batch: the number of examined cells, the rows of the chosen cells, and the next lower bound.

    ``unknown`` is the number of chosen cells of the base.
    """

    looked_at: int
    rows: list[bytes]
    resume: bytes
    unknown: int


@dataclass(frozen=True, slots=True)
class _Pace:
    """The limits of a rerun, as in the arguments of `rerun`."""

    limit: int | None
    rate: float | None
    dry_run: bool
    progress: Callable[[RerunCounts], object] | None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is 1 or more, not {self.limit}")
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"rate is a number of cells per second, above 0, not {self.rate}")


class _Rerun:
    """One rerun: tablet by tablet, a batch of rows at a time."""

    def __init__(self, db: Database, observer: Observer, where: Sequence[Asked], pace: _Pace) -> None:
        self._db = db
        self._store = db.store
        self._observer = observer
        # All conditions are checked before the first batch.
        self._meets_revision = revision_filter(where)
        self._filters = {
            table: row_filter(db.catalog.table(table), where)
            for table in dict.fromkeys(table for table, _ in observer.observe)
        }
        self._pace = pace
        self._most = _BATCH if pace.rate is None else max(1, min(_BATCH, int(pace.rate)))
        self._page = self._most
        self._counts = RerunCounts()
        self._started = time.monotonic()

    def run(self) -> RerunCounts:
        """Go through all tablets of all columns that the observer watches."""
        for table, column in self._observer.observe:
            for place, first in self._places(table, column):
                low = b"[" + first
                while low and not self._is_enough():
                    low = self._batch(place, low)
                    self._keep_to_rate()
        return self._counts

    def _places(self, table: str, column: str) -> Iterator[tuple[_Place, bytes]]:
        """Yield the places of a column, each with its first row key."""
        handle, found = self._db.catalog.table(table), self._filters[table]
        encoded = handle.encode(column)
        acked = acknowledgement(self._observer.name, encoded)
        counts = self._counts.columns[f"{table}.{column}"] = CellCounts()
        for tag, low, high in found.ranges:
            yield _Place(handle, tag, high, encoded, acked, found, counts), low

    def _is_enough(self) -> bool:
        return self._pace.limit is not None and self._counts.chosen >= self._pace.limit

    def _batch(self, place: _Place, low: bytes) -> bytes:
        """Choose and mark cells of the next rows. Return the next lower bound, empty at the end."""
        looked_at, rows, resume, unknown = self._unacknowledge_with_retries(place, low)
        # The marks are set after the commit, as the module's docstring explains. A crash between the two
        # leaves cells with neither acknowledgement nor mark, which the same rerun finds again.
        marked = self._mark(place, rows) if rows and not self._pace.dry_run else 0
        for counts in (place.counts, self._counts):
            counts.looked_at += looked_at
            counts.chosen += len(rows)
            counts.marked += marked
            counts.unknown += unknown
        return resume

    def _unacknowledge_with_retries(self, place: _Place, low: bytes) -> _Taken:
        """Repeat a batch after conflicts with runs, each time with fewer rows, until it commits."""
        pause = _FIRST_PAUSE
        for remaining in reversed(range(_ROUNDS)):
            try:
                taken = self._unacknowledge(place, low)
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

    def _unacknowledge(self, place: _Place, low: bytes) -> _Taken:
        """Delete the acknowledgements of a batch.

        The cells of one tablet commit in one request, so no cell is still locked when this returns.
        """
        with self._db.transaction() as t:
            found, resume = self._read(t, place, low)
            cells = [(row, versions) for row, versions in found if self._is_known(versions)]
            chosen = [(row, versions) for row, versions in cells if self._is_chosen(place, row, versions)]
            if self._pace.limit is not None:
                chosen = chosen[: self._pace.limit - self._counts.chosen]
            if not self._pace.dry_run:
                for row, (_, acked, *_) in chosen:
                    # This is written even if there is no acknowledgement. So a first run that is under way
                    # conflicts, and is repeated.
                    t.write(place.handle.name, row, place.acked, _unacknowledged(place, acked))
        unknown = sum(_is_unknown(versions) for _, versions in chosen)
        return _Taken(len(cells), [row for row, _ in chosen], resume, unknown)

    def _read(self, t: Transaction, place: _Place, low: bytes) -> tuple[list[_RowVersions], bytes]:
        """Return one page of rows with the versions of ``place.columns``, and the next lower bound."""
        keys, resume = self._keys(t, place, low)
        fields = [ColumnFields(decode_column(column), column) for column in place.columns]
        found = t.versions_of(place.handle, list(keys), fields)
        if place.column == MARKER and not place.handle.is_typed:
            # A row of a raw table has no marker.
            found = [[_version(base), *rest] for base, (_, *rest) in zip(keys.values(), found, strict=True)]
        return list(zip(keys, found, strict=True)), resume

    def _keys(self, t: Transaction, place: _Place, low: bytes) -> tuple[dict[bytes, BaseRow | None], bytes]:
        """Return the row keys of one page, each with the row of the base, and the next lower bound."""
        columns = () if place.column == MARKER else (place.column, place.acked)
        bounds = (low, b"+" if place.high is None else b"(" + place.high, self._page, PAGE_BYTES)
        step = calls.scan(place.tag, t.start_timestamp, *bounds, "forward", VERSION_HEADER, columns)
        scanned = self._store.run(step)
        if scanned is None:
            raise SnapshotTooOld("garbage collection has passed a snapshot of this rerun: repeat the rerun")
        resume, base, rows, _ = scanned
        if not base:
            return dict.fromkeys(rows), resume
        first = low[1:] + b"\0" if low[:1] == b"(" else low[1:]
        end = resume[1:] + b"\0" if resume else place.high
        cold = self._db.client.bases.rows(place.handle, place.tag, base, first, end, [], reverse=False)
        keys: dict[bytes, BaseRow | None] = {}
        for key, _, below in above_base([(row, row) for row in rows], cold):
            if len(keys) == self._page:
                return keys, b"[" + key
            keys[key] = below
        return keys, resume

    def _is_known(self, versions: Sequence[Version | None]) -> bool:
        """Return True if the observer has observed the cell, or will observe it."""
        observed, acked = versions[:2]
        if self._observer.view is not None and acked is not None:
            return True  # the row is gone, and the view may still have what it gave
        return (acked if self._observer.mode == "weak" else observed) is not None

    def _is_chosen(self, place: _Place, row: bytes, versions: Sequence[Version | None]) -> bool:
        acked = versions[1]
        if not place.filter.holds(row, [None if one is None else one.value for one in versions[2:]]):
            return False
        if _is_unknown(versions):
            return True
        if acked is None:
            return self._meets_revision(NEVER_RAN)
        revision = NEVER_RAN if acked.value is None else Ack.unpack(acked.value).revision
        # An earlier rerun may have failed before it marked the cell.
        return revision == NEVER_RAN or self._meets_revision(revision)

    def _mark(self, place: _Place, rows: Sequence[bytes]) -> int:
        name, mode = self._observer.name, self._observer.mode
        marked = self._store.run(calls.mark(place.tag, name, mode, place.column, rows))
        if marked is None:
            raise _inactive(self._db, name)
        return marked

    def _keep_to_rate(self) -> None:
        """Report progress, and wait if more cells were chosen than the rate allows."""
        self._report()
        if self._pace.rate is None or self._pace.dry_run:
            return
        due = self._started + self._counts.chosen / self._pace.rate
        while (left := due - time.monotonic()) > 0:
            self._store.sleep(min(left, _LONGEST_SLEEP))
            self._report()

    def _report(self) -> None:
        if self._pace.progress is not None:
            self._pace.progress(self._counts)


def _unacknowledged(place: _Place, acked: Version | None) -> Write:
    """Return the write that makes a cell count as not observed. That of a row keeps the row's image."""
    if place.column != MARKER:
        return DELETE, b""
    done = Ack() if acked is None or acked.value is None else Ack.unpack(acked.value)
    return PUT, Ack(NEVER_RAN, image=done.image).pack()


def _version(base: BaseRow | None) -> Version:
    """Return a version that stands for a row of a raw table."""
    return Version(0, 0, b"") if base is None else Version(base.time, base.time, b"")


def _is_unknown(versions: Sequence[Version | None]) -> bool:
    """Return True if the observed cell is in the base, and has no acknowledgement."""
    observed, acked = versions[:2]
    return acked is None and observed is not None and observed.is_of_base
