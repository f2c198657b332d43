"""Small histories that are wrong in one way each, beside siblings that are right.

A transaction is called T1, T2, …; ``T0`` has set x and y before. Unless said otherwise the real times follow
the timestamps, so that nothing is out of order in real time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from percolator_torture.checker.report import Anomaly
from percolator_torture.histories.final_state import FinalState, FinalVersion, Leftover
from percolator_torture.histories.history import (
    CellKey,
    History,
    Outcome,
    OwnRead,
    Read,
    ScanRead,
    TransactionRecord,
    Write,
)
from percolator_torture.histories.marks import UNMARKED, Mark

X, Y, Z = (CellKey("t", name, "v") for name in (b"x", b"y", b"z"))
Example = tuple[History, FinalState]
Seen = Mapping[CellKey, str | None]


def mark(name: str | None) -> Mark | None:
    """``T1`` is the first value of T1 for a cell, ``T1#2`` its second; ``?`` a value without a mark."""
    if name is None:
        return None
    if name == "?":
        return UNMARKED
    process, _, write = name.partition("#")
    return Mark(process, 1, int(write or 1))


def reads(seen: Seen) -> tuple[Read, ...]:
    return tuple(Read(cell, mark(name)) for cell, name in seen.items())


def txn(
    name: str,
    start: int | None,
    commit: int | None = None,
    *,
    r: Seen | Iterable[Read] = (),
    w: Iterable[CellKey | Write] = (),
    own: Iterable[OwnRead] = (),
    scans: Iterable[ScanRead] = (),
    outcome: Outcome = "ok",
    began: int | None = None,
    returned: int | None = None,
    blind: bool = False,
) -> TransactionRecord:
    over = commit or start or 0
    if outcome != "unknown" or returned is not None:
        returned = 10 * over + 1 if returned is None else returned
    return TransactionRecord(
        name,
        1,
        10 * (start or 0) if began is None else began,
        returned,
        start,
        commit if outcome == "ok" else None,
        outcome,
        reads(r) if isinstance(r, Mapping) else tuple(r),
        tuple(own),
        tuple(scans),
        tuple(write if isinstance(write, Write) else Write(write) for write in w),
        blind,
    )


T0 = txn("T0", 1, 2, w=[X, Y])


def example(
    *records: TransactionRecord,
    committed: dict[str, tuple[int, int]] | None = None,
    without: Iterable[tuple[str, CellKey]] = (),
    extra: dict[CellKey, list[tuple[int, int, str | None]]] | None = None,
    leftovers: Iterable[Leftover] = (),
    safe_point: int = 0,
) -> Example:
    """T0 and the records, with the state that the ok ones leave.

    ``committed`` adds the versions of others, with their start and commit timestamps; ``without`` takes
    versions away; ``extra`` are versions by cell: commit, start, mark.
    """
    everybody = [T0, *records]
    versions: dict[CellKey, list[FinalVersion]] = {}
    for record in everybody:
        times = (committed or {}).get(record.process)
        if times is None and record.outcome == "ok" and record.start_ts and record.commit_ts:
            times = record.start_ts, record.commit_ts
        for cell, write in record.writes:
            if times is not None and (record.process, cell) not in set(without):
                put = record.mark(write) if write else None
                versions.setdefault(cell, []).append(FinalVersion(times[1], times[0], put))
    for cell, those in (extra or {}).items():
        versions.setdefault(cell, []).extend(
            FinalVersion(commit, start, mark(name)) for commit, start, name in those
        )
    return History(everybody), FinalState(dict(versions), safe_point=safe_point, leftovers=leftovers)


@dataclass(frozen=True)
class Case:
    name: str
    anomaly: Anomaly
    bad: Example
    good: Example


def scan(
    seen: Seen,
    own: Iterable[Write] = (),
    low: bytes = b"",
    high: bytes | None = None,
    columns: tuple[str, ...] | None = None,
) -> ScanRead:
    return ScanRead("t", low, high, columns, reads(seen), tuple(own))


def _late(began: int) -> list[TransactionRecord]:
    """T1 commits at 6 and returns at 100; T2, begun at some time, reads what was there before."""
    return [txn("T1", 3, 6, w=[X], returned=100), txn("T2", 5, r={X: "T0"}, began=began, returned=200)]


SOME_LOCK = Leftover("lock", "t", b"x", "v", "a lock")

CASES = [
    Case(
        "G0 dirty write",
        Anomaly.OVERLAP,
        example(txn("T1", 3, 5, w=[X, Y]), txn("T2", 4, 6, w=[X, Y])),
        example(txn("T1", 3, 5, w=[X, Y]), txn("T2", 4, 6, w=[X, Y], outcome="fail")),
    ),
    Case(
        "G1a aborted read",
        Anomaly.ABORTED_READ,
        example(txn("T1", 3, w=[X], outcome="fail"), txn("T2", 4, r={X: "T1"})),
        example(txn("T1", 3, w=[X], outcome="fail"), txn("T2", 4, r={X: "T0"})),
    ),
    Case(
        "G1b intermediate read",
        Anomaly.INTERMEDIATE,
        example(txn("T1", 3, 4, w=[Write(X, 2)]), txn("T2", 5, r={X: "T1#1"})),
        example(txn("T1", 3, 4, w=[Write(X, 2)]), txn("T2", 5, r={X: "T1#2"})),
    ),
    Case(
        "G1b, a value that its transaction deleted again",
        Anomaly.INTERMEDIATE,
        example(txn("T1", 3, 4, w=[Write(X, 0)]), txn("T2", 5, r={X: "T1"})),
        example(txn("T1", 3, 4, w=[Write(X, 0)]), txn("T2", 5, r={X: None})),
    ),
    Case(
        "intermediate version stored",
        Anomaly.INTERMEDIATE,
        example(txn("T1", 3, 4, w=[Write(X, 2)]), without=[("T1", X)], extra={X: [(4, 3, "T1#1")]}),
        example(txn("T1", 3, 4, w=[Write(X, 2)])),
    ),
    Case(
        "G1c circular flow",
        Anomaly.FUTURE_READ,
        example(txn("T1", 3, 5, w=[X], r={Y: "T2"}), txn("T2", 4, 6, w=[Y], r={X: "T1"})),
        example(txn("T1", 3, 5, w=[X], r={Y: "T0"}), txn("T2", 4, 6, w=[Y], r={X: "T0"})),
    ),
    Case(
        "OTV observed transaction vanishes",
        Anomaly.FUTURE_READ,
        example(txn("T1", 3, 4, w=[X, Y]), txn("T2", 6, 7, w=[X, Y]), txn("T3", 5, r={X: "T1", Y: "T2"})),
        example(txn("T1", 3, 4, w=[X, Y]), txn("T2", 6, 7, w=[X, Y]), txn("T3", 5, r={X: "T1", Y: "T1"})),
    ),
    Case(
        "PMP phantom appears",
        Anomaly.PHANTOM,
        example(
            txn("T1", 3, scans=[scan({X: "T0", Y: "T0"}), scan({X: "T0", Y: "T0", Z: "T2"})]),
            txn("T2", 4, 5, w=[Z]),
        ),
        example(
            txn("T1", 3, scans=[scan({X: "T0", Y: "T0"}), scan({X: "T0", Y: "T0"})]),
            txn("T2", 4, 5, w=[Z]),
        ),
    ),
    Case(
        "phantom missed",
        Anomaly.PHANTOM,
        example(txn("T1", 3, 4, w=[Z]), txn("T2", 5, scans=[scan({X: "T0", Y: "T0"})])),
        example(txn("T1", 3, 4, w=[Z]), txn("T2", 5, scans=[scan({X: "T0", Y: "T0", Z: "T1"})])),
    ),
    Case(
        "deleted row scanned",
        Anomaly.PHANTOM,
        example(txn("T1", 3, 4, w=[Write(X, 0)]), txn("T2", 5, scans=[scan({X: "T0", Y: "T0"})])),
        example(txn("T1", 3, 4, w=[Write(X, 0)]), txn("T2", 5, scans=[scan({Y: "T0"})])),
    ),
    Case(
        "scan beyond its range",
        Anomaly.PHANTOM,
        example(txn("T1", 3, scans=[scan({X: "T0", Y: "T0"}, high=b"y")])),
        example(txn("T1", 3, scans=[scan({X: "T0"}, high=b"y"), scan({Y: "T0"}, low=b"y", columns=("v",))])),
    ),
    Case(
        "row scanned twice",
        Anomaly.PHANTOM,
        example(txn("T1", 3, scans=[ScanRead("t", b"", b"y", None, (*reads({X: "T0"}), *reads({X: "T0"})))])),
        example(txn("T1", 3, scans=[ScanRead("t", b"", b"y", None, reads({X: "T0"}))])),
    ),
    Case(
        "old version scanned",
        Anomaly.STALE_READ,
        example(txn("T1", 3, 4, w=[X]), txn("T2", 5, scans=[scan({X: "T0", Y: "T0"})])),
        example(txn("T1", 3, 4, w=[X]), txn("T2", 5, scans=[scan({X: "T1", Y: "T0"})])),
    ),
    Case(
        "aborted row scanned",
        Anomaly.ABORTED_READ,
        example(txn("T1", 3, w=[Z], outcome="fail"), txn("T2", 5, scans=[scan({X: "T0", Y: "T0", Z: "T1"})])),
        example(txn("T1", 3, w=[Z], outcome="fail"), txn("T2", 5, scans=[scan({X: "T0", Y: "T0"})])),
    ),
    Case(
        "P4 lost update",
        Anomaly.OVERLAP,
        example(txn("T1", 3, 5, r={X: "T0"}, w=[X]), txn("T2", 4, 6, r={X: "T0"}, w=[X])),
        example(txn("T1", 3, 5, r={X: "T0"}, w=[X]), txn("T2", 6, 7, r={X: "T1"}, w=[X])),
    ),
    Case(
        "blind write over a newer commit",
        Anomaly.OVERLAP,
        example(txn("T1", 3, 6, w=[X]), txn("T2", 4, 5, w=[X])),
        example(txn("T1", 3, 6, w=[X], outcome="fail"), txn("T2", 4, 5, w=[X])),
    ),
    Case(
        "G-single read skew",
        Anomaly.FUTURE_READ,
        example(txn("T1", 3, r={X: "T0", Y: "T2"}), txn("T2", 4, 5, w=[X, Y])),
        example(txn("T1", 3, r={X: "T0", Y: "T0"}), txn("T2", 4, 5, w=[X, Y])),
    ),
    Case(
        "unrepeatable read",
        Anomaly.FUTURE_READ,
        example(txn("T1", 3, r=[*reads({X: "T0"}), *reads({X: "T2"})]), txn("T2", 4, 5, w=[X])),
        example(txn("T1", 3, r=[*reads({X: "T0"}), *reads({X: "T0"})]), txn("T2", 4, 5, w=[X])),
    ),
    Case(
        "long fork",
        Anomaly.STALE_READ,
        example(
            txn("T1", 3, 5, w=[X]),
            txn("T2", 4, 6, w=[Y]),
            txn("T3", 7, r={X: "T1", Y: "T0"}),
            txn("T4", 8, r={X: "T0", Y: "T2"}),
        ),
        example(
            txn("T1", 3, 5, w=[X]),
            txn("T2", 4, 7, w=[Y]),
            txn("T3", 6, r={X: "T1", Y: "T0"}),
            txn("T4", 8, r={X: "T1", Y: "T2"}),
        ),
    ),
    Case(
        "internal: own write not seen",
        Anomaly.OWN_WRITE,
        example(txn("T1", 3, 4, w=[X], own=[OwnRead(X, 1, mark("T0"))])),
        example(txn("T1", 3, 4, w=[X], own=[OwnRead(X, 1, mark("T1"))])),
    ),
    Case(
        "internal: older own write seen",
        Anomaly.OWN_WRITE,
        example(txn("T1", 3, 4, w=[Write(X, 2)], own=[OwnRead(X, 2, mark("T1#1"))])),
        example(txn("T1", 3, 4, w=[Write(X, 2)], own=[OwnRead(X, 1, mark("T1#1"))])),
    ),
    Case(
        "internal: own deletion not seen",
        Anomaly.OWN_WRITE,
        example(txn("T1", 3, 4, w=[Write(X, 0)], own=[OwnRead(X, 0, mark("T0"))])),
        example(txn("T1", 3, 4, w=[Write(X, 0)], own=[OwnRead(X, 0, None)])),
    ),
    Case(
        "internal: scan without own write",
        Anomaly.OWN_WRITE,
        example(txn("T1", 3, 4, w=[Z], scans=[scan({X: "T0", Y: "T0"}, own=[Write(Z)])])),
        example(txn("T1", 3, 4, w=[Z], scans=[scan({X: "T0", Y: "T0", Z: "T1"}, own=[Write(Z)])])),
    ),
    Case(
        "internal: scan with a row deleted by itself",
        Anomaly.OWN_WRITE,
        example(txn("T1", 3, 4, w=[Write(X, 0)], scans=[scan({X: "T0", Y: "T0"}, own=[Write(X, 0)])])),
        example(txn("T1", 3, 4, w=[Write(X, 0)], scans=[scan({Y: "T0"}, own=[Write(X, 0)])])),
    ),
    Case("real time", Anomaly.REAL_TIME, example(*_late(101)), example(*_late(99))),
    Case(
        "real time, a transaction that only writes",
        Anomaly.REAL_TIME,
        example(
            txn("T1", 3, 6, w=[X], returned=100),
            txn("T2", 4, 5, w=[Y], blind=True, began=101, returned=200),
        ),
        example(
            txn("T1", 3, 6, w=[X], returned=100),
            txn("T2", 4, 7, w=[Y], blind=True, began=101, returned=200),
        ),
    ),
    Case(
        "real time, an unknown one that committed",
        Anomaly.REAL_TIME,
        example(
            txn("T1", 3, 6, w=[X], returned=100),
            txn("T2", 5, w=[Y], began=101, outcome="unknown"),
            committed={"T2": (5, 7)},
        ),
        # The other way round nothing is known: it may have committed after it was given up.
        example(
            txn("T1", 3, w=[X], returned=100, outcome="unknown"),
            txn("T2", 5, r={X: "T0"}, began=101, returned=200),
            committed={"T1": (3, 6)},
        ),
    ),
    Case(
        "real time, timestamps that went back",
        Anomaly.REAL_TIME,
        example(txn("T1", 8, r={X: "T0"}, returned=100), txn("T2", 7, r={X: "T0"}, began=101, returned=200)),
        example(txn("T1", 7, r={X: "T0"}, returned=100), txn("T2", 8, r={X: "T0"}, began=101, returned=200)),
    ),
    Case(
        "partial commit of an unknown",
        Anomaly.PARTIAL,
        example(txn("T1", 3, w=[X, Y], outcome="unknown"), committed={"T1": (3, 4)}, without=[("T1", Y)]),
        example(txn("T1", 3, w=[X, Y], outcome="unknown"), committed={"T1": (3, 4)}),
    ),
    Case(
        "partial commit of an unknown, a deletion is lacking",
        Anomaly.PARTIAL,
        example(
            txn("T1", None, w=[X, Write(Y, 0)], outcome="unknown", blind=True),
            committed={"T1": (3, 4)},
            without=[("T1", Y)],
        ),
        example(txn("T1", None, w=[X, Write(Y, 0)], outcome="unknown", blind=True), committed={"T1": (3, 4)}),
    ),
    Case(
        "partial commit of an unknown that only deletes",
        Anomaly.PARTIAL,
        example(
            txn("T1", None, w=[Write(X, 0), Write(Y, 0)], outcome="unknown", blind=True),
            committed={"T1": (3, 4)},
            without=[("T1", Y)],
        ),
        example(
            txn("T1", None, w=[Write(X, 0), Write(Y, 0)], outcome="unknown", blind=True),
            committed={"T1": (3, 4)},
        ),
    ),
    Case(
        "fractured commit timestamps of an unknown",
        Anomaly.TIMESTAMPS_DIFFER,
        example(
            txn("T1", 3, w=[X, Y], outcome="unknown"),
            committed={"T1": (3, 4)},
            without=[("T1", Y)],
            extra={Y: [(5, 3, "T1")]},
        ),
        example(txn("T1", 3, w=[X, Y], outcome="unknown")),
    ),
    Case(
        "an unknown that was read is absent",
        Anomaly.MISSING,
        example(txn("T1", 3, w=[X], outcome="unknown"), txn("T2", 5, r={X: "T1"})),
        example(txn("T1", 3, w=[X], outcome="unknown"), txn("T2", 5, r={X: "T1"}), committed={"T1": (3, 4)}),
    ),
    Case(
        "an unknown that committed is not seen",
        Anomaly.STALE_READ,
        example(txn("T1", 3, w=[X], outcome="unknown"), txn("T2", 5, r={X: "T0"}), committed={"T1": (3, 4)}),
        example(txn("T1", 3, w=[X], outcome="unknown"), txn("T2", 5, r={X: "T0"})),
    ),
    Case(
        "an unknown that committed overlaps",
        Anomaly.OVERLAP,
        example(txn("T1", 3, w=[X], outcome="unknown"), txn("T2", 4, 6, w=[X]), committed={"T1": (3, 5)}),
        example(txn("T1", 3, w=[X], outcome="unknown"), txn("T2", 4, 6, w=[X])),
    ),
    Case(
        "a fail that is present",
        Anomaly.PRESENT,
        example(txn("T1", 3, w=[X], outcome="fail"), committed={"T1": (3, 4)}),
        example(txn("T1", 3, w=[X], outcome="fail")),
    ),
    Case(
        "a failed deletion that is present",
        Anomaly.PRESENT,
        example(txn("T1", 3, w=[Write(X, 0)], outcome="fail"), committed={"T1": (3, 4)}),
        example(txn("T1", 3, w=[Write(X, 0)], outcome="fail")),
    ),
    Case(
        "an ok that is absent",
        Anomaly.MISSING,
        example(txn("T1", 3, 4, w=[X, Y]), without=[("T1", X), ("T1", Y)]),
        example(txn("T1", 3, 4, w=[X, Y])),
    ),
    Case(
        "an ok whose deletion is absent",
        Anomaly.MISSING,
        example(txn("T1", 3, 4, w=[X, Write(Y, 0)]), without=[("T1", Y)]),
        example(txn("T1", 3, 4, w=[X, Write(Y, 0)])),
    ),
    Case(
        "an ok at another commit timestamp",
        Anomaly.TIMESTAMPS_DIFFER,
        example(txn("T1", 3, 5, w=[X, Y]), without=[("T1", X)], extra={X: [(4, 3, "T1")]}),
        example(txn("T1", 3, 5, w=[X, Y])),
    ),
    Case(
        "a deletion at another commit timestamp",
        Anomaly.TIMESTAMPS_DIFFER,
        example(txn("T1", 3, 5, w=[Write(X, 0)]), without=[("T1", X)], extra={X: [(4, 3, None)]}),
        example(txn("T1", 3, 5, w=[Write(X, 0)])),
    ),
    Case(
        "a version under another start timestamp",
        Anomaly.TIMESTAMPS_DIFFER,
        example(txn("T1", 3, 5, w=[X]), without=[("T1", X)], extra={X: [(5, 4, "T1")]}),
        example(txn("T1", 3, 5, w=[X])),
    ),
    Case(
        "applied twice",
        Anomaly.TIMESTAMPS_DIFFER,
        example(txn("T1", 3, 5, w=[X]), extra={X: [(7, 6, "T1")]}),
        example(txn("T1", 3, 5, w=[X])),
    ),
    Case(
        "a version stored twice",
        Anomaly.REPEATED_VERSION,
        example(txn("T1", 3, 5, w=[X]), extra={X: [(5, 3, "T1")]}),
        example(txn("T1", 3, 5, w=[X])),
    ),
    Case(
        "a repeated timestamp",
        Anomaly.REPEATED_TIMESTAMP,
        example(txn("T1", 3, 5, w=[X]), txn("T2", 5, r={Y: "T0"})),
        example(txn("T1", 3, 5, w=[X]), txn("T2", 6, r={Y: "T0"})),
    ),
    Case(
        "a repeated start timestamp",
        Anomaly.REPEATED_TIMESTAMP,
        example(txn("T1", 3, r={X: "T0"}), txn("T2", 3, r={Y: "T0"})),
        example(txn("T1", 3, r={X: "T0"}), txn("T2", 4, r={Y: "T0"})),
    ),
    Case(
        "commit below start",
        Anomaly.COMMIT_BELOW_START,
        example(txn("T1", 5, 4, w=[Z], returned=60)),
        example(txn("T1", 4, 5, w=[Z], returned=60)),
    ),
    Case(
        "commit at start",
        Anomaly.COMMIT_BELOW_START,
        example(txn("T1", 5, 5, w=[Z])),
        example(txn("T1", 5, 6, w=[Z])),
    ),
    Case("leftover lock", Anomaly.LOCK, example(leftovers=[SOME_LOCK]), example()),
    Case(
        "leftover notification",
        Anomaly.NOTIFICATION,
        example(leftovers=[Leftover("notification", "t", b"x", "v", "a mark")]),
        example(),
    ),
    Case(
        "orphan", Anomaly.ORPHAN, example(leftovers=[Leftover("orphan", "t", b"x", "", "a row")]), example()
    ),
    Case(
        "version from nowhere: without a mark",
        Anomaly.NOWHERE,
        example(extra={Z: [(4, 3, "?")]}),
        example(txn("T1", 3, 4, w=[Z])),
    ),
    Case(
        "version from nowhere: of a transaction that nobody recorded",
        Anomaly.NOWHERE,
        example(extra={X: [(4, 3, "T9")]}),
        example(txn("T9", 3, 4, w=[X])),
    ),
    Case(
        "version from nowhere: in another cell than it was written to",
        Anomaly.NOWHERE,
        example(txn("T1", 3, 4, w=[X]), extra={Y: [(4, 3, "T1")]}),
        example(txn("T1", 3, 4, w=[X, Y])),
    ),
    Case(
        "version from nowhere: a deletion",
        Anomaly.NOWHERE,
        example(extra={X: [(4, 3, None)]}),
        example(txn("T1", 3, 4, w=[Write(X, 0)])),
    ),
    Case(
        "version from nowhere: read",
        Anomaly.NOWHERE,
        example(txn("T1", 3, r={Z: "?"})),
        example(txn("T1", 3, r={Z: None})),
    ),
    Case(
        "version from nowhere: read in another cell",
        Anomaly.NOWHERE,
        example(txn("T1", 3, 4, w=[X]), txn("T2", 5, r={Y: "T1"})),
        example(txn("T1", 3, 4, w=[X, Y]), txn("T2", 5, r={Y: "T1"})),
    ),
    Case(
        "collected: the newest version below the safe point is gone",
        Anomaly.MISSING,
        example(txn("T1", 3, 4, w=[X]), without=[("T0", X), ("T1", X)], safe_point=5),
        example(txn("T1", 3, 4, w=[X]), without=[("T0", X)], safe_point=5),
    ),
    Case(
        "collected: a version above the safe point is gone",
        Anomaly.MISSING,
        example(txn("T1", 3, 4, w=[X]), txn("T2", 5, 6, w=[X]), without=[("T1", X)], safe_point=3),
        example(txn("T1", 3, 4, w=[X]), txn("T2", 5, 6, w=[X]), without=[("T1", X)], safe_point=7),
    ),
    Case(
        "collected: a deletion is gone, and what it deleted is not",
        Anomaly.MISSING,
        example(txn("T1", 3, 4, w=[Write(X, 0)]), without=[("T1", X)], safe_point=8),
        example(txn("T1", 3, 4, w=[Write(X, 0)]), without=[("T0", X), ("T1", X)], safe_point=8),
    ),
    Case(
        "collected: the newest version is gone, and the unknown deletion began before it",
        Anomaly.MISSING,
        example(
            txn("T2", 3, w=[Write(X, 0)], outcome="unknown"),
            txn("T1", 4, 5, w=[X]),
            without=[("T0", X), ("T1", X)],
            safe_point=8,
        ),
        example(
            txn("T2", 6, w=[Write(X, 0)], outcome="unknown"),
            txn("T1", 4, 5, w=[X]),
            without=[("T0", X), ("T1", X)],
            safe_point=8,
        ),
    ),
    Case(
        "collected: the newest version is gone, and what came behind it is no deletion",
        Anomaly.MISSING,
        example(txn("T1", 3, w=[X], outcome="unknown"), without=[("T0", X)], safe_point=8),
        example(txn("T1", 3, w=[Write(X, 0)], outcome="unknown"), without=[("T0", X)], safe_point=8),
    ),
]

ALLOWED = {
    "G2-item write skew": example(
        txn("T1", 3, 5, r={X: "T0", Y: "T0"}, w=[X]), txn("T2", 4, 6, r={X: "T0", Y: "T0"}, w=[Y])
    ),
    "G2 predicate skew": example(
        txn("T1", 3, 5, scans=[scan({X: "T0", Y: "T0"})], w=[Z]),
        txn("T2", 4, 6, scans=[scan({X: "T0", Y: "T0"})], w=[CellKey("t", b"w", "v")]),
    ),
    "a collected unknown was read": example(
        txn("T1", 3, w=[X], outcome="unknown"),
        txn("T2", 5, r={X: "T1"}),
        txn("T3", 6, 7, w=[X]),
        without=[("T0", X)],
        safe_point=8,
    ),
    "a collected unknown deletion was seen": example(
        txn("T1", 3, w=[Write(X, 0)], outcome="unknown"),
        txn("T2", 5, r={X: None}, scans=[scan({Y: "T0"})]),
        txn("T3", 6, 7, w=[X]),
        without=[("T0", X)],
        safe_point=8,
    ),
    "two unknown deletions without a start": example(
        txn("T1", None, w=[Write(X, 0)], outcome="unknown", blind=True),
        txn("T2", None, w=[Write(X, 0), Write(Y, 0)], outcome="unknown", blind=True),
        committed={"T2": (5, 6)},
    ),
}
