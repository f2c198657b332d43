"""One lock is settled by the rules that hold for all: never while its owner may still commit."""

from __future__ import annotations

import pytest

from percolator_core import Database, Transaction, UnknownColumn, UnknownTable
from percolator_core.admin.locks import HeldLock, locks
from percolator_core.notifications.ack import acknowledge
from percolator_core.notifications.dirty import DirtyIndex
from tests.chains import chain_of, watch
from tests.servers.plain import commit_of, die, until
from tests.tables.models import User
from tests.transaction.crash import NEW, POINTS, TABLES, Connect, Scene, X, Y, Z


@pytest.mark.parametrize("column", ["v", "ping"])
@pytest.mark.parametrize("owner", ["dead", "expired", "live"])
@pytest.mark.parametrize("point", ["before the primary", "after the primary"])
def test_one_lock_of_a_client_that_stopped(connect: Connect, point: str, owner: str, column: str) -> None:
    scene = Scene(connect, owner)  # type: ignore[arg-type]
    POINTS[point].reach(scene)
    scene.stop()
    before = scene.locks()
    fate = POINTS[point].fate
    if owner == "live" and fate == "open":
        assert scene.other.resolve_lock("t", Y, column, scene.start_ts) == "live"
        assert scene.locks() == before
        scene.finish()
        assert scene.outcome() == "committed"
        assert scene.values() == NEW
        return
    expected = "committed" if fate == "committed" else "rolled back"
    if owner == "expired":
        until(lambda: scene.other.resolve_lock("t", Y, column, scene.start_ts) != "live")
    else:
        assert scene.other.resolve_lock("t", Y, column, scene.start_ts) == expected
    assert scene.other.resolve_lock("t", Y, column, scene.start_ts) == "gone"
    # That one; and when it was rolled back, the primary, which decides.
    assert scene.locks() == before - (1 if fate == "committed" else 2)
    scene.work()
    assert scene.values()[Y] == (b"new" if fate == "committed" else b"old")
    assert scene.outcome() == expected


def test_an_owner_that_is_suspended_comes_back_to_its_time_to_live(connect: Connect) -> None:
    """Its token stands, and as long as its time is not over nothing is taken from it."""
    scene = Scene(connect, "live")
    POINTS["before the primary"].reach(scene)
    for row in (X, Y, Z):
        assert scene.other.resolve_lock("t", row, "v", scene.start_ts) == "live"
    scene.finish()
    assert scene.outcome() == "committed"
    for row in (X, Y, Z):
        assert scene.other.resolve_lock("t", row, "v", scene.start_ts) == "gone"


def test_the_lock_of_another_transaction_is_left_alone(connect: Connect) -> None:
    scene = Scene(connect, "dead")
    POINTS["before the primary"].reach(scene)
    scene.stop()
    assert scene.other.resolve_lock("t", Y, "v", scene.start_ts - 1) == "gone"
    assert scene.other.resolve_lock("t", Y, "other", scene.start_ts) == "gone"
    assert scene.locks() == 4


@pytest.mark.parametrize("twin", [False, True], ids=["one", "and a column of that name"])
def test_every_lock_goes_by_the_name_that_the_status_gives_it(
    connect: Connect, db: Database, twin: bool
) -> None:
    """Acknowledgements and the markers of typed rows, too, which are no columns of the user's."""
    chain = chain_of(watch("look", lambda t, cell: None, "t.v"), tables=TABLES)
    chain.create_tables(db)
    db.create_table(User)
    writer = connect()
    writer.client.one_call_a_tablet = True
    with db.transaction() as t:
        t.set("t", X, "v", b"1")
    [lease], _ = DirtyIndex(writer.client, chain.observed).claim(1)
    t = Transaction(writer.client)
    assert acknowledge(t, lease, "strong")
    if twin:
        t.set("t", X, "look acknowledges v", b"a column of that name")
    t.set("t", Y, "copy", b"2")
    t.insert(User(name="ada", age=36))
    commit_of(t).prewrite()
    die(writer)
    found = locks(db)
    assert {(lock.table, lock.column) for lock in found} >= {
        ("t", "look acknowledges v"),
        ("t", "copy"),
        ("users", "*"),
        ("users", "age"),
    }
    assert [lock.column for lock in found].count("look acknowledges v") == 1 + twin
    [primary] = [lock for lock in found if lock.is_primary]
    assert primary.column == "look acknowledges v"

    def resolve(lock: HeldLock) -> str:
        return db.resolve_lock(lock.table, lock.row, lock.column, lock.start_timestamp)

    assert [resolve(primary), resolve(primary)] == ["rolled back", "gone"]
    for lock in found:
        assert resolve(lock) == ("gone" if lock.column == primary.column else "rolled back")
    assert locks(db) == []


def test_what_is_not_there(db: Database) -> None:
    db.create_table(User)
    assert db.resolve_lock("t", "row", "column", 1) == "gone"
    assert db.resolve_lock("users", "ada", "*", 1) == "gone"
    with pytest.raises(UnknownTable):
        db.resolve_lock("nowhere", "row", "v", 1)
    with pytest.raises(UnknownColumn):
        db.resolve_lock("users", "ada", "nothing", 1)
