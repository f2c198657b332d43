"""Check a history against snapshot isolation in real time, and against the state that it left.

The timestamps of the transactions give their order. The order determines the values that each transaction
must have seen, and the final state. So a check takes the time of sorting, n log n; without timestamps a
checker would have to search for an order.

>>> report = check(history, read_final(db, ["t"]))
>>> assert report.ok, report
"""

from __future__ import annotations

import gc
from itertools import pairwise
from operator import le

from percolator_torture.checker.ledger import Ledger, Timeline
from percolator_torture.checker.reads import check_own_reads, check_reads, check_scans, origin_of
from percolator_torture.checker.report import Anomaly, Report
from percolator_torture.histories.final_state import FinalState, Leftover
from percolator_torture.histories.history import FAIL, OK, OUTCOMES, History
from percolator_torture.histories.marks import ABSENT

_LEFTOVERS = {"lock": Anomaly.LOCK, "orphan": Anomaly.ORPHAN, "notification": Anomaly.NOTIFICATION}


def check(history: History, final: FinalState) -> Report:
    """Find all violations in a history and the state that it left.

    ``final`` must have been read after all clients had stopped and all locks were resolved. The history must
    have all writes to its tables. A million transactions of two reads and two writes take about 15 seconds
    and, with the history itself, 500 MB.
    """
    enabled = gc.isenabled()
    gc.disable()  # columns of integers have no reference cycles
    try:
        ledger = Ledger(history, final)
        report = Report(
            transactions=len(history),
            reads=len(history.read_cell),
            scans=sum(map(len, history.scans.values())),
            versions=sum(map(len, final.cells.values())),
            outcomes={name: history.outcome.count(number) for number, name in enumerate(OUTCOMES)},
            committed_unknown=ledger.committed_unknown,
        )
        check_timestamps(ledger, report)
        check_versions(ledger, report)
        check_writers(ledger, report)
        check_reads(ledger, report)
        check_own_reads(ledger, report)
        check_scans(ledger, report)
        check_real_time(ledger, report)
        check_leftovers(final, report)
        return report
    finally:
        if enabled:
            gc.enable()


def check_timestamps(ledger: Ledger, report: Report) -> None:
    """Check that commit timestamps are above start timestamps, and that no timestamp was given out twice."""
    history = ledger.history
    for position, (start_ts, commit_ts) in enumerate(zip(ledger.start_ts, ledger.commit_ts, strict=True)):
        if 0 < commit_ts <= start_ts:
            name = history.id_of(position)
            report.add(
                Anomaly.COMMIT_BELOW_START,
                (name,),
                (),
                f"{name} began at {start_ts} and committed at {commit_ts}, which is not later",
            )
    stamps = [*filter(None, ledger.start_ts), *filter(None, ledger.commit_ts)]
    if len(set(stamps)) < len(stamps):
        stamps.sort()
        _explain_repeated(ledger, report, {one for one, other in pairwise(stamps) if one == other})


def _explain_repeated(ledger: Ledger, report: Report, repeated: set[int]) -> None:
    history = ledger.history
    holders: dict[int, list[str]] = {}
    for position, (start_ts, commit_ts) in enumerate(zip(ledger.start_ts, ledger.commit_ts, strict=True)):
        for stamp, use in ((start_ts, "start"), (commit_ts, "commit")):
            if stamp in repeated and not (use == "commit" and start_ts == commit_ts):
                holders.setdefault(stamp, []).append(f"{history.id_of(position)} ({use})")
    for stamp, uses in holders.items():
        if len(uses) > 1:
            report.add(
                Anomaly.REPEATED_TIMESTAMP,
                tuple(use.partition(" ")[0] for use in uses),
                (),
                f"the timestamp {stamp} was given out more than once: to {', '.join(uses)}",
            )


def check_versions(ledger: Ledger, report: Report) -> None:
    """Check that the store has every version of committed transactions, with its timestamps, and no other."""
    for cell, (timeline, found) in enumerate(zip(ledger.timelines, ledger.found, strict=True)):
        if found is None:
            if timeline.commits:
                _compare(ledger, report, cell, timeline, [])
        elif (
            timeline.commits != found.commits
            or timeline.marks != found.marks
            or timeline.starts != found.starts
        ):
            _compare(ledger, report, cell, timeline, list(found))


def _compare(
    ledger: Ledger, report: Report, cell: int, timeline: Timeline, found: list[tuple[int, int, int]]
) -> None:
    expected = set(timeline)
    accused = {
        _explain_version(ledger, report, cell, *version) for version in found if version not in expected
    }
    there = set(found)
    if len(there) < len(found):
        where = ledger.history.cells[cell]
        report.add(
            Anomaly.REPEATED_VERSION,
            (),
            (where,),
            f"the store holds {len(found) - len(there)} of the versions of {where} more than once",
        )
    for place, version in enumerate(timeline):
        owner = timeline.owners[place]
        if version in there or owner in accused or ledger.may_be_collected(cell, place):
            continue
        history = ledger.history
        name, where = history.id_of(owner), history.cells[cell]
        what = "deletion" if timeline.marks[place] == ABSENT else "write"
        if history.outcome[owner] == OK:
            sentence = f"{name} committed at {version[0]} and the store lacks its {what} to {where}"
            report.lost.add(name)
            report.add(Anomaly.MISSING, (name,), (where,), sentence)
        else:
            sentence = (
                f"{name}, of unknown outcome, committed at {version[0]}, as other versions show, "
                f"but the store lacks its {what} to {where}"
            )
            report.torn.add(name)
            report.add(Anomaly.PARTIAL, (name,), (where,), sentence)


def _explain_version(  # noqa: PLR0917
    ledger: Ledger, report: Report, cell: int, commit_ts: int, start_ts: int, mark: int
) -> int | None:
    """Report a version that should not exist; return the position of its transaction."""
    history, where = ledger.history, ledger.history.cells[cell]
    what = f"the store holds a version of {where}, begun at {start_ts} and committed at {commit_ts},"
    if mark == ABSENT:
        position = _deleter(ledger, cell, commit_ts, start_ts)
        if position is None:
            report.add(Anomaly.NOWHERE, (), (where,), f"{what} a deletion that no transaction made")
            return None
        origin = history.id_of(position)
        name = Anomaly.ABORTED_READ if history.outcome[position] == FAIL else None
    else:
        name, origin = origin_of(ledger, mark, cell)
        position = history.position(mark) if mark > 0 else None
    if name is None:
        assert position is not None
        sentence = (
            f"{what} of {origin}, which began at {ledger.start_ts[position]} "
            f"and committed at {ledger.commit_ts[position]}"
        )
        name = Anomaly.TIMESTAMPS_DIFFER
    else:
        sentence = f"{what} written by {origin}"
        name = Anomaly.PRESENT if name == Anomaly.ABORTED_READ else name
    report.add(name, () if position is None else (history.id_of(position),), (where,), sentence)
    return position


def _deleter(ledger: Ledger, cell: int, commit_ts: int, start_ts: int) -> int | None:
    """Find the transaction that deletes the cell and has one of the timestamps."""
    for owner in ledger.deleters(cell):
        if ledger.start_ts[owner] == start_ts or ledger.commit_ts[owner] == commit_ts:
            return owner
    return None


def check_writers(ledger: Ledger, report: Report) -> None:
    """Check that no two committed writers of a cell were concurrent."""
    history = ledger.history
    for cell, timeline in enumerate(ledger.timelines):
        if not any(map(le, timeline.starts[1:], timeline.commits)):
            continue
        for place in range(1, len(timeline)):
            start_ts, before = timeline.starts[place], timeline.commits[place - 1]
            if start_ts <= before:
                names = history.id_of(timeline.owners[place - 1]), history.id_of(timeline.owners[place])
                report.add(
                    Anomaly.OVERLAP,
                    names,
                    (history.cells[cell],),
                    f"{names[1]} began at {start_ts} and wrote {history.cells[cell]}, although {names[0]} "
                    f"committed to it at {before}, before {names[1]} did at {timeline.commits[place]}",
                )


def check_real_time(ledger: Ledger, report: Report) -> None:
    """Check the timestamps' order: a transaction precedes those that began after it had returned.

    A transaction that only writes fixes its snapshot at its commit, so its commit timestamp gives its
    place in the order. A transaction of unknown outcome may commit after it returned, so only its start is
    known to be in the past.
    """
    history, start_ts, commit_ts = ledger.history, ledger.start_ts, ledger.commit_ts
    by_begin = sorted(range(len(history)), key=history.began.__getitem__)
    by_return = sorted(range(len(history)), key=history.returned.__getitem__)
    floor, holder, next_returned = 0, -1, 0
    began, returned, outcome, blind = history.began, history.returned, history.outcome, history.blind
    for position in by_begin:
        now = began[position]
        while returned[(earlier := by_return[next_returned])] < now:
            stamp = commit_ts[earlier] if outcome[earlier] == OK else 0
            stamp = stamp or start_ts[earlier]
            if stamp > floor:
                floor, holder = stamp, earlier
            next_returned += 1
        stamp = commit_ts[position] if blind[position] else start_ts[position]
        if stamp and stamp <= floor:
            _explain_order(ledger, report, holder, floor, position)


def _explain_order(ledger: Ledger, report: Report, earlier: int, floor: int, later: int) -> None:
    history = ledger.history
    names = history.id_of(earlier), history.id_of(later)
    event = "committed" if floor == ledger.commit_ts[earlier] else "began"
    if history.blind[later]:
        placed = f"committed at {ledger.commit_ts[later]}"
    else:
        placed = f"has the start timestamp {ledger.start_ts[later]}"
    report.add(
        Anomaly.REAL_TIME,
        names,
        (),
        f"{names[1]} was begun after {names[0]} had returned, which {event} at {floor}, and yet {placed}",
    )


def check_leftovers(final: FinalState, report: Report) -> None:
    """Check that no lock, no orphan and no pending notification is left."""
    for leftover in final.leftovers:
        report.add(_LEFTOVERS[leftover.kind], (), (), _describe(leftover))


def _describe(leftover: Leftover) -> str:
    column = f", column {leftover.column!r}" if leftover.column else ""
    return f"table {leftover.table!r}, row {leftover.row!r}{column}: {leftover.detail} is left"
