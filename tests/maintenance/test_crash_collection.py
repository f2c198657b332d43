"""Garbage collection cut off at every point: nobody sees half a transaction, a second collection ends it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from percolator_core import Database, LockTimeout, SnapshotTooOld, TransactionAborted
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.maintenance.locks import Locks, ResolvedLocks
from percolator_core.scripts import calls
from tests.transaction.crash import NEW, POINTS, RESOLVERS, ROWS, Connect, Interrupted, Scene, X

NOTHING = timedelta(0)


class StoppedError(Exception):
    """The collector died here."""


def stop(*_: object, **__: object) -> ResolvedLocks:
    raise StoppedError


def some_tablets_raised(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two of the three rows, and half of the others: in which order is nobody's business."""
    tags = db.catalog.table("t").tags
    safe = db.timestamp()
    raised = {db.catalog.table("t").tag(row) for row in ROWS[1:]} | set(tags[::2])
    db.store.run_all([calls.raise_safe_point(tag, safe) for tag in sorted(raised)])


def all_tablets_raised(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Locks, "settle", stop)
        with pytest.raises(StoppedError):
            db.collect_garbage(NOTHING)


def at_collect(nth: int) -> Callable[[Database, pytest.MonkeyPatch], None]:
    def collect(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        collector = GarbageCollector(db.client)
        collector.store = Interrupted(db, "collect", stop, nth)  # type: ignore[assignment]
        with pytest.raises(StoppedError):
            collector.collect(0.0)

    return collect


STOPS: dict[str, Callable[[Database, pytest.MonkeyPatch], None]] = {
    "some tablets raised": some_tablets_raised,
    "all tablets raised": all_tablets_raised,
    "locks resolved": at_collect(1),
    "half of the tablets collected": at_collect(9),
}


def collect(scene: Scene) -> bool:
    scene.other.collect_garbage(NOTHING)
    return True


MEETING = {**RESOLVERS, "second collection": collect}


@pytest.mark.parametrize("who", MEETING)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("point", ["before the primary", "after the primary", "mid roll-back"])
def test_a_collector_stops(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, point: str, stop: str, who: str
) -> None:
    """A dead client's locks stand in the cells, in every state."""
    scene = Scene(connect, "dead")
    scene.write_all(b"older")
    scene.write_all(b"old")
    scene.work()
    scene.runs.clear()
    # The scene's transaction began before these writes; a like one takes its place.
    again = scene.writer.begin()
    scene.commit.start_ts = scene.start_ts = again.start_timestamp
    POINTS[point].reach(scene)
    scene.stop()
    collector = connect(lock_wait=20)
    STOPS[stop](collector, monkeypatch)
    committed = POINTS[point].fate == "committed"
    assert MEETING[who](scene)
    last = b"newer" if who == "writer" else None
    expected = dict.fromkeys(ROWS, last) if last else NEW if committed else dict.fromkeys(ROWS, b"old")
    assert scene.values() == expected
    if who != "second collection":  # which leaves no versions but the newest
        assert scene.outcome() == ("committed" if committed else "rolled back")
    # The client was only suspended: whatever it does now is refused, or changes nothing.
    if committed:
        scene.finish_secondaries()
    else:
        with pytest.raises(TransactionAborted):
            scene.commit.commit_primary(scene.commit_ts)
        scene.writer.store.one((b"PING",))
    scene.other.collect_garbage(NOTHING)
    assert scene.values() == expected
    assert scene.locks() == 0
    tidy(scene)
    scene.work()
    assert dict(scene.runs) == (expected if committed or last else {})
    assert scene.marks() == 0


def tidy(scene: Scene) -> None:
    """Of each cell there is one version left, and no tombstone."""
    store = scene.other.store
    for row in ROWS:
        tag = scene.other.catalog.table("t").tag(row)
        assert store.one((b"EXISTS", tag + b"v:" + row)) == 0
        fields = store.one((b"HKEYS", tag + b"r:" + row))
        assert not [field for field in fields if field[:1] in {b"x", b"n", b"l"}]


@pytest.mark.parametrize("stop", STOPS)
def test_a_snapshot_below_a_safe_point_half_raised_is_whole_or_refused(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    scene = Scene(connect, "dead")
    early = scene.other.timestamp()
    scene.write_all(b"newer")
    STOPS[stop](connect(), monkeypatch)
    refused = 0
    for row in ROWS:
        try:
            assert scene.other.snapshot(early).get("t", row, "v") == b"old"
        except SnapshotTooOld:
            refused += 1
    assert refused == (2 if stop == "some tablets raised" else 3)


def test_a_collector_waits_for_a_live_client_and_drops_nothing(connect: Connect) -> None:
    scene = Scene(connect, "live")
    scene.write_all(b"newer")
    scene.commit.start_ts = scene.start_ts = scene.writer.begin().start_timestamp
    POINTS["before the primary"].reach(scene)
    with pytest.raises(LockTimeout, match="collect later"):
        scene.other.collect_garbage(NOTHING)
    tag = scene.other.catalog.table("t").tag(X)
    assert scene.other.store.one((b"ZCARD", tag + b"v:" + X)) == 1
    scene.finish()
    assert scene.outcome() == "committed"
    assert scene.other.collect_garbage(NOTHING).locks == ResolvedLocks()
    assert scene.values() == NEW


def test_a_safe_point_never_falls(db: Database) -> None:
    tag = db.catalog.table("t").tags[0]
    now = db.timestamp()
    for asked, counts in ((now, now), (now - 5, now), (now + 5, now + 5)):
        assert db.store.run(calls.raise_safe_point(tag, asked)) == counts
        assert int(db.store.one((b"HGET", tag + b"meta", b"safe"))) == counts
