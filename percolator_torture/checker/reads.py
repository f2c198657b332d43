"""Check that every read saw its snapshot (the newest versions below its start) and its own writes."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from percolator_torture.checker.ledger import Ledger
from percolator_torture.checker.report import Anomaly, Report
from percolator_torture.histories.history import FAIL, PackedScan
from percolator_torture.histories.marks import ABSENT, FOREIGN


def origin_of(ledger: Ledger, mark: int, cell: int) -> tuple[Anomaly | None, str]:
    """Return the violation that the origin of a value shows, if any, and the value's writer in words."""
    history = ledger.history
    if mark == FOREIGN:
        return Anomaly.NOWHERE, "a client that is not recorded"
    position = history.position(mark)
    if position is None:
        return Anomaly.NOWHERE, f"{_name(ledger, mark)}, which is not in the history"
    writer = history.id_of(position)
    last = ledger.mark_in(position, cell)
    if last is None:
        return Anomaly.NOWHERE, f"{writer}, which did not write this cell"
    if last != mark:
        return Anomaly.INTERMEDIATE, f"{_name(ledger, mark)}, which {writer} itself overwrote"
    if history.outcome[position] == FAIL:
        return Anomaly.ABORTED_READ, f"{writer}, which did not commit"
    if ledger.is_committed(position):
        return None, f"{writer} (committed at {ledger.commit_ts[position]})"
    return None, f"{writer} (outcome unknown)"


def check_reads(ledger: Ledger, report: Report) -> None:
    """Check that every read saw the newest version committed below its start timestamp."""
    history, timelines, start_ts = ledger.history, ledger.timelines, ledger.start_ts
    columns = zip(history.read_owner, history.read_cell, history.read_mark, strict=True)
    for reader, cell, seen in columns:
        timeline = timelines[cell]
        place = bisect_left(timeline.commits, start_ts[reader]) - 1
        if seen != (timeline.marks[place] if place >= 0 else ABSENT):
            _explain(ledger, report, reader, cell, seen, place)


def _explain(  # noqa: PLR0917
    ledger: Ledger, report: Report, reader: int, cell: int, seen: int, place: int
) -> None:
    """Describe the violation of a read that did not see the version at ``place`` of its cell's timeline."""
    history, timeline = ledger.history, ledger.timelines[cell]
    if ledger.may_be_forgotten(seen, cell):
        return
    start_ts = ledger.start_ts[reader]
    what = f"{history.id_of(reader)} (begun at {start_ts}) read {history.cells[cell]}"
    involved = [history.id_of(reader)]
    expected = "nothing was there"
    if place >= 0:
        owner = timeline.owners[place]
        involved.append(history.id_of(owner))
        how = "deleted it" if timeline.marks[place] == ABSENT else "wrote it"
        expected = f"{history.id_of(owner)} {how} at {timeline.commits[place]}"
    if seen == ABSENT:
        name, saw = Anomaly.STALE_READ, "and found nothing"
    else:
        found, origin = origin_of(ledger, seen, cell)
        saw = f"and saw the value of {origin}"
        position = history.position(seen) if seen > 0 else None
        if position is not None:
            involved.insert(1, history.id_of(position))
        if found is not None:
            name = found
        elif position is None or not ledger.is_committed(position):
            name, saw = Anomaly.MISSING, f"{saw}, of which the store holds no version"
        else:
            late = ledger.commit_ts[position] >= start_ts
            name = Anomaly.FUTURE_READ if late else Anomaly.STALE_READ
    report.add(
        name,
        tuple(dict.fromkeys(involved)),
        (history.cells[cell],),
        f"{what} {saw}, although in its snapshot {expected}",
    )


def check_own_reads(ledger: Ledger, report: Report) -> None:
    """Check that a transaction that reads a cell after writing it sees its own newest write."""
    history = ledger.history
    for reader, reads in history.own_reads.items():
        for cell, wrote, seen in reads:
            if seen != wrote:
                _explain_own(ledger, report, reader, cell, wrote, seen)


def _explain_own(  # noqa: PLR0917
    ledger: Ledger, report: Report, reader: int, cell: int, wrote: int, seen: int
) -> None:
    name = ledger.history.id_of(reader)
    did = "deleted" if wrote == ABSENT else f"wrote {_name(ledger, wrote)} to"
    saw = "nothing" if seen == ABSENT else _name(ledger, seen)
    report.add(
        Anomaly.OWN_WRITE,
        (name,),
        (ledger.history.cells[cell],),
        f"{name} {did} {ledger.history.cells[cell]} and then saw {saw} there",
    )


def check_scans(ledger: Ledger, report: Report) -> None:
    """Check that every scan saw exactly the cells of its range in its snapshot, and its own writes."""
    if not ledger.history.scans:
        return
    index = _RowIndex(ledger)
    for reader, scans in ledger.history.scans.items():
        for scan in scans:
            _check_scan(ledger, report, index, reader, scan)


class _RowIndex:
    """The cells of each table in row order."""

    def __init__(self, ledger: Ledger) -> None:
        self._cells: dict[str, list[tuple[bytes, int]]] = {}
        self._columns = [cell.column for cell in ledger.history.cells]
        for number, cell in enumerate(ledger.history.cells):
            self._cells.setdefault(cell.table, []).append((cell.row, number))
        for cells in self._cells.values():
            cells.sort()

    def cells_in(self, scan: PackedScan) -> list[int]:
        """Return the indexes of all cells in a scan's range that the history or the store has."""
        cells = self._cells.get(scan.table, [])
        begin = bisect_left(cells, (scan.low,))
        end = len(cells) if scan.high is None else bisect_left(cells, (scan.high,))
        numbers = [number for _, number in cells[begin:end]]
        if scan.columns is None:
            return numbers
        return [number for number in numbers if self._columns[number] in scan.columns]


def _check_scan(ledger: Ledger, report: Report, index: _RowIndex, reader: int, scan: PackedScan) -> None:
    history, timelines = ledger.history, ledger.timelines
    name, start_ts = history.id_of(reader), ledger.start_ts[reader]
    seen = dict(scan.seen)
    in_range = index.cells_in(scan)
    for cell in in_range:
        saw = seen.pop(cell, ABSENT)
        if cell in scan.own:
            if saw != scan.own[cell]:
                _explain_own(ledger, report, reader, cell, scan.own[cell], saw)
            continue
        timeline = timelines[cell]
        place = timeline.below(start_ts)
        expected = timeline.marks[place] if place >= 0 else ABSENT
        if saw == expected:
            continue
        if saw != ABSENT and not (expected == ABSENT and _is_committed(ledger, saw, cell)):
            _explain(ledger, report, reader, cell, saw, place)
        elif not ledger.may_be_forgotten(saw, cell):
            other = _name(ledger, expected if saw == ABSENT else saw)
            how = "did not see" if saw == ABSENT else "saw"
            report.add(
                Anomaly.PHANTOM,
                (name, other.rpartition(":")[0]),
                (history.cells[cell],),
                f"{name} (begun at {start_ts}) scanned {_range(scan)} and {how} {history.cells[cell]} "
                f"with the value {other}, which in its snapshot was {'' if saw == ABSENT else 'not '}there",
            )
    for cell in seen:
        report.add(
            Anomaly.PHANTOM,
            (name,),
            (history.cells[cell],),
            f"{name} scanned {_range(scan)} and was given {history.cells[cell]}, which does not lie in it",
        )
    if len(scan.seen) > len(dict(scan.seen)):
        twice = [one for one, other in pairwise(sorted(cell for cell, _ in scan.seen)) if one == other]
        report.add(
            Anomaly.PHANTOM,
            (name,),
            tuple(history.cells[cell] for cell in twice),
            f"{name} scanned {_range(scan)} and was given {history.cells[twice[0]]} more than once",
        )


def _is_committed(ledger: Ledger, mark: int, cell: int) -> bool:
    """Return True if the value is a committed transaction's final write to the cell."""
    position = ledger.history.position(mark) if mark > 0 else None
    return position is not None and ledger.is_committed(position) and ledger.mark_in(position, cell) == mark


def _range(scan: PackedScan) -> str:
    to = "the end" if scan.high is None else repr(scan.high)
    return f"{scan.table} from {scan.low!r} to {to}"


def _name(ledger: Ledger, mark: int) -> str:
    return str(ledger.history.processes.unpack(mark))
