"""Judges an attack by the checker; the ledger knows the table and the column of each name.

To the checker each incarnation of a table is a table of its own, and a column goes by its identity. So a
read that mixes two definitions, or is short, differs from what its snapshot has, and the checker says in
which cell. What it cannot know is judged here: an answer for a time at which there was no such table, and
names of columns that the definition of that time does not have.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from percolator_core import Database
from percolator_torture.checker.check import check
from percolator_torture.histories.final_state import FinalState, FinalVersion
from percolator_torture.histories.history import (
    CellKey,
    History,
    Read,
    ScanRead,
    TransactionRecord,
    Write,
)
from percolator_torture.histories.settling import end_locks
from percolator_torture.histories.survey import read_final
from tests.attack.ledger import Ledger, Shape
from tests.attack.views import UNWRITTEN, WHOLE_ROW

MOST = 12
"""Sentences that a verdict has, at most."""


class Judge:
    """Return the faults of records, by the ledger and the final store."""

    def __init__(self, ledger: Ledger, db: Database, witness: str) -> None:
        """``witness`` is a raw table that never changes, to which each transaction writes."""
        self._ledger = ledger
        self._db = db
        self._witness = witness
        self._wrong: list[tuple[str, str]] = []
        self._commits: dict[str, tuple[int, int]] = {}
        self._past = False

    def verdict(self, records: Iterable[TransactionRecord]) -> list[tuple[str, str]]:
        """Return the faults, each as the transaction that showed it and a sentence."""
        if not end_locks(self._db):
            self._wrong.append(("", "a minute after the last client some locks still stand"))
        names = sorted(definition.name for definition in self._db.tables())
        store = read_final(self._db, names)
        self._commits = {
            version.mark.transaction: (version.start_ts, version.commit_ts)
            for cell in store.cells
            if cell.table == self._witness
            for version in store.versions(cell)
            if version.mark is not None
        }
        translated = [self._translated(record) for record in records]
        report = check(History(translated), self._final(store, translated))
        begun = {record.id: record.start_ts or 0 for record in translated}
        for violation in report.violations:
            who = next(iter(violation.transactions), "")
            sentence = str(violation)
            for name in {cell.table.partition("#")[0] for cell in violation.cells} - {self._witness}:
                sentence += f" (changes of {name} around it: {self._ledger.story(name, begun.get(who, 0))})"
            self._wrong.append((who, sentence))
        return self._wrong[:MOST]

    # Inside.

    def _final(self, store: FinalState, records: Sequence[TransactionRecord]) -> FinalState:
        """The state of raw tables as it is; of all others what the history says.

        Of a table that is gone nothing is left to compare, and of a typed one the last reads of the attack,
        which are in the history, have told what it holds.
        """
        final = FinalState(safe_point=store.safe_point, leftovers=store.leftovers)
        real: set[str] = set()
        for table in {cell.table for cell in store.cells} | set(self._ledger.tables()):
            shape = self._ledger.now(table)
            if shape is not None and not shape.typed:
                real.add(shape.incarnation)
        for cell in store.cells:
            shape = self._ledger.now(cell.table)
            if shape is not None and not shape.typed:
                final.put(cell._replace(table=shape.incarnation), store.versions(cell))
        known: dict[CellKey, list[FinalVersion]] = defaultdict(list)
        for record in records:
            start_ts, commit_ts = self._times_of(record)
            for cell, write in record.writes if commit_ts else ():
                if cell.table not in real:
                    mark = record.mark(write) if write else None
                    known[cell].append(FinalVersion(commit_ts, start_ts, mark))
        for cell, versions in known.items():
            final.put(cell, versions)
        return final

    def _times_of(self, record: TransactionRecord) -> tuple[int, int]:
        """Start and commit timestamps, the latter 0 for what did not commit."""
        if record.outcome == "unknown":
            return self._commits.get(record.id, (0, 0))
        return record.start_ts or 0, record.commit_ts or 0

    def _translated(self, record: TransactionRecord) -> TransactionRecord:
        at = record.start_ts or 0
        # A snapshot of the past goes by the definition of today, as far as the data is still there.
        self._past = record.began == 0
        commit_ts = self._times_of(record)[1] or at
        # Reads of a table that did not exist are faults. The checker does not get them: it has no such table.
        scans = tuple(found for scan in record.scans if (found := self._scan(record.id, scan, at)))
        reads = tuple(
            Read(cell, read.seen)
            for read in record.reads
            if (cell := self._cell(record.id, read.cell, at, "read")) is not None
        )
        own_reads = tuple(
            read._replace(cell=cell)
            for read in record.own_reads
            if (cell := self._cell(record.id, read.cell, at, None)) is not None
        )
        committed = record.outcome == "ok"
        writes = self._writes(
            record.id, record.writes, commit_ts, "committed a write to" if committed else None
        )
        return dataclasses.replace(record, reads=reads, own_reads=own_reads, scans=scans, writes=writes)

    def _shape(self, table: str, at: int, columns: Iterable[str], *, exactly: bool = False) -> Shape | None:
        """The shape of a table at a timestamp; if there is, one with the columns, and ``exactly`` these."""
        shapes = [shape for shape in self._ledger.at(table, at) if shape is not None]
        if self._past:
            shapes += self._ledger.later(table, at)
        wanted = set(columns) - {WHOLE_ROW}
        having = [shape for shape in shapes if wanted <= set(shape.columns)]
        same = [shape for shape in having if exactly and wanted == set(shape.columns)]
        return next(iter([*same, *having, *shapes]), None)

    def _cell(self, who: str, cell: CellKey, at: int, did: str | None) -> CellKey | None:
        shape = self._shape(cell.table, at, [cell.column])
        if shape is None or cell.column not in shape.columns:
            if did is not None:
                self._tell_missing(who, cell.table, at, f"{did} {cell}", shape)
            return None
        return CellKey(shape.incarnation, cell.row, shape.columns[cell.column])

    def _writes(self, who: str, writes: Iterable[Write], at: int, did: str | None) -> tuple[Write, ...]:
        found: dict[CellKey, int] = {}
        removed: list[CellKey] = []
        for cell, write in writes:
            if cell.column == WHOLE_ROW:
                removed.append(cell)
                continue
            known = self._cell(who, cell, at, did)
            if known is not None:
                found[known] = write
        for table, row, _ in removed:
            # A client that removes a row may or may not know of a column that is being added or dropped.
            for shape in filter(None, self._ledger.at(table, at)):
                for identity in shape.columns.values():
                    found.setdefault(CellKey(shape.incarnation, row, identity), 0)
        return tuple(Write(cell, write) for cell, write in found.items())

    def _scan(self, who: str, scan: ScanRead, at: int) -> ScanRead | None:
        names = {read.cell.column for read in scan.seen} - set(UNWRITTEN)
        shape = self._shape(scan.table, at, scan.columns or names, exactly=scan.columns is not None)
        if shape is None:
            self._tell_missing(who, scan.table, at, f"read rows of {scan.table}", None)
            return None
        known = shape.columns
        if shape.typed and scan.columns is not None and set(scan.columns) != set(known):
            self._tell_missing(
                who, scan.table, at, f"was given the columns {sorted(scan.columns)} of {scan.table}", shape
            )
        columns: tuple[str, ...] | None = None
        if scan.columns is not None:
            columns = tuple(known[name] for name in scan.columns if name in known)
        elif shape.typed:
            columns = tuple(known.values())
        seen = tuple(
            Read(CellKey(shape.incarnation, cell.row, known[cell.column]), mark)
            for cell, mark in scan.seen
            if cell.column in known
        )
        if not names <= set(known):
            self._tell_missing(who, scan.table, at, f"saw cells of {sorted(names - set(known))}", shape)
        own = self._writes(who, scan.own, at, None)
        return ScanRead(shape.incarnation, scan.low, scan.high, columns, seen, own)

    def _tell_missing(self, who: str, table: str, at: int, did: str, shape: Shape | None) -> None:
        if any(one == who for one, _ in self._wrong):
            return
        there = "there was no such table" if shape is None else f"it was {shape}"
        story = self._ledger.story(table, at)
        self._wrong.append((who, f"{who} {did} as of {at}, when {there} (changes around it: {story})"))


def explained(wrong: Sequence[tuple[str, str]], steps: Mapping[str, str]) -> Iterator[str]:
    """The sentences, each with the step of its transaction in front."""
    for who, sentence in wrong:
        step = steps.get(who)
        yield f"{step}: {sentence}" if step else sentence
