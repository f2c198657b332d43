"""The commit cut off at every point, and met by everybody: all or nothing, as the commit point says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from percolator_core import TransactionConflict
from percolator_core.scripts import calls
from tests.servers.plain import until
from tests.transaction.crash import NEW, POINTS, RESOLVERS, ROWS, Connect, Owner, Scene, Y

OWNERS: list[Owner] = ["dead", "expired", "live"]
STOPS = [
    (point, owner)
    for point in POINTS
    for owner in OWNERS
    if owner != "expired" or POINTS[point].fate == "open"  # what is decided does not hang on any time
]


@pytest.mark.parametrize("who", RESOLVERS)
@pytest.mark.parametrize(("point", "owner"), STOPS)
def test_a_client_stops(connect: Connect, point: str, owner: Owner, who: str) -> None:
    scene = Scene(connect, owner)
    reach, fate, resume = POINTS[point]
    reach(scene)
    scene.stop()
    left = scene.locks()
    scene.holds_up = owner == "live" and fate == "open"
    got_through = RESOLVERS[who](scene)
    if scene.holds_up:
        # Everybody waits for it or gives way, and it goes on as if nothing had been.
        assert not got_through
        assert scene.locks() == left
        resume(scene)
        expected = "committed" if resume is Scene.finish else "rolled back"
    else:
        assert got_through
        expected = "rolled back" if fate == "open" else fate
        assert scene.outcome() == expected
        if expected == "rolled back" and resume is Scene.finish:
            with pytest.raises(TransactionConflict):
                resume(scene)
            scene.writer.store.one((b"PING",))  # its locks are rolled back behind it
        else:
            resume(scene)
    assert scene.outcome() == expected
    no_lock_is_left_after_twice_the_time_to_live(scene)
    observers_have_seen(scene, expected, written=got_through and who == "writer")


def no_lock_is_left_after_twice_the_time_to_live(scene: Scene) -> None:
    if scene.owner == "expired":
        # By the clock of the server that wrote them, and a lock may have been written just now.
        tag = scene.other.catalog.table("t").tags[0]
        now = calls.now(tag)
        end = scene.other.store.run(now) + 2 * int(scene.ttl * 1e6)
        until(lambda: bool(scene.other.store.run(now) > end))
    swept = scene.other.resolve_locks(timedelta(0))
    assert swept.live == 0
    assert scene.locks() == 0


def observers_have_seen(scene: Scene, outcome: str, *, written: bool) -> None:
    """A committed write has fired, the mark of an aborted one goes without effect."""
    scene.work()
    assert scene.marks() == 0
    last = dict(scene.runs)
    if written:
        assert last == dict.fromkeys(ROWS, b"newer")
    elif outcome == "committed":
        assert last == NEW
    else:
        assert scene.runs == []
    changes = (outcome == "committed") + written
    for row in ROWS:
        assert sum(1 for ran, _ in scene.runs if ran == row) <= changes
    assert set(scene.pings) == ({Y} if outcome == "committed" else set())
