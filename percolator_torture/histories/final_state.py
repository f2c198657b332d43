"""The state that a history left: every committed version of every cell, and leftovers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from percolator_torture.histories.history import CellKey
from percolator_torture.histories.marks import Mark, Processes

LeftoverKind = Literal["lock", "orphan", "notification"]


class FinalVersion(NamedTuple):
    """A committed version in the store; ``mark`` is None for a deletion."""

    commit_ts: int
    start_ts: int
    mark: Mark | None


class Leftover(NamedTuple):
    """A key that must not exist once all locks are resolved; ``detail`` describes it in a few words."""

    kind: LeftoverKind
    table: str
    row: bytes
    column: str
    detail: str


class Versions:
    """The versions of one cell in columns, oldest first; a deletion's mark is `history.ABSENT`."""

    __slots__ = ("commits", "marks", "starts")

    def __init__(self, versions: Iterable[tuple[int, int, int]] = ()) -> None:
        """Each version is (commit_ts, start_ts, packed mark); they may come in any order."""
        ordered = sorted(versions)
        self.commits = array("q", [commit_ts for commit_ts, _, _ in ordered])
        self.starts = array("q", [start_ts for _, start_ts, _ in ordered])
        self.marks = array("q", [mark for _, _, mark in ordered])

    def __len__(self) -> int:
        return len(self.commits)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Versions)
            and self.commits == other.commits
            and self.marks == other.marks
            and self.starts == other.starts
        )

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.commits, self.starts, self.marks, strict=True)

    def append(self, commit_ts: int, start_ts: int, mark: int) -> None:
        """Add a version that is newer than all existing versions."""
        self.commits.append(commit_ts)
        self.starts.append(start_ts)
        self.marks.append(mark)


class FinalState:
    """All committed versions by cell, and the leftovers.

    ``safe_point`` is the safe point of garbage collection, or 0. Versions at or below it may be missing,
    except for the newest of them in each cell.
    """

    __slots__ = ("cells", "leftovers", "processes", "safe_point")

    def __init__(
        self,
        versions: dict[CellKey, Iterable[FinalVersion]] | None = None,
        *,
        safe_point: int = 0,
        leftovers: Iterable[Leftover] = (),
    ) -> None:
        self.processes = Processes()
        self.cells: dict[CellKey, Versions] = {}
        self.safe_point = safe_point
        self.leftovers = list(leftovers)
        for cell, those in (versions or {}).items():
            self.put(cell, those)

    def put(self, cell: CellKey, versions: Iterable[FinalVersion]) -> None:
        """Set the versions of a cell, in any order."""
        pack = self.processes.pack
        self.cells[cell] = Versions(
            (commit_ts, start_ts, pack(mark)) for commit_ts, start_ts, mark in versions
        )

    def versions(self, cell: CellKey) -> list[FinalVersion]:
        """The versions of a cell, oldest first."""
        unpack = self.processes.unpack
        return [
            FinalVersion(commit_ts, start_ts, unpack(mark))
            for commit_ts, start_ts, mark in self.cells.get(cell, ())
        ]
