"""Workers of two chains beside each other, while one takes the place of the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from percolator_core import ConfigurationError, Worker
from percolator_core.notifications import activation
from percolator_core.notifications.activation import Registration, activate, active, live_workers
from tests.chains import Seen, chain_of, dirty_of, put, running, watch
from tests.servers.plain import PATIENCE, Faults, die, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Chain, Database

    Connect = Callable[..., Database]


def test_another_chain_is_refused_unless_it_is_a_rolling_start(connect: Connect) -> None:
    db = connect()
    old, new = Seen(), Seen()
    before, after = chain_of(watch("old", old, "docs.text")), chain_of(watch("new", new, "docs.text"))
    with running(db, before):
        with pytest.raises(ConfigurationError, match="rolling"):
            Worker(connect(), after).run_until_idle(PATIENCE)
        with running(connect(), after, rolling=True):
            put(db, "a", b"1")
            until(lambda: old.rows == [b"a"] and new.rows == [b"a"])


def test_the_old_workers_go_on_until_they_are_stopped(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.2)
    db = connect()
    old, new, both = Seen(), Seen(), Seen()
    before = chain_of(watch("old", old, "docs.text"), watch("both", both, "docs.title"))
    after = chain_of(watch("new", new, "docs.text"), watch("both", both, "docs.title"))
    with running(connect(), before), running(connect(), after, rolling=True):
        for number in range(5):
            put(db, f"{number}", b"1")
            put(db, f"{number}", b"1", column="title")
            # Both look several times in between whether they may go on.
            until(lambda: len(new.rows) == len(old.rows) == len(both.rows) == number + 1, 10)  # noqa: B023 - at once
        assert active(db.client).beside == {before.digest}
    # The worker of the new chain was stopped first: the old one went on.
    assert active(db.client).allows(before.digest)


def test_the_roll_ends_with_the_last_old_worker(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.2)
    db = connect()
    old, new = Seen(), Seen()
    before, after = chain_of(watch("old", old, "docs.text")), chain_of(watch("new", new, "docs.text"))
    worker = Worker(connect(), before)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: live_workers(db) and active(db.client).digest == before.digest)
    with running(connect(), after, rolling=True):
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        until(lambda: not active(db.client).beside)
        assert db.active_observers() == {"new"}
        put(db, "a", b"1")
        until(lambda: new.rows == [b"a"])
        # Nobody is left to observe it, so nobody leaves a mark for it.
        assert dirty_of(db, before).backlog() == {"old": 0}
        with pytest.raises(ConfigurationError, match="another set"):
            Worker(connect(), before).run_until_idle(PATIENCE)


def test_a_mark_that_only_the_other_chain_wants_is_left_to_it(connect: Connect) -> None:
    """An observer of the same name watches another column in the other chain: its mark is not dropped."""
    db = connect()
    old, new = Seen(), Seen()
    before, after = chain_of(watch("it", old, "docs.text")), chain_of(watch("it", new, "docs.title"))
    with running(connect(), before), running(connect(), after, rolling=True):
        for number in range(20):
            put(db, f"{number}", b"1")
            put(db, f"{number}", b"1", column="title")
        until(lambda: len(old.rows) == len(new.rows) == 20, 10)
        assert sorted(old.rows) == sorted(new.rows)
    assert dirty_of(db, before).backlog() == {"it": 0}


def test_a_rolling_start_alone_is_an_ordinary_one(db: Database) -> None:
    before, after = chain_of(watch("old", Seen(), "docs.text")), chain_of(watch("new", Seen(), "docs.text"))
    before.create_tables(db)
    put(db, "a", b"1")
    assert Worker(db, after, rolling=True).run_until_idle(PATIENCE).ran == 0
    assert active(db.client) == (after.digest, frozenset())
    assert db.active_observers() == {"new"}
    assert dirty_of(db, before).backlog() == {"old": 0}


def test_a_rolling_start_that_comes_while_another_one_ends_stops_nobody(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.1)
    refused: list[str] = []

    def activate(*arguments: object) -> None:
        refused.append("by a worker that was not there a moment before")
        raise ConfigurationError(refused[-1])

    monkeypatch.setattr("percolator_core.worker.housekeeping.activate", activate)
    db, new = connect(), Seen()
    before, after = chain_of(watch("old", Seen(), "docs.text")), chain_of(watch("new", new, "docs.text"))
    worker = Worker(connect(), before)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: live_workers(db) and active(db.client).digest == before.digest)
    with running(connect(), after, rolling=True):
        worker.stop()
        thread.join(PATIENCE)
        until(lambda: len(refused) >= 2)
        put(db, "a", b"1")
        until(lambda: new.rows == [b"a"])


def test_a_rolling_start_waits_for_an_activation_that_saw_nobody(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else that one would replace what this one adds, and no mark were left for the new observer."""
    old_db, new_db = connect(), connect()
    before, after = (
        chain_of(watch("old", Seen(), "docs.text")),
        chain_of(watch("old", Seen(), "docs.text"), watch("new", Seen(), "docs.text")),
    )
    before.create_tables(old_db)
    registrations = [Registration(old_db, before.digest, "here")]
    starts: list[threading.Thread] = []

    def start() -> None:
        registrations.append(Registration(new_db, after.digest, "there"))
        after.create_tables(new_db, rolling=True)

    def looked(db: Database) -> object:
        found = live_workers(db)
        if not starts:
            starts.append(threading.Thread(target=start, daemon=True))
            starts[0].start()
            # As far as it gets meanwhile: to its end, but for the lock.
            starts[0].join(0.3)
        return found

    monkeypatch.setattr("percolator_core.notifications.activation.live_workers", looked)
    activate(old_db, before.observed, before.digest)
    starts[0].join(PATIENCE)
    assert not starts[0].is_alive()
    assert active(old_db.client) == (after.digest, frozenset({before.digest}))
    put(old_db, "a", b"1")
    assert dirty_of(old_db, after).backlog() == {"old": 1, "new": 1}


def test_an_activation_whose_process_died_holds_up_nobody_for_long(db: Database) -> None:
    chain = chain_of(watch("it", Seen(), "docs.text"))
    key = db.store.keyspace.activating
    db.store.one((b"SET", key, b"somebody", b"PX", 200))
    chain.create_tables(db)
    assert db.active_observers() == {"it"}
    # It was waited for, and the next one has nothing to wait for.
    assert db.store.one((b"EXISTS", key)) == 0


def test_an_activation_that_took_too_long_looks_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found no worker of another chain, then waited for a change; meanwhile another one came."""
    slow_db, quick_db = connect(), connect()
    slow, quick = chain_of(watch("slow", Seen(), "docs.text")), chain_of(watch("quick", Seen(), "docs.text"))
    quick.create_tables(slow_db)
    entries = activation.settled_entries
    overtakers: list[Registration] = []

    def waits(db: Database) -> object:
        if not overtakers:
            quick_db.store.one((b"DEL", quick_db.store.keyspace.activating))  # as if it had expired
            overtakers.append(Registration(quick_db, quick.digest, "there"))
            activate(quick_db, quick.observed, quick.digest)
        return entries(db)

    monkeypatch.setattr(activation, "settled_entries", waits)
    with pytest.raises(ConfigurationError, match="another set of observers is running"):
        activate(slow_db, slow.observed, slow.digest)
    assert active(slow_db.client) == (quick.digest, frozenset())
    put(slow_db, "a", b"1")
    assert dirty_of(slow_db, quick).backlog() == {"quick": 1}


@pytest.mark.parametrize("how", ["is late", "is lost and sent again"])
@pytest.mark.parametrize(
    ("script", "before"), [("record_chain", 0), ("record_chain", 1), ("observe", 0), ("record_chain", 2)]
)
def test_a_late_request_of_an_activation_takes_nothing_back(
    connect: Connect, script: str, before: int, how: str
) -> None:
    """Its process was suspended, or its connection broke, and another chain was activated meanwhile."""
    slow_db, quick_db = connect(), connect()
    slow, quick = chain_of(watch("slow", Seen(), "docs.text")), chain_of(watch("quick", Seen(), "docs.text"))
    slow.create_tables(slow_db)
    faults = Faults(slow_db)

    def overtake() -> str | None:
        quick_db.store.one((b"DEL", quick_db.store.keyspace.activating))  # as if it had expired
        Registration(quick_db, quick.digest, "there")
        quick.create_tables(quick_db)
        return None if how == "is late" else "lose request"

    faults.script(script, lambda: None, before)
    faults.script(script, overtake)
    with pytest.raises(ConfigurationError, match="another set of observers is running"):
        slow.create_tables(slow_db)
    assert faults.plan == []
    assert active(quick_db.client) == (quick.digest, frozenset())
    assert quick_db.client.observed_columns() == {"docs": {"text": ["quick"]}}
    put(quick_db, "a", b"1")
    assert dirty_of(quick_db, quick).backlog() == {"quick": 1}


class Killed(BaseException):
    """The process of an activation ends."""


def break_off(chain: Chain, db: Database, *, rolling: bool = False) -> None:
    """Activate a chain but for the last step."""

    def be_killed() -> None:
        raise Killed

    faults = Faults(db)
    faults.script("record_chain", lambda: None, 2)
    faults.script("record_chain", be_killed)
    with pytest.raises(Killed):
        chain.create_tables(db, rolling=rolling)


@pytest.mark.parametrize("same", [False, True])
def test_a_worker_that_was_taken_for_dead_meets_half_an_activation(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """It goes on only if writers leave marks for it."""
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.2)
    db, other_db = connect(), connect()
    seen = Seen()
    chain, other = chain_of(watch("it", seen, "docs.text")), chain_of(watch("other", Seen(), "docs.text"))

    def half_an_activation() -> None:
        die(db)  # its token has run out, as if it were suspended
        break_off(chain if same else other, other_db)

    if same:
        with running(db, chain):
            half_an_activation()
            put(other_db, "a", b"1")
            until(lambda: seen.rows == [b"a"])
    else:
        worker = Worker(db, chain)
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(worker.run)
            until(lambda: active(other_db.client).allows(chain.digest))
            half_an_activation()
            try:
                until(working.done)
            finally:
                worker.stop()
            with pytest.raises(ConfigurationError, match="another set of observers was activated"):
                working.result()


def test_a_chain_that_has_lost_its_marks_is_not_let_in_by_a_rolling_start(connect: Connect) -> None:
    """A worker of it is registered, for it is about to be refused; another one may only be suspended."""
    dbs = [connect() for _ in range(3)]
    lost, now, new = (chain_of(watch(name, Seen(), "docs.text")) for name in ("lost", "now", "new"))
    lost.create_tables(dbs[0])
    Registration(dbs[1], now.digest, "there")
    now.create_tables(dbs[1])
    Registration(dbs[0], lost.digest, "there")
    Registration(dbs[2], new.digest, "there")
    new.create_tables(dbs[2], rolling=True)
    assert active(dbs[0].client) == (new.digest, frozenset({now.digest}))
    put(dbs[0], "a", b"1")
    assert dirty_of(dbs[0], lost).backlog() == {"lost": 0}
    assert dirty_of(dbs[0], now).backlog() == {"now": 1}
    assert dirty_of(dbs[0], new).backlog() == {"new": 1}


def test_the_roll_ends_though_another_one_was_broken_off(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.2)
    db, old_db, third_db = connect(), connect(), connect()
    old, new, third = (chain_of(watch(name, Seen(), "docs.text")) for name in ("old", "new", "third"))
    leaving = Registration(old_db, old.digest, "there")
    old.create_tables(old_db)
    with running(db, new, rolling=True):
        break_off(third, third_db, rolling=True)
        leaving.withdraw()
        until(lambda: active(third_db.client) == (new.digest, frozenset()))
        put(third_db, "a", b"1")
        for chain in (old, third):
            assert list(dirty_of(third_db, chain).backlog().values()) == [0]
