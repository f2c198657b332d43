"""Ways to spoil a correct history: each takes one apart and breaks one thing in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from percolator_torture.checker.report import Anomaly
from percolator_torture.histories.final_state import FinalState, FinalVersion, Leftover
from percolator_torture.histories.history import CellKey, History, OwnRead, Read, TransactionRecord
from percolator_torture.histories.marks import UNMARKED, Mark

FAR = 10**12
"""A timestamp far above those of any simulated history."""


@dataclass
class Parts:
    """A history and its final state, taken apart."""

    records: list[TransactionRecord]
    versions: dict[CellKey, list[FinalVersion]]
    leftovers: list[Leftover] = field(default_factory=list)

    @classmethod
    def of(cls, history: History, final: FinalState) -> Parts:
        return cls(list(history), {cell: final.versions(cell) for cell in final.cells})

    def whole(self) -> tuple[History, FinalState]:
        return History(self.records), FinalState(dict(self.versions), leftovers=self.leftovers)

    def choose(self, rng: random.Random, wanted: Callable[[TransactionRecord], object]) -> int:
        return rng.choice([at for at, record in enumerate(self.records) if wanted(record)])

    def change(self, at: int, **changes: object) -> None:
        self.records[at] = replace(self.records[at], **changes)  # type: ignore[arg-type]

    def add_read(self, at: int, read: Read) -> None:
        self.change(at, reads=(*self.records[at].reads, read))

    def reader(self, rng: random.Random, but: str = "") -> int:
        return self.choose(rng, lambda record: record.reads and record.id != but)

    def puts(self, outcome: str, write: int | None = None) -> list[tuple[TransactionRecord, CellKey]]:
        return [
            (record, cell)
            for record in self.records
            if record.outcome == outcome
            for cell, number in record.writes
            if number and write in {None, number}
        ]

    def restamp(self, record: TransactionRecord, start_ts: int, commit_ts: int) -> None:
        """Move all its versions, so that only the history's order is wrong."""
        for cell, _ in record.writes:
            self.versions[cell] = [
                version._replace(start_ts=start_ts, commit_ts=commit_ts)
                if version.start_ts == record.start_ts
                else version
                for version in self.versions[cell]
            ]


Corruption = Callable[[Parts, random.Random], None]


def _reads(parts: Parts) -> Iterator[tuple[int, Read, list[FinalVersion], list[FinalVersion]]]:
    """Every read with the versions below and above its snapshot."""
    for at, record in enumerate(parts.records):
        for read in record.reads:
            versions = parts.versions.get(read.cell, [])
            start_ts = record.start_ts or 0
            yield (
                at,
                read,
                [version for version in versions if version.commit_ts < start_ts],
                [version for version in versions if version.commit_ts > start_ts],
            )


def stale_read(parts: Parts, rng: random.Random) -> None:
    at, read, older = rng.choice(
        [
            (at, read, version)
            for at, read, below, _ in _reads(parts)
            for version in below[:-1]
            if version.mark != read.seen and read.seen is not None
        ]
    )
    parts.add_read(at, Read(read.cell, older.mark))


def future_read(parts: Parts, rng: random.Random) -> None:
    at, read, newer = rng.choice(
        [(at, read, new) for at, read, _, above in _reads(parts) for new in above if new.mark is not None]
    )
    parts.add_read(at, Read(read.cell, newer.mark))


def aborted_read(parts: Parts, rng: random.Random) -> None:
    failed, cell = rng.choice(parts.puts("fail"))
    write = dict(failed.writes)[cell]
    parts.add_read(parts.reader(rng, but=failed.id), Read(cell, failed.mark(write)))


def intermediate_read(parts: Parts, rng: random.Random) -> None:
    writer, cell = rng.choice(parts.puts("ok", 2))
    parts.add_read(parts.reader(rng), Read(cell, writer.mark(1)))


def intermediate_version(parts: Parts, rng: random.Random) -> None:
    writer, cell = rng.choice(parts.puts("ok", 2))
    parts.versions[cell] = [
        version._replace(mark=writer.mark(1)) if version.mark == writer.mark(2) else version
        for version in parts.versions[cell]
    ]


def ghost_read(parts: Parts, rng: random.Random) -> None:
    at = parts.reader(rng)
    ghost = rng.choice([UNMARKED, Mark("ghost", 1), Mark("p0", 10**6)])
    parts.add_read(at, Read(parts.records[at].reads[0].cell, ghost))


def ghost_version(parts: Parts, rng: random.Random) -> None:
    cell = rng.choice(list(parts.versions))
    ghost = rng.choice([None, UNMARKED, Mark("ghost", 1)])
    parts.versions[cell].append(FinalVersion(FAR + 1, FAR, ghost))


def own_write_missed(parts: Parts, rng: random.Random) -> None:
    at = parts.choose(rng, lambda record: record.own_reads)
    cell, wrote, seen = parts.records[at].own_reads[0]
    other = Mark("p0", 1) if seen is None else None
    parts.change(at, own_reads=(OwnRead(cell, wrote, other), *parts.records[at].own_reads[1:]))


def row_not_scanned(parts: Parts, rng: random.Random) -> None:
    at = parts.choose(rng, lambda record: any(not scan.own and scan.seen for scan in record.scans))
    (scan,) = parts.records[at].scans
    parts.change(at, scans=(scan._replace(seen=scan.seen[1:]),))


def phantom_row(parts: Parts, rng: random.Random) -> None:
    """A cell that is absent in a scan's snapshot and present later is seen at once."""
    found = []
    for at, record in enumerate(parts.records):
        for scan in record.scans:
            touched = {read.cell for read in scan.seen} | {write.cell for write in scan.own}
            for cell, versions in parts.versions.items():
                if cell in touched or scan.high is None or not scan.low <= cell.row < scan.high:
                    continue
                late = [v for v in versions if v.mark is not None and v.commit_ts > (record.start_ts or 0)]
                found += [(at, Read(cell, version.mark)) for version in late]
    at, read = rng.choice(found)
    (scan,) = parts.records[at].scans
    parts.change(at, scans=(scan._replace(seen=(*scan.seen, read)),))


def overlap(parts: Parts, rng: random.Random) -> None:
    cell = rng.choice([cell for cell, versions in parts.versions.items() if len(versions) > 1])
    place = rng.randrange(1, len(parts.versions[cell]))
    before, version = parts.versions[cell][place - 1 : place + 1]
    for at, record in enumerate(parts.records):
        if record.start_ts == version.start_ts:
            parts.change(at, start_ts=before.commit_ts)
            parts.restamp(record, before.commit_ts, version.commit_ts)
            return
    # An unknown one without a start: its start is what the store says.
    changed = version._replace(start_ts=before.commit_ts)
    parts.versions[cell][place] = changed


def lost_write(parts: Parts, rng: random.Random) -> None:
    writer, cell = rng.choice(parts.puts("ok"))
    parts.versions[cell] = [v for v in parts.versions[cell] if v.start_ts != writer.start_ts]


def partial_commit(parts: Parts, rng: random.Random) -> None:
    marks = {v.mark for versions in parts.versions.values() for v in versions}
    committed = [
        (record, cell)
        for record, cell in parts.puts("unknown")
        if record.mark(dict(record.writes)[cell]) in marks
    ]
    whole = [(record, cell) for record, cell in committed if sum(r is record for r, _ in committed) > 1]
    writer, cell = rng.choice(whole)
    parts.versions[cell] = [
        v for v in parts.versions[cell] if v.mark is None or v.mark.transaction != writer.id
    ]


def unknown_vanishes(parts: Parts, rng: random.Random) -> None:
    """Every version goes of an unknown transaction that somebody has read."""
    unknown = {record.id for record in parts.records if record.outcome == "unknown"}
    read = {
        seen.transaction
        for record in parts.records
        for _, seen in record.reads
        if seen is not None and seen.transaction in unknown
    }
    gone = rng.choice(sorted(read))
    starts = {
        v.start_ts
        for those in parts.versions.values()
        for v in those
        if v.mark and v.mark.transaction == gone
    }
    for cell, versions in parts.versions.items():
        parts.versions[cell] = [v for v in versions if v.start_ts not in starts]


def failed_write_present(parts: Parts, rng: random.Random) -> None:
    failed, cell = rng.choice(parts.puts("fail"))
    version = FinalVersion(FAR, failed.start_ts or FAR - 1, failed.mark(dict(failed.writes)[cell]))
    parts.versions.setdefault(cell, []).append(version)


def moved_version(parts: Parts, rng: random.Random) -> None:
    writer, cell = rng.choice(parts.puts("ok"))
    parts.versions[cell] = [
        v._replace(commit_ts=v.commit_ts + FAR) if v.start_ts == writer.start_ts else v
        for v in parts.versions[cell]
    ]


def version_twice(parts: Parts, rng: random.Random) -> None:
    cell = rng.choice(list(parts.versions))
    parts.versions[cell].append(rng.choice(parts.versions[cell]))


def repeated_timestamp(parts: Parts, rng: random.Random) -> None:
    one = parts.choose(rng, lambda record: record.start_ts and not record.writes)
    other = parts.choose(rng, lambda record: record.commit_ts)
    parts.change(one, start_ts=parts.records[other].commit_ts)


def commit_below_start(parts: Parts, rng: random.Random) -> None:
    at = parts.choose(rng, lambda record: record.commit_ts)
    record = parts.records[at]
    assert record.start_ts
    parts.change(at, commit_ts=record.start_ts - 1)
    parts.restamp(record, record.start_ts, record.start_ts - 1)


def _out_of_order(parts: Parts, rng: random.Random, *, blind: bool) -> None:
    pairs = []
    for at, record in enumerate(parts.records):
        stamp = record.commit_ts if record.blind else record.start_ts
        if record.outcome == "ok" and record.blind is blind and stamp:
            pairs += [
                (at, earlier)
                for earlier, other in enumerate(parts.records)
                if other.commit_ts and other.commit_ts > stamp
            ]
    later, earlier = rng.choice(pairs)
    parts.change(earlier, began=-2, returned=-1)
    assert parts.records[later].began >= 0


def real_time(parts: Parts, rng: random.Random) -> None:
    _out_of_order(parts, rng, blind=False)


def real_time_blind(parts: Parts, rng: random.Random) -> None:
    _out_of_order(parts, rng, blind=True)


def leftover(kind: str) -> Corruption:
    def leave(parts: Parts, rng: random.Random) -> None:
        parts.leftovers.append(Leftover(kind, "t", b"row", "v", "something"))  # type: ignore[arg-type]

    leave.__name__ = f"leftover_{kind}"
    return leave


ALONE: list[tuple[Corruption, Anomaly]] = [
    (stale_read, Anomaly.STALE_READ),
    (future_read, Anomaly.FUTURE_READ),
    (aborted_read, Anomaly.ABORTED_READ),
    (intermediate_read, Anomaly.INTERMEDIATE),
    (intermediate_version, Anomaly.INTERMEDIATE),
    (ghost_read, Anomaly.NOWHERE),
    (ghost_version, Anomaly.NOWHERE),
    (own_write_missed, Anomaly.OWN_WRITE),
    (row_not_scanned, Anomaly.PHANTOM),
    (phantom_row, Anomaly.PHANTOM),
    (lost_write, Anomaly.MISSING),
    (partial_commit, Anomaly.PARTIAL),
    (failed_write_present, Anomaly.PRESENT),
    (moved_version, Anomaly.TIMESTAMPS_DIFFER),
    (version_twice, Anomaly.REPEATED_VERSION),
    (leftover("lock"), Anomaly.LOCK),
    (leftover("orphan"), Anomaly.ORPHAN),
    (leftover("notification"), Anomaly.NOTIFICATION),
]
"""Corruptions that break one promise only."""

WITH_OTHERS: list[tuple[Corruption, Anomaly]] = [
    (overlap, Anomaly.OVERLAP),
    (unknown_vanishes, Anomaly.MISSING),
    (repeated_timestamp, Anomaly.REPEATED_TIMESTAMP),
    (commit_below_start, Anomaly.COMMIT_BELOW_START),
    (real_time, Anomaly.REAL_TIME),
    (real_time_blind, Anomaly.REAL_TIME),
]
"""Corruptions that may break other promises on the way."""
