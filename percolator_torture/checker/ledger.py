"""The versions that a history implies for each cell: which transactions committed, and when.

A transaction that returned ok is committed. A transaction of unknown outcome is committed if the store has
one of its versions, and then has the timestamps of that version.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from percolator_torture.histories.final_state import FinalState, Versions
from percolator_torture.histories.history import UNKNOWN, History
from percolator_torture.histories.marks import ABSENT, NUMBER_BITS, WRITE_BITS, Processes


class Timeline(Versions):
    """The expected versions of a cell; ``owners`` are the positions of their transactions."""

    __slots__ = ("owners",)

    def __init__(self) -> None:
        super().__init__()
        self.owners = array("i")

    def below(self, timestamp: int) -> int:
        """Return the index of the newest version committed below a timestamp, -1 for none."""
        return bisect_left(self.commits, timestamp) - 1


EMPTY = Timeline()


class Ledger:
    """The timestamps and versions of a history; for unknown transactions they are from the store.

    ``start_ts`` and ``commit_ts`` are columns like those of the history; ``commit_ts`` is above 0 exactly for
    the committed transactions that wrote. The number of a cell is its index in ``timelines`` and ``found``;
    cells of the store that the history does not name have higher numbers.
    """

    __slots__ = (
        "_deleters",
        "_forgotten_deletions",
        "commit_ts",
        "committed_unknown",
        "final",
        "found",
        "history",
        "start_ts",
        "timelines",
    )

    def __init__(self, history: History, final: FinalState) -> None:
        self.history = history
        self.final = final
        self.start_ts, self.commit_ts = array("q", history.start_ts), array("q", history.commit_ts)
        self.found = _found(history, final)
        """For each cell its versions in the store, with marks packed like those of the history; None if it
        has no version there."""
        self.committed_unknown = 0
        self._forgotten_deletions: dict[int, list[int]] = {}
        """For each cell the start timestamps (0 if unknown) of transactions of unknown outcome that delete
        the cell and left no trace."""
        self._deleters: dict[int, list[int]] | None = None
        if UNKNOWN in history.outcome:
            self._resolve_unknown()
        self.timelines = self._draw_timelines()

    def mark_in(self, position: int, cell: int) -> int | None:
        """Return the mark of a transaction's write to a cell, `ABSENT` for a deletion; None if no write."""
        history = self.history
        for write in history.writes_of(position):
            if history.write_cell[write] == cell:
                return history.write_mark[write]
        return None

    def is_committed(self, position: int) -> bool:
        """Return True if a transaction has committed writes."""
        return self.commit_ts[position] > 0

    def may_be_collected(self, cell: int, place: int) -> bool:
        """Return True if garbage collection may have dropped a version of a cell's timeline."""
        timeline, safe_point = self.timelines[cell], self.final.safe_point
        if timeline.commits[place] > safe_point:
            return False
        if bisect_right(timeline.commits, safe_point) - 1 != place:
            return True
        commit_ts = timeline.commits[place]
        if timeline.marks[place] == ABSENT:
            # A deletion is dropped together with all older versions, or later.
            found = self.found[cell]
            return found is None or all(at > commit_ts for at in found.commits)
        # A later deletion drops the version, too, even if the deletion itself has left no trace.
        starts = self._forgotten_deletions.get(cell, ())
        return any(not start or start > commit_ts for start in starts)

    def may_be_forgotten(self, mark: int, cell: int) -> bool:
        """Return True if a value, or an absence, may come from an unknown transaction that left no trace.

        Garbage collection may have removed its commit timestamp.
        """
        if not self.final.safe_point:
            return False
        if mark == ABSENT:
            return cell in self._forgotten_deletions
        position = self.history.position(mark)
        return position is not None and self.history.outcome[position] == UNKNOWN

    def deleters(self, cell: int) -> list[int]:
        """The transactions that delete a cell, committed or not."""
        if self._deleters is None:
            self._deleters = {}
            history = self.history
            columns = zip(history.write_owner, history.write_cell, history.write_mark, strict=True)
            for owner, written, mark in columns:
                if mark == ABSENT:
                    self._deleters.setdefault(written, []).append(owner)
        return self._deleters.get(cell, [])

    # Internals.

    def _resolve_unknown(self) -> None:
        history = self.history
        unknown = [position for position, outcome in enumerate(history.outcome) if outcome == UNKNOWN]
        by_identity = {history.identity[position]: position for position in unknown}
        by_start = {
            history.start_ts[position]: position for position in unknown if history.start_ts[position]
        }
        for cell, versions in enumerate(self.found):
            if versions is None:
                continue
            for place, mark in enumerate(versions.marks):
                if mark > 0:
                    position = by_identity.get(mark >> WRITE_BITS)
                elif mark == ABSENT:
                    position = by_start.get(versions.starts[place])
                else:
                    continue
                if position is not None and self.mark_in(position, cell) is not None:
                    self._count_as_committed(position, versions.starts[place], versions.commits[place])
        nameless = [
            position for position in unknown if not self.start_ts[position] and self._deletes(position)
        ]
        if nameless:
            self._resolve_deletions(nameless)
        for position in unknown:
            self._note_forgotten(position)

    def _count_as_committed(self, position: int, start_ts: int, commit_ts: int) -> None:
        if self.commit_ts[position]:
            return
        self.committed_unknown += 1
        self.commit_ts[position] = commit_ts
        self.start_ts[position] = self.start_ts[position] or start_ts

    def _note_forgotten(self, position: int) -> None:
        if not self.commit_ts[position]:
            for cell in self._deletes(position):
                self._forgotten_deletions.setdefault(cell, []).append(self.start_ts[position])

    def _deletes(self, position: int) -> set[int]:
        history = self.history
        return {
            history.write_cell[write]
            for write in history.writes_of(position)
            if history.write_mark[write] == ABSENT
        }

    def _resolve_deletions(self, nameless: Sequence[int]) -> None:
        """Find unknown transactions without a start timestamp whose deletions are in the store.

        A deletion has no mark, and no transaction has reported the start timestamp of these deletions.
        Deletions with one start timestamp belong to one transaction. Assign them to a transaction that
        deletes exactly these cells, or else to a transaction that deletes more.
        """
        told = set(self.start_ts)
        deletes = {position: self._deletes(position) for position in nameless}
        nobodys: dict[tuple[int, int], set[int]] = {}
        for cell in set().union(*deletes.values()):
            versions = self.found[cell]
            for commit_ts, start_ts, mark in versions or ():
                if mark == ABSENT and start_ts not in told:
                    nobodys.setdefault((start_ts, commit_ts), set()).add(cell)
        by_cells: dict[frozenset[int], list[int]] = {}
        for position in sorted(nameless, key=self.history.began.__getitem__, reverse=True):
            by_cells.setdefault(frozenset(deletes[position]), []).append(position)
        for (start_ts, commit_ts), cells in sorted(nobodys.items()):
            candidates = by_cells.get(frozenset(cells)) or next(
                (those for some, those in by_cells.items() if those and some > cells), None
            )
            if candidates:
                self._count_as_committed(candidates.pop(), start_ts, commit_ts)

    def _draw_timelines(self) -> list[Timeline]:
        history, commit_ts, start_ts = self.history, self.commit_ts, self.start_ts
        writes_by_cell: list[array[int] | None] = [None] * len(history.cells)
        for write, (owner, cell) in enumerate(zip(history.write_owner, history.write_cell, strict=True)):
            if commit_ts[owner]:
                writes = writes_by_cell[cell]
                if writes is None:
                    writes = writes_by_cell[cell] = array("i")
                writes.append(write)
        timelines = []
        owners, marks = history.write_owner, history.write_mark
        for writes in writes_by_cell:
            if writes is None:
                timelines.append(EMPTY)
                continue
            in_order = sorted([(commit_ts[owners[write]], write) for write in writes])
            timeline = Timeline()
            timeline.commits = array("q", [at for at, _ in in_order])
            timeline.owners = array("i", [owners[write] for _, write in in_order])
            timeline.starts = array("q", [start_ts[owner] for owner in timeline.owners])
            timeline.marks = array("q", [marks[write] for _, write in in_order])
            timelines.append(timeline)
        return timelines


def _found(history: History, final: FinalState) -> list[Versions | None]:
    numbers = [(history.cell_index(cell), versions) for cell, versions in final.cells.items()]
    found: list[Versions | None] = [None] * len(history.cells)
    translation = _translation(history.processes, final.processes)
    for cell, versions in numbers:
        found[cell] = versions if translation is None else _translated(versions, translation)
    return found


def _translation(ours: Processes, theirs: Processes) -> list[int] | None:
    """Return the number in the history of each process of the final state; None if both number equally."""
    numbers = [ours.index(name) for name in theirs.names]
    return None if numbers == list(range(len(numbers))) else numbers


def _translated(versions: Versions, processes: list[int]) -> Versions:
    width = NUMBER_BITS + WRITE_BITS
    rest = (1 << width) - 1
    translated = Versions()
    translated.commits, translated.starts = versions.commits, versions.starts
    translated.marks = array(
        "q",
        [mark if mark <= 0 else processes[mark >> width] << width | mark & rest for mark in versions.marks],
    )
    return translated
