"""A worker cut off in a run, or between its commit and the clearing of the mark: each change counts once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import pytest

from percolator_core import Cell, Chain, Database, LockTimeout, Transaction, TransactionConflict, Worker
from percolator_core.notifications.ack import acknowledge
from percolator_core.notifications.dirty import LEASE, DirtyIndex, Lease
from percolator_core.worker import Counts
from tests.chains import chain_of, watch
from tests.servers.plain import commit_of, die, rows_apart
from tests.transaction.crash import TABLES

CELL, TOTAL = rows_apart(2)
Connect = Callable[..., Database]


def count(t: Transaction, cell: Cell) -> None:
    """The observer: counts the changes that it is told of."""
    t.set("t", TOTAL, "n", b"%d" % (int(t.get("t", TOTAL, "n") or b"0") + 1))


class Run:
    """One run of one worker, to be stopped anywhere, and the database of another worker."""

    def __init__(self, connect: Connect, *, two_phase: bool, lease: float, lock_wait: float = 20) -> None:
        self.chain: Chain = chain_of(watch("count", count, "t.v"), tables=TABLES)
        self.other = connect(lock_wait=lock_wait)
        self.other.client.one_call_a_tablet = two_phase
        self.chain.create_tables(self.other)
        self.write()
        self.worker = connect(lock_ttl=60)
        self.worker.client.one_call_a_tablet = two_phase
        self.dirty = DirtyIndex(self.worker.client, self.chain.observed)
        [self.lease], _ = self.dirty.claim(1, lease)
        self.transaction = Transaction(self.worker.client)
        cell = acknowledge(self.transaction, self.lease, "strong")
        assert cell
        count(self.transaction, cell)

    def write(self) -> None:
        with self.other.transaction() as t:
            t.set("t", CELL, "v", b"changed")

    def total(self) -> bytes | None:
        return self.other.snapshot().get("t", TOTAL, "n")

    def work(self, seconds: float = 60) -> Counts:
        return Worker(self.other, self.chain).run_until_idle(seconds)

    def clear(self, lease: Lease) -> int:
        return self.worker.store.run(self.dirty.clear(lease, "strong", self.transaction.start_timestamp))

    def backlog(self) -> int:
        return sum(self.dirty.backlog().values())


@pytest.mark.parametrize("who", ["reader", "writer", "resolver", "observer"])
@pytest.mark.parametrize("lease", ["lease over", "lease held"])
def test_a_worker_stops_before_it_clears_the_mark(
    connect: Connect, who: str, lease: str, two_phase: bool
) -> None:
    run = Run(connect, two_phase=two_phase, lease=0.0 if lease == "lease over" else LEASE)
    run.transaction.commit()
    die(run.worker)
    assert run.total() == b"1"
    if who == "writer":
        run.write()
    elif who == "resolver":
        assert run.other.resolve_locks(timedelta(0)).rolled_back == 0
    elif who == "observer" and lease == "lease over":
        assert run.work().total().collapsed == 1
        assert run.backlog() == 0
    elif who == "observer":
        with pytest.raises(TimeoutError):
            run.work(0.1)
    assert run.total() == b"1"
    assert run.backlog() == (not (who == "observer" and lease == "lease over"))
    # The worker was only suspended: it clears the mark, unless there is a change that its run did not see.
    kept = who == "writer" or (who == "observer" and lease == "lease over")
    assert run.clear(run.lease) == (not kept)
    run.work()
    assert run.total() == (b"2" if who == "writer" else b"1")
    assert run.backlog() == 0
    assert list(run.other.locks()) == []


def meet(run: Run, who: str, *, committed: bool, waits: bool) -> None:
    """Let somebody meet what the stopped run left: he settles it, or has to wait for it."""
    if who == "reader":
        if waits:
            with pytest.raises(LockTimeout):
                run.total()
        else:
            assert run.total() == (b"1" if committed else None)
    elif who == "writer":
        run.write()  # the observed cell itself is not locked: it never waits for an observer
    elif who == "resolver":
        swept = run.other.resolve_locks(timedelta(0))
        assert (swept.committed, swept.rolled_back, swept.live) == (
            (1, 0, 0) if committed else (0, 0, 2) if waits else (0, 2, 0)
        )
    elif waits:
        with pytest.raises(TimeoutError):
            run.work(0.1)
    else:
        counts = run.work().total()
        assert (counts.ran, counts.collapsed) == ((0, 1) if committed else (1, 0))


@pytest.mark.parametrize("who", ["reader", "writer", "resolver", "observer"])
@pytest.mark.parametrize("owner", ["dead", "live"])
@pytest.mark.parametrize("point", ["prewritten", "primary committed"])
def test_a_worker_stops_in_its_commit(
    connect: Connect, point: str, owner: Literal["dead", "live"], who: str
) -> None:
    """The acknowledgement is the primary: it says whether the run happened."""
    run = Run(connect, two_phase=True, lease=0.0, lock_wait=0.02 if owner == "live" else 20)
    commit = commit_of(run.transaction)
    assert commit.primary.column.startswith(b"\xff")
    commit_ts = commit.prewrite()
    committed = point == "primary committed"
    if committed:
        commit.commit_primary(commit_ts)
    if owner == "dead":
        die(run.worker)
    waits = owner == "live" and not committed
    meet(run, who, committed=committed, waits=waits)
    # It was only suspended, and goes on; whoever lost is run again.
    if committed:
        commit.commit_secondaries(commit_ts)
    elif waits or who == "writer":  # whom no lock was in the way: nobody has judged it
        commit.commit_secondaries(commit.commit_primary(commit_ts))
    else:
        with pytest.raises(TransactionConflict):
            commit.commit_primary(commit_ts)
    run.worker.store.one((b"PING",))
    run.work()
    assert run.total() == (b"2" if who == "writer" else b"1")
    assert run.backlog() == 0
    assert list(run.other.locks()) == []


def test_two_runs_for_one_change_collide(connect: Connect, two_phase: bool) -> None:
    """They have nothing in common but the acknowledgement."""
    run = Run(connect, two_phase=two_phase, lease=0.0)
    twin = Transaction(run.other.client)
    [lease], _ = DirtyIndex(run.other.client, run.chain.observed).claim(1, 0.0)
    assert acknowledge(twin, lease, "strong")
    twin.set("t", b"elsewhere", "n", b"1")
    run.transaction.commit()
    with pytest.raises(TransactionConflict):
        twin.commit()
    assert run.other.snapshot().get("t", b"elsewhere", "n") is None


def test_a_change_that_the_run_did_not_see_is_not_acknowledged_by_it(
    connect: Connect, two_phase: bool
) -> None:
    """It was committed between the run's snapshot and the run's commit."""
    run = Run(connect, two_phase=two_phase, lease=0.0)
    run.write()
    run.transaction.commit()
    assert not run.clear(run.lease)
    run.work()
    assert run.total() == b"2"
