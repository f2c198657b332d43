"""Many open transactions in any order against a multi-version model, with crashes and clean-up in between."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import percolator_core as percolator
from percolator_core import Database, Transaction, TransactionConflict
from tests.servers.plain import Server, commit_of, die

ROWS = [b"a", b"b", b"c", b"d"]
COLUMNS = ["x", "y"]
rows, columns, slots = st.sampled_from(ROWS), st.sampled_from(COLUMNS), st.integers(0, 3)
Key = tuple[bytes, str]


class Open:
    """An open transaction of a client, and what the model says it sees."""

    def __init__(self, which: int, t: Transaction, view: dict[Key, bytes], seen: int) -> None:
        self.which, self.t, self.view, self.seen = which, t, dict(view), seen
        self.writes: dict[Key, bytes | None] = {}


class Machine(RuleBasedStateMachine):
    """The model: the committed state, and when each cell was last committed."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        namespace = f"model {uuid.uuid4().hex}"
        self.clients = [percolator.connect(self.url, namespace, lock_wait=2) for _ in range(2)]
        self.clients[1].client.one_call_a_tablet = True
        self.clients[0].create_table("t")
        self.committed: dict[Key, bytes] = {}
        self.changed: dict[Key, int] = {}
        self.clock = 0
        self.open: dict[int, Open] = {}

    @rule(slot=slots, which=st.integers(0, 1))
    def begin(self, slot: int, which: int) -> None:
        t = self.clients[which].begin()
        assert t.start_timestamp
        self.open[slot] = Open(which, t, self.committed, self.clock)

    @rule(slot=slots, row=rows, column=columns)
    def get(self, slot: int, row: bytes, column: str) -> None:
        if found := self.open.get(slot):
            assert found.t.get("t", row, column) == found.view.get((row, column))

    @rule(slot=slots, row=rows, column=columns, value=st.none() | st.binary(max_size=2))
    def write(self, slot: int, row: bytes, column: str, value: bytes | None) -> None:
        if found := self.open.get(slot):
            found.writes[row, column] = value
            if value is None:
                found.t.delete("t", row, column)
                found.view.pop((row, column), None)
            else:
                found.t.set("t", row, column, value)
                found.view[row, column] = value

    @rule(slot=slots, reverse=st.booleans())
    def scan(self, slot: int, reverse: bool) -> None:
        if found := self.open.get(slot):
            assert list(found.t.scan("t", reverse=reverse)) == as_rows(found.view, reverse)

    @rule(slot=slots)
    def commit(self, slot: int) -> None:
        if found := self.open.pop(slot, None):
            if self.conflicts(found):
                with pytest.raises(TransactionConflict):
                    found.t.commit()
            else:
                found.t.commit()
                self.apply(found)

    @rule(slot=slots)
    def rollback(self, slot: int) -> None:
        if found := self.open.pop(slot, None):
            found.t.rollback()

    @precondition(lambda self: self.open)
    @rule(slot=slots, after_primary=st.booleans())
    def crash(self, slot: int, after_primary: bool) -> None:
        """The client of a transaction dies in the middle of its commit."""
        found = self.open.get(slot)
        if not found or not found.writes or found.which != 1:
            return
        del self.open[slot]
        commit = commit_of(found.t)
        if self.conflicts(found):
            with pytest.raises(TransactionConflict):
                commit.prewrite()
            return
        commit_ts = commit.prewrite()
        if after_primary:
            commit.commit_primary(commit_ts)
            self.apply(found)
        die(self.clients[1])
        self.clients[1].client.lives.clear()

    @rule(which=st.integers(0, 1))
    def resolve(self, which: int) -> None:
        self.clients[which].resolve_locks(timedelta(0))

    @rule()
    def flush_scripts(self) -> None:
        self.clients[0].store.one((b"SCRIPT", b"FLUSH"))

    @invariant()
    def newest_is_the_models(self) -> None:
        client: Database = self.clients[self.clock % 2]
        if not self.open:
            assert list(client.snapshot().scan("t")) == as_rows(self.committed, False)

    def teardown(self) -> None:
        assert list(self.clients[0].snapshot().scan("t")) == as_rows(self.committed, False)
        for client in self.clients:
            client.close()

    def conflicts(self, found: Open) -> bool:
        return any(self.changed.get(key, 0) > found.seen for key in found.writes)

    def apply(self, found: Open) -> None:
        self.clock += 1
        for key, value in found.writes.items():
            self.changed[key] = self.clock
            if value is None:
                self.committed.pop(key, None)
            else:
                self.committed[key] = value


def as_rows(view: dict[Key, bytes], reverse: bool) -> list[tuple[bytes, dict[str, Any]]]:
    found: dict[bytes, dict[str, Any]] = {}
    for (row, column), value in view.items():
        found.setdefault(row, {})[column] = value
    return sorted(found.items(), key=lambda one: one[0], reverse=reverse)


def test_against_the_model(server: Server) -> None:
    class Bound(Machine):
        url = server.unix

    quick = settings(
        max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Bound, settings=quick)
