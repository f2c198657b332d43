"""Any order of the public operations, by several clients at once, against a model of a multi-version store.

The model is a list of versions for each cell. It says what every read returns and which commits must be
refused. Rows, columns and the table have names that are awkward to encode. HYPOTHESIS_PROFILE=long runs long.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    rule,
    run_state_machine_as_test,
)

from percolator_core import Snapshot, SnapshotTooOld, Transaction, TransactionConflict
from percolator_core.layout.keys import decode_mark
from percolator_core.scripts import calls
from percolator_torture.faults.stepper import Stepper
from percolator_torture.faults.store import FaultyDatabase, connect
from tests.servers.plain import Server, die, start_if_fixed

settings.register_profile(
    "quick", derandomize=True, max_examples=200, stateful_step_count=50, deadline=None, print_blob=True
)
settings.register_profile("long", max_examples=5000, stateful_step_count=100, deadline=None, print_blob=True)
PROFILE = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

TABLE = "t{1}:*\n"
ROWS = [b"", b"\0", b"a", b"a\0", b"a\xff", b"{b}", b"}r:\n", b"\xff\xff"]
COLUMNS = ["a", "a\0", "{}:\n*", "\N{SNOWMAN}\U0010ffff"]
PING = "ping\0"
OBSERVER = "watcher"
MOST_DEAD = 8
"""Dead transactions that a commit clears out of its way before it gives up, `commit._LOCK_ROUNDS`."""

Key = tuple[bytes, str]
Place = tuple[int, int]
rows = st.integers(0, 2)
columns = st.integers(0, 1)
places = st.tuples(rows, columns)
values = st.none() | st.sampled_from([b"", b"1", b"2", b"\0\xff" * 3])
Changes = list[tuple[Place, bytes | None]]
changes = st.lists(st.tuples(places, values), max_size=4)
seldom = st.integers(0, 3).map(lambda number: number == 0)
bounds = st.none() | st.sampled_from([*ROWS, b"a\0\0", b"b", b"\xff"])
clients = st.integers(0, 1)

ONCE_DECIDED = 1000
deaths = st.integers(0, 24) | st.just(ONCE_DECIDED)
"""At which stop of its commit a client dies: beside an operation, or right behind the commit point."""


@dataclass(frozen=True)
class Stored:
    """A committed version in the model."""

    commit_ts: int
    start_ts: int
    value: bytes | None


@dataclass(eq=False)
class View:
    """Something to read from. ``start`` is None until the first read fixes it."""

    client: int
    reader: Snapshot
    start: int | None = None
    pinned: bool = False
    gone: bool = False
    writes: dict[Key, bytes | None] = field(default_factory=dict)
    pings: set[bytes] = field(default_factory=set)

    @property
    def t(self) -> Transaction:
        assert isinstance(self.reader, Transaction)
        return self.reader


class Machine(RuleBasedStateMachine):
    """Two clients, one that commits in one call and one that commits in two phases, and the model."""

    url: str
    transactions = Bundle("transactions")
    snapshots = Bundle("snapshots")
    views = st.one_of(transactions, snapshots)

    @initialize(
        rows=st.lists(st.sampled_from(ROWS), min_size=3, max_size=3, unique=True),
        columns=st.lists(st.sampled_from(COLUMNS), min_size=2, max_size=2, unique=True),
    )
    def start(self, rows: list[bytes], columns: list[str]) -> None:
        # Few cells, so that transactions meet in them.
        self.rows, self.columns = rows, columns
        self.namespace = f"model {uuid.uuid4().hex}"
        self.clients = [self.connect(False), self.connect(True)]
        self.clients[0].create_table(TABLE, tablets=3, notify_only=[PING])
        self.observe()
        self.versions: dict[Key, list[Stored]] = {}
        """All that were ever committed."""
        self.kept: dict[Key, list[Stored]] = {}
        """Those that garbage collection has left."""
        self.newest = 0
        """No timestamp given out so far lies above it."""
        self.safe = 0
        self.open: list[View] = []
        self.stranded: list[set[Key]] = []
        self.marked: set[tuple[bytes, bytes]] = set()
        self.maybe_marked: set[tuple[bytes, bytes]] = set()

    def connect(self, two_phase: bool) -> FaultyDatabase:
        db = connect(self.url, self.namespace, lock_wait=5)
        db.client.one_call_a_tablet = two_phase
        return db

    def observe(self) -> None:
        """As the activation of a chain does: marks are set for one observer of two columns."""
        store, handle = self.clients[0].store, self.clients[0].catalog.table(TABLE)
        for tag in handle.tags:
            watched = (PING, OBSERVER, self.columns[0], OBSERVER)
            store.run(calls.observe(tag, "replace", handle.version, 0, (), watched))
        store.one((b"HSET", store.keyspace.chain, b"observers", OBSERVER))

    # Beginning.

    @rule(target=transactions, client=clients, late=st.booleans(), fixed=st.booleans(), changes=changes)
    def begin(self, client: int, late: bool, fixed: bool, changes: Changes) -> View:
        db = self.clients[client]
        token = self.newest if late and self.newest else None
        view = self.opened(View(client, db.begin(after=token)))
        if fixed:
            self.fixed(view)
        self.write(view, changes)
        return view

    @rule(target=snapshots, client=clients, back=st.integers(0, 6), pinned=st.booleans())
    def snapshot(self, client: int, back: int, pinned: bool) -> View:
        """Of now, or as of one of the commits so far."""
        db = self.clients[client]
        times = sorted({version.commit_ts for versions in self.versions.values() for version in versions})
        at = times[-back] if 0 < back <= len(times) else None
        view = self.opened(View(client, db.snapshot(at)))
        if at is None:
            self.fixed(view)
        view.start = view.reader.start_timestamp
        if pinned:
            view.reader.__enter__()
            view.pinned = True
        return view

    @rule(view=snapshots)
    def unpin(self, view: View) -> None:
        if view.pinned and not view.gone:
            view.reader.__exit__(None, None, None)
            view.pinned = False

    def key(self, place: Place) -> Key:
        return self.rows[place[0]], self.columns[place[1]]

    def named(self, chosen: list[int] | None) -> list[str] | None:
        return None if chosen is None else [self.columns[number] for number in chosen]

    def opened(self, view: View) -> View:
        self.open.append(view)
        return view

    # Reading.

    @rule(view=views, place=places)
    def get(self, view: View, place: Place) -> None:
        key = self.key(place)
        if not view.gone:
            self.read(view, lambda: view.reader.get(TABLE, *key), lambda: self.visible(view, key))

    @rule(view=views, wanted=st.lists(places, max_size=6))
    def get_many(self, view: View, wanted: list[Place]) -> None:
        asked = [self.key(place) for place in wanted]
        if not view.gone:
            self.read(
                view,
                lambda: view.reader.get_many([(TABLE, *key) for key in asked]),
                lambda: [self.visible(view, key) for key in asked],
            )

    @rule(view=views, number=rows, chosen=st.none() | st.lists(columns, min_size=1, max_size=3))
    def get_row(self, view: View, number: int, chosen: list[int] | None) -> None:
        if view.gone:
            return
        row, wanted = self.rows[number], self.named(chosen)
        self.read(
            view,
            lambda: view.reader.get_row(TABLE, row, wanted),
            lambda: dict(self.rows_of(view, wanted)).get(row, {}),
        )

    @rule(
        view=views,
        start=bounds,
        stop=bounds,
        prefix=st.none() | st.sampled_from([b"", b"a", b"\xff"]),
        chosen=st.none() | st.lists(columns, min_size=1, max_size=3),
        limit=st.none() | st.integers(0, 4),
        reverse=st.booleans(),
    )
    def scan(  # noqa: PLR0917
        self,
        view: View,
        start: bytes | None,
        stop: bytes | None,
        prefix: bytes | None,
        chosen: list[int] | None,
        limit: int | None,
        reverse: bool,
    ) -> None:
        if view.gone:
            return
        wanted = self.named(chosen)

        def inside(row: bytes) -> bool:
            return row >= (start or b"") and (stop is None or row < stop) and row.startswith(prefix or b"")

        empty = limit == 0 or not self.is_range(start, stop, prefix)
        self.read(
            view,
            lambda: list(view.reader.scan(TABLE, start, stop, prefix, wanted, limit, reverse)),
            lambda: sorted(
                ((row, cells) for row, cells in self.rows_of(view, wanted) if inside(row)), reverse=reverse
            )[:limit],
            refused=not empty,
        )

    @staticmethod
    def is_range(start: bytes | None, stop: bytes | None, prefix: bytes | None) -> bool:
        """Whether a row could lie within the bounds."""
        low, high = max(start or b"", prefix or b""), stop
        if prefix:
            above = prefix[:-1] + bytes([prefix[-1] + 1]) if prefix[-1] < 255 else None
            high = min(filter(None, (high, above)), default=None) if stop != b"" else stop
        return high is None or low < high

    def read(
        self, view: View, actual: Callable[[], Any], expected: Callable[[], Any], *, refused: bool = False
    ) -> None:
        """A read returns what the model says; below the safe point it may be ``refused``, or must be.

        It must where it always asks a script. A whole row, as a single cell, is not refused while the
        snapshot is young and nothing newer is in the row: what is read then is right.
        """
        before = view.start
        too_old = before is not None and before < self.safe
        try:
            found = actual()
        except SnapshotTooOld:
            assert too_old
            return
        assert not (too_old and refused)
        if before is None and start_if_fixed(view.reader) is not None:
            self.fixed(view)
        assert found == expected()

    def fixed(self, view: View) -> None:
        """A snapshot is fixed now, and sees everything that was committed before."""
        view.start = view.reader.start_timestamp
        assert view.start > self.newest
        self.newest = view.start

    def visible(self, view: View, key: Key) -> bytes | None:
        if key in view.writes:
            return view.writes[key]
        start = view.start
        assert start is not None
        versions = [version for version in self.versions.get(key, ()) if version.commit_ts <= start]
        return versions[-1].value if versions else None

    def rows_of(self, view: View, wanted: list[str] | None) -> list[tuple[bytes, dict[str, bytes]]]:
        found: dict[bytes, dict[str, bytes]] = {}
        for row, column in sorted({*self.versions, *view.writes}) if view.start is not None else ():
            value = self.visible(view, (row, column))
            if value is not None and (wanted is None or column in wanted):
                found.setdefault(row, {})[column] = value
        return sorted(found.items())

    @rule(client=clients, place=places, limit=st.integers(1, 5))
    def history(self, client: int, place: Place, limit: int) -> None:
        key = self.key(place)
        found = self.clients[client].history(TABLE, *key, limit=limit)
        assert [Stored(*version) for version in found] == self.kept.get(key, [])[::-1][:limit]

    # Writing.

    @rule(view=transactions, changes=changes)
    def write(self, view: View, changes: Changes) -> None:
        if view.gone:
            return
        for place, value in changes:
            key = self.key(place)
            if value is None:
                view.t.delete(TABLE, *key)
            else:
                view.t.set(TABLE, *key, value)
            view.writes[key] = value

    @rule(client=clients, fixed=st.booleans(), changes=changes, stops=st.none() | deaths)
    def write_at_once(self, client: int, fixed: bool, changes: Changes, stops: int | None) -> None:
        """A whole transaction, or what a crash leaves of it."""
        view = self.begin(client, False, fixed, changes)
        if stops is None:
            self.commit(view)
        else:
            self.crash(view, stops)

    @rule(view=transactions, number=rows)
    def delete_row(self, view: View, number: int) -> None:
        if view.gone:
            return
        row = self.rows[number]

        def gone() -> None:
            for (there, column), _ in list(self.cells_of(view)):
                if there == row:
                    view.writes[there, column] = None

        self.read(view, lambda: view.t.delete_row(TABLE, row), gone)

    def cells_of(self, view: View) -> list[tuple[Key, bytes]]:
        return [
            ((row, column), value)
            for row, cells in self.rows_of(view, None)
            for column, value in cells.items()
        ]

    @rule(view=transactions, number=rows)
    def notify(self, view: View, number: int) -> None:
        row = self.rows[number]
        if not view.gone:
            view.t.notify(TABLE, row, PING)
            view.pings.add(row)

    # Ending.

    @rule(view=consumes(transactions))
    def commit(self, view: View) -> None:
        if not view.gone:
            expected = self.expected(view)
            self.ended(view, expected, view.t.commit)

    @rule(view=transactions, now=seldom)
    def rollback(self, view: View, now: bool) -> None:
        if now and not view.gone:
            view.t.rollback()
            self.close_view(view)

    @rule(view=consumes(transactions), stops=deaths)
    def crash(self, view: View, stops: int) -> None:
        """The client dies in its commit."""
        if view.gone:
            return
        expected = self.expected(view)
        stepper = Stepper(view.t.commit, after=True)
        commit_ts = passed = 0
        while passed < stops and not (commit_ts and stops == ONCE_DECIDED):
            passed += 1
            point = stepper.step()
            if point is None:
                self.ended(view, expected, stepper.result)
                return
            if point.when == "after" and point.operation is not None and point.operation.commands:
                commit_ts = commit_ts or decisive(point.operation.commands[0], point.replies[0])
        note(f"dies at {stepper.at}")
        stepper.abandon()
        db = self.clients[view.client]
        die(db)
        db.client.lives.clear()  # whatever else this client does is the work of another process
        for other in self.open:
            other.pinned = other.pinned and other.client != view.client
        assert not (commit_ts and expected)
        if commit_ts:
            self.apply(view, commit_ts)
        elif view.writes:
            self.stranded.append({*view.writes})
        self.maybe_mark(view, alone=not view.writes)
        self.close_view(view)

    def expected(self, view: View) -> str:
        """Why a commit must be refused; empty if it must not."""
        if not view.writes or view.start is None:
            return ""  # nothing to conflict, or ordered at its commit
        if view.start <= self.safe:
            return "too old"
        if any(
            version.commit_ts > view.start for key in view.writes for version in self.versions.get(key, ())
        ):
            return "newer commit"
        return ""

    def ended(self, view: View, expected: str, commit: Callable[[], int]) -> None:
        try:
            commit_ts = commit()
        except SnapshotTooOld:
            refusal = "too old"
        except TransactionConflict as conflict:
            refusal = conflict.reason
        else:
            refusal = ""
            assert commit_ts == view.t.commit_timestamp
            if view.writes or view.pings:
                assert commit_ts > self.newest
                self.apply(view, commit_ts)
            else:
                # One that has read nothing may be of any time that its client has seen.
                assert commit_ts == (view.start or self.clients[view.client].client.oracle.seen)
                self.newest = max(self.newest, commit_ts)
        in_the_way = sum(1 for cells in self.stranded if cells & {*view.writes})
        assert refusal == expected or (refusal == "locked" and in_the_way >= MOST_DEAD)
        # What nobody waits for has reached the server.
        self.clients[view.client].store.one((b"PING",))
        self.maybe_mark(view, alone=False)
        self.close_view(view)

    def apply(self, view: View, commit_ts: int) -> None:
        self.newest = max(self.newest, commit_ts)
        if view.writes:
            start_ts = view.t.start_timestamp
            assert view.start is None or view.start == start_ts
            assert start_ts < commit_ts
            for key, value in view.writes.items():
                for versions in (self.versions, self.kept):
                    versions.setdefault(key, []).append(Stored(commit_ts, start_ts, value))
        self.marked |= {(PING.encode(), row) for row in view.pings}
        self.marked |= self.marks_of(view)

    def maybe_mark(self, view: View, *, alone: bool) -> None:
        """A mark of data may prove idle; notifications alone are set one by one."""
        self.maybe_marked |= self.marks_of(view)
        if alone:
            self.maybe_marked |= {(PING.encode(), row) for row in view.pings}

    def marks_of(self, view: View) -> set[tuple[bytes, bytes]]:
        observed = self.columns[0]
        return {(observed.encode(), row) for row, column in view.writes if column == observed}

    def close_view(self, view: View) -> None:
        view.gone = True
        self.open.remove(view)

    # Cleaning up.

    @rule(client=clients)
    def resolve_locks(self, client: int) -> None:
        self.clients[client].resolve_locks(timedelta(0))
        self.stranded.clear()
        assert list(self.clients[client].locks()) == []
        self.check_marks()

    def check_marks(self) -> None:
        store = self.clients[0].store
        tags = self.clients[0].catalog.table(TABLE).tags
        found = store.call(*[(b"ZRANGE", tag + b"dirty:" + OBSERVER.encode(), 0, -1) for tag in tags])
        marks = {decode_mark(mark) for members in found for mark in members}
        assert self.marked <= marks <= self.marked | self.maybe_marked

    @rule(client=clients, now=seldom)
    def collect_garbage(self, client: int, now: bool) -> None:
        if not now:
            return
        collected = self.clients[client].collect_garbage(keep=timedelta(0))
        pins = [view.start for view in self.open if view.pinned and view.start is not None]
        # An earlier collection may have gone further; versions go up to what this one was allowed.
        allowed = min(pins) - 1 if pins else collected.safe_point
        assert collected.safe_point == max(allowed, self.safe)
        assert pins or collected.safe_point > self.newest
        self.newest = max(self.newest, collected.safe_point)
        self.safe = max(self.safe, collected.safe_point)
        self.stranded.clear()
        for (row, column), versions in self.kept.items():
            marked = (column.encode(), row) in self.marked
            self.kept[row, column] = left_by_collection(versions, allowed, marked=marked)

    @rule(client=clients, now=seldom)
    def reconnect(self, client: int, now: bool) -> None:
        if not now:
            return
        self.clients[client].close()
        self.clients[client] = self.connect(client == 1)
        for view in [view for view in self.open if view.client == client]:
            self.close_view(view)

    @rule(now=seldom)
    def flush_scripts(self, now: bool) -> None:
        if now:
            self.clients[0].store.one((b"SCRIPT", b"FLUSH"))

    def teardown(self) -> None:
        db = self.clients[0]
        try:
            view = self.opened(View(0, db.snapshot()))
            self.fixed(view)
            assert list(view.reader.scan(TABLE)) == self.rows_of(view, None)
            for client in self.clients:
                for key in self.kept:
                    found = [Stored(*version) for version in client.history(TABLE, *key)]
                    assert found == self.kept[key][::-1]
            self.resolve_locks(0)
        finally:
            for client in self.clients:
                client.close()


def decisive(command: Any, reply: Any) -> int:
    """The commit timestamp if the command was the commit point, else 0."""
    if isinstance(reply, list) and reply[0] == b"committed" and ("both" in command or "primary" in command):
        return int(reply[1])
    return 0


def left_by_collection(versions: list[Stored], safe: int, *, marked: bool) -> list[Stored]:
    """What a snapshot at or above the safe point can see, and newest deletions not yet observed."""
    below = [version for version in versions if version.commit_ts <= safe]
    above = [version for version in versions if version.commit_ts > safe]
    if below and (below[-1].value is not None or (marked and not above)):
        return [below[-1], *above]
    return above


@pytest.mark.slow
@pytest.mark.timeout(600)  # when it fails, to find the shortest example takes minutes
def test_against_the_model(server: Server) -> None:
    class Bound(Machine):
        url = server.unix

    run_state_machine_as_test(Bound, settings=PROFILE)
