"""A two-phase transaction that stops at a chosen point, and those who meet what it left behind.

The transaction writes X, Y and Z, which lie in three tablets, deletes one of them and sends a notification. X
is its primary. A strong observer watches the cells, a weak one the notifications. How the two columns are
called makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple

import pytest

from percolator_core import (
    Cell,
    CommitUndetermined,
    Database,
    LockTimeout,
    TableDefinition,
    Transaction,
    TransactionConflict,
    Worker,
)
from percolator_core.admin.quarantine import Quarantine
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call
from percolator_core.store import Store
from percolator_core.store.packing import Command
from percolator_core.transaction.write_set import tags_and_cells
from tests.chains import chain_of, watch
from tests.servers.plain import Faults, commit_of, die, rows_apart, until

ROWS: Final = rows_apart(3)
X, Y, Z = ROWS
NEW: Final = {X: b"new", Y: b"new", Z: None}
TABLES: Final = (TableDefinition("t", 16, ("ping",)),)
Connect = Callable[..., Database]
Owner = Literal["dead", "expired", "live"]
Fate = Literal["open", "committed", "rolled back"]

TTL: Final[dict[str, float]] = {"dead": 60.0, "expired": 0.05, "live": 60.0}
"""Time to live of the locks, in seconds, by what becomes of their owner."""


class Interrupted:
    """A store: before the call of a script is made for the ``nth`` time something else happens."""

    run, run_all = Store.run, Store.run_all

    def __init__(self, db: Database, script: str, happens: Callable[[], object], nth: int = 1) -> None:
        self._store = db.store
        self._script = script
        self._happens = happens
        self._left = nth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def command(self, call: Call[Any]) -> Command:
        if call[0] == self._script:
            self._left -= 1
            if not self._left:
                self._happens()
        return self._store.command(call)


class Scene:
    """The cells with their old values, the client that will stop, and another one that goes on."""

    def __init__(
        self, connect: Connect, owner: Owner, *, observed: str = "v", notified: str = "ping"
    ) -> None:
        self.owner = owner
        self.column = observed
        self.holds_up = False
        """Whether nobody can get through, which is to be seen soon."""
        self.ttl = TTL[owner]
        self.other = connect(lock_wait=0.05 if owner == "live" else 20.0, lock_ttl=5.0)
        self.other.client.one_call_a_tablet = True
        self.runs: list[tuple[bytes, bytes | None]] = []
        self.pings: list[bytes] = []
        self.chain = chain_of(
            watch("look", self._look, f"t.{observed}"),
            watch("hear", self._hear, f"t.{notified}", mode="weak"),
            tables=(TableDefinition("t", 16, (notified,)),),
        )
        self.chain.create_tables(self.other)
        self.write_all(b"old")
        self.work()
        assert sorted(self.runs) == sorted((row, b"old") for row in ROWS)
        self.runs.clear()
        # Only the point where it loses the store needs the short patience.
        self.writer = connect(lock_ttl=self.ttl, patience=0.3)
        self.writer.client.one_call_a_tablet = True
        t = self.writer.begin()
        self.start_ts = t.start_timestamp
        t.set("t", X, observed, b"new")
        t.set("t", Y, observed, b"new")
        t.notify("t", Y, notified)
        t.delete("t", Z, observed)
        self.commit = commit_of(t)
        self.commit_ts = 0

    def _look(self, t: Transaction, cell: Cell) -> None:
        self.runs.append((cell.row, t.get("t", cell.row, self.column)))

    def _hear(self, t: Transaction, cell: Cell) -> None:
        self.pings.append(cell.row)

    # What the client that stops does.

    def prewrite(self, *numbers: int) -> None:
        """Send the prewrites of these calls, in this order; that of the primary is number 0."""
        for number in numbers:
            role: Literal["primary", "secondaries"] = "secondaries" if number else "primary"
            reply = self.writer.store.run(self.commit.prewrite_call(self.commit.calls[number], role))
            assert reply[0] == "prewritten"

    def roll_back(self, *numbers: int) -> None:
        """Send the client's own rollback of these calls."""
        for number in numbers:
            tags, cells = tags_and_cells(self.commit.calls[number], values=False)
            self.writer.store.run(calls.rollback(tags, self.start_ts, cells))

    def finish(self) -> None:
        """Do all that is left, or all over again."""
        self.commit_ts = self.commit_ts or self.commit.prewrite()
        assert self.commit.commit_primary(self.commit_ts) == self.commit_ts
        self.finish_secondaries()

    def finish_secondaries(self) -> None:
        self.commit.commit_secondaries(self.commit_ts)
        self.writer.store.one((b"PING",))  # what goes before it on the connection is done

    def be_judged(self) -> None:
        """Somebody takes the client for dead and rolls its primary back, and stops there."""
        primary = self.commit.primary
        where = primary.tag, self.start_ts, primary.row, primary.column
        assert self.other.store.run(calls.resolve_primary(*where, "dead", 0, 0)).state == "rolled back"

    def stop(self) -> None:
        """The client stops here, and becomes what its owner's state says."""
        if self.owner == "dead":
            die(self.writer)

    # What the others see.

    def values(self) -> dict[bytes, bytes | None]:
        with self.other.transaction() as t:
            return {row: t.get("t", row, self.column) for row in (Y, Z, X)}

    def locks(self) -> int:
        """Locks in the rows themselves; each stands in the lock index, and nothing else does."""
        store, handle = self.other.store, self.other.catalog.table("t")
        count = 0
        for row in ROWS:
            fields = store.one((b"HKEYS", handle.tag(row) + b"r:" + row))
            count += sum(1 for field in fields if field[:1] in {b"l", b"n"})
        assert count == len(list(self.other.locks()))
        assert count == sum(store.one((b"ZCARD", tag + b"locks")) for tag in handle.tags)
        return count

    def versions(self) -> dict[bytes, tuple[bytes | None, int]]:
        """The versions that the transaction left, with their commit timestamps, by row."""
        found = {}
        for row in ROWS:
            for commit_ts, start_ts, value in self.other.history("t", row, self.column):
                if start_ts == self.start_ts:
                    found[row] = value, commit_ts
        return found

    def outcome(self) -> Fate:
        """What became of the transaction: all or nothing, and one commit timestamp."""
        found = self.versions()
        if not found:
            return "rolled back"
        assert {row: value for row, (value, _) in found.items()} == NEW
        assert len({commit_ts for _, commit_ts in found.values()}) == 1
        return "committed"

    def write_all(self, value: bytes) -> None:
        with self.other.transaction() as t:
            for row in ROWS:
                t.set("t", row, self.column, value)

    def work(self, seconds: float = 60) -> None:
        Worker(self.other, self.chain).run_until_idle(seconds)

    def marks(self) -> int:
        dirty = DirtyIndex(self.other.client, self.chain.observed)
        return sum(dirty.backlog().values()) + sum(Quarantine(self.other, self.chain).count().values())


class Point(NamedTuple):
    """Where the client stops. ``fate`` is what is decided by then, ``resume`` what it would do next."""

    reach: Callable[[Scene], object]
    fate: Fate
    resume: Callable[[Scene], object]


def _prewritten(scene: Scene) -> None:
    scene.commit_ts = scene.commit.prewrite()


def _committed(scene: Scene) -> None:
    _prewritten(scene)
    scene.commit.commit_primary(scene.commit_ts)


def _reply_lost(scene: Scene) -> None:
    _prewritten(scene)
    faults = Faults(scene.writer)
    faults.script("commit", "lose reply")
    faults.plan += [(b"connect", lambda: None)] * 1000
    with pytest.raises(CommitUndetermined):
        scene.commit.commit_primary(scene.commit_ts)
    faults.plan.clear()


def _judged(scene: Scene) -> None:
    _prewritten(scene)
    scene.be_judged()


def _judged_before_the_primary_was_written(scene: Scene) -> None:
    scene.prewrite(1, 2)
    scene.be_judged()


def _one_rolled_forward(scene: Scene) -> None:
    _committed(scene)
    call = scene.commit.commit_call(scene.commit.calls[1], scene.commit_ts, "secondaries")
    assert scene.writer.store.run(call) == ("committed", scene.commit_ts)


def _rolled_back(*numbers: int) -> Callable[[Scene], None]:
    def reach(scene: Scene) -> None:
        _prewritten(scene)
        scene.roll_back(*numbers)

    return reach


def _give_up(scene: Scene) -> None:
    scene.commit.roll_back()
    scene.writer.store.one((b"PING",))


POINTS: Final[dict[str, Point]] = {
    "first prewrite": Point(lambda scene: scene.prewrite(0), "open", Scene.finish),
    "middle prewrite": Point(lambda scene: scene.prewrite(0, 1), "open", Scene.finish),
    "first secondary": Point(lambda scene: scene.prewrite(2), "open", Scene.finish),
    "all but the primary": Point(lambda scene: scene.prewrite(2, 1), "open", Scene.finish),
    "last prewrite": Point(lambda scene: scene.prewrite(2, 1, 0), "open", Scene.finish),
    "before the primary": Point(_prewritten, "open", Scene.finish),
    "after the primary": Point(_committed, "committed", Scene.finish_secondaries),
    "reply lost": Point(_reply_lost, "committed", Scene.finish),
    "mid roll-forward": Point(_one_rolled_forward, "committed", Scene.finish_secondaries),
    "mid roll-back": Point(_judged, "rolled back", Scene.finish),
    "judged too early": Point(_judged_before_the_primary_was_written, "rolled back", Scene.finish),
    "own roll-back of the primary": Point(_rolled_back(0), "open", _give_up),
    "own roll-back of a secondary": Point(_rolled_back(1), "open", _give_up),
}


# Those who meet the locks. Each returns whether it got through; where it may not, nothing has happened.


def _by_reading(read: Callable[[Transaction, str], dict[bytes, bytes | None]]) -> Callable[[Scene], bool]:
    def meet(scene: Scene) -> bool:
        try:
            with scene.other.transaction() as t:
                seen = read(t, scene.column)
        except LockTimeout:
            return False
        committed = scene.outcome() == "committed"
        assert seen == (NEW if committed else dict.fromkeys(ROWS, b"old"))
        return True

    return meet


def _get(t: Transaction, column: str) -> dict[bytes, bytes | None]:
    return {row: t.get("t", row, column) for row in (Z, Y, X)}


def _get_row(t: Transaction, column: str) -> dict[bytes, bytes | None]:
    return {row: t.get_row("t", row).get(column) for row in (Y, Z, X)}


def _scan(t: Transaction, column: str) -> dict[bytes, bytes | None]:
    found = dict(t.scan("t", columns=[column]))
    return {row: found.get(row, {}).get(column) for row in ROWS}


def _write(scene: Scene) -> bool:
    def wrote() -> bool:
        try:
            scene.write_all(b"newer")
        except TransactionConflict as conflict:
            assert conflict.reason == "locked"  # noqa: PT017 - most of the time there is none
            scene.other.store.one((b"PING",))  # its own locks are rolled back, too
            return False
        return True

    if scene.owner == "live":
        return wrote()
    until(wrote)
    return True


def _resolve(scene: Scene) -> bool:
    def resolved() -> bool:
        return not scene.other.resolve_locks(timedelta(0)).live

    if scene.owner == "live":
        return resolved()
    until(resolved)
    assert scene.locks() == 0
    return True


def _observe(scene: Scene) -> bool:
    try:
        scene.work(0.15 if scene.holds_up else 60)
    except TimeoutError:
        return False
    return True


RESOLVERS: Final[dict[str, Callable[[Scene], bool]]] = {
    "get": _by_reading(_get),
    "get_row": _by_reading(_get_row),
    "scan": _by_reading(_scan),
    "writer": _write,
    "resolver": _resolve,
    "observer": _observe,
}
