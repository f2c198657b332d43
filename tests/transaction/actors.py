"""What the transactions of a schedule do, and what may be said of them afterwards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from percolator_core import TransactionConflict, Version
from percolator_torture.faults.plan import Operation
from percolator_torture.faults.store import FaultyDatabase
from percolator_torture.histories.history import CellKey, Outcome, Read, TransactionRecord, Write
from percolator_torture.histories.marks import Mark, tag_value, untag_value
from tests.servers.plain import start_if_fixed
from tests.transaction.schedules import Stepped

Program = Callable[["Actor"], None]


def increment(actor: Actor) -> None:
    actor.read("x")
    actor.read("y")
    actor.write("x")
    actor.write("y")


def increment_backwards(actor: Actor) -> None:
    actor.read("y")
    actor.read("x")
    actor.write("y")
    actor.write("x")


def skew_x(actor: Actor) -> None:
    actor.read("x")
    actor.read("y")
    actor.write("x")


def skew_y(actor: Actor) -> None:
    actor.read("x")
    actor.read("y")
    actor.write("y")


def read_x_write_y(actor: Actor) -> None:
    actor.read("x")
    actor.write("y")


def blind(actor: Actor) -> None:
    actor.write("x")
    actor.write("y")


def blind_backwards(actor: Actor) -> None:
    actor.write("y")
    actor.write("x")


def fixed(actor: Actor) -> None:
    actor.fix()
    blind(actor)


def fixed_backwards(actor: Actor) -> None:
    actor.fix()
    blind_backwards(actor)


def overwrite_x(actor: Actor) -> None:
    actor.fix()
    actor.write("x")


def set_and_delete(actor: Actor) -> None:
    actor.fix()
    actor.write("x")
    actor.delete("x")
    actor.write("y")


def delete_and_set(actor: Actor) -> None:
    actor.fix()
    actor.delete("x")
    actor.write("x")
    actor.delete("y")


def reader(actor: Actor) -> None:
    actor.read("x")
    actor.read_row("y")


class Actor(Stepped):
    """One transaction: what it saw, what it wrote, and how it says it ended; held before an operation."""

    def __init__(self, mark: Mark, db: FaultyDatabase, program: Program, rows: Mapping[str, bytes]) -> None:
        self.mark, self.db, self.rows = mark, db, rows
        self.reads: dict[str, bytes | None] = {}
        self.writes: dict[str, bytes | None] = {}
        self.outcome: Outcome = "unknown"
        self.fixed = False
        self.committed = False
        """Whether the server has executed the decisive request."""
        self._began, self._returned = time.monotonic_ns(), 0
        self.t = db.begin()
        super().__init__(self.run, program)

    def run(self, program: Program) -> None:
        try:
            program(self)
            self.t.commit()
        except TransactionConflict:
            self.outcome = "fail"
        else:
            self.outcome = "ok"
        self._returned = time.monotonic_ns()

    def fix(self) -> None:
        assert self.t.start_timestamp
        self.fixed = True

    def read(self, cell: str) -> None:
        self.reads[cell] = self.t.get("t", self.rows[cell], "v")

    def read_row(self, cell: str) -> None:
        self.reads[cell] = self.t.get_row("t", self.rows[cell]).get("v")

    def write(self, cell: str) -> None:
        value = self.writes[cell] = tag_value(self.mark, cell.encode())
        self.t.set("t", self.rows[cell], "v", value)

    def delete(self, cell: str) -> None:
        self.writes[cell] = None
        self.t.delete("t", self.rows[cell], "v")

    @property
    def start_ts(self) -> int | None:
        return start_if_fixed(self.t)

    def note(self, operation: Operation, reply: list[bytes]) -> None:
        command = operation.commands[0]
        decisive = ("commit", "primary"), ("prewrite", "both")
        if any(operation.names == (name,) and role in command for name, role in decisive):
            self.committed = self.committed or reply[0] == b"committed"

    def record(self) -> TransactionRecord:
        """For the checker."""

        def key(cell: str) -> CellKey:
            return CellKey("t", self.rows[cell], "v")

        ok = self.outcome == "ok"
        return TransactionRecord(
            self.mark.process,
            self.mark.number,
            self._began,
            self._returned or None,
            self.start_ts,
            self.t.commit_timestamp if ok and self.writes else None,
            self.outcome,
            reads=tuple(
                Read(key(cell), None if value is None else untag_value(value)[0])
                for cell, value in self.reads.items()
            ),
            writes=tuple(Write(key(cell), 0 if value is None else 1) for cell, value in self.writes.items()),
            blind=not self.fixed and not self.reads,
        )


class Resolver(Actor):
    """Resolves locks at any time, like a third client."""

    def run(self, program: Program) -> None:
        self.db.resolve_locks(timedelta(0))


def judge(actors: list[Actor], histories: Mapping[str, list[Version]]) -> None:
    """What snapshot isolation says about transactions and the versions that they left."""
    others = {version for versions in histories.values() for version in versions}
    for actor in actors:
        if actor.writes:
            others -= judge_writer(actor, histories)
        for cell, value in actor.reads.items():
            assert actor.start_ts is not None
            visible = [version for version in histories[cell] if version.commit_ts < actor.start_ts]
            assert value == visible[0].value, f"{actor.mark} read {cell}"
    assert {untag_value(version.value or b"")[0].process for version in others} == {"load"}
    for versions in histories.values():
        for newer, older in itertools.pairwise(versions):
            # The first committer wins: no two writers of a cell overlap.
            assert older.start_ts < older.commit_ts < newer.start_ts < newer.commit_ts


def judge_writer(actor: Actor, histories: Mapping[str, list[Version]]) -> set[Version]:
    """What may be said of a transaction that writes; returns the versions that it left."""
    mine = {
        cell: [version for version in versions if version.start_ts == actor.start_ts]
        for cell, versions in histories.items()
    }
    left = {version for versions in mine.values() for version in versions}
    # What the server said is how it is, and what the caller was told, if anything.
    assert bool(left) == actor.committed, (
        f"{actor.mark}: the server said that it committed is {actor.committed}"
    )
    if actor.outcome != "unknown":
        assert actor.committed == (actor.outcome == "ok"), f"{actor.mark} was told {actor.outcome}"
    if left:
        # All or nothing, under one timestamp, each cell as it was written last.
        values = {
            cell: [version.value for version in versions] for cell, versions in mine.items() if versions
        }
        assert values == {cell: [value] for cell, value in actor.writes.items()}
        assert len({version.commit_ts for version in left}) == 1
    if actor.outcome == "ok":
        assert {version.commit_ts for version in left} == {actor.t.commit_timestamp}
    return left
