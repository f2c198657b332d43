"""The history of a namespace: small, trimmed by time, read as a plot needs it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from percolator_core import Database
from percolator_core.admin.samples import ObserverSample, Sample, record, samples
from percolator_core.admin.status import ObserverStatus, Status, status
from percolator_core.notifications.activation import LiveWorker

MINUTE = 60_000_000
DAY = 24 * 60 * MINUTE
KEEP = 2 * DAY / 1e6


def observer(name: str, number: int = 0, oldest: float | None = None) -> ObserverStatus:
    return ObserverStatus(
        name,
        ("t.v",),
        backlog=number,
        waiting=1,
        oldest=oldest,
        failed=number + 1,
        active=True,
        revision=1,
        ran=number + 2,
        failures=number + 3,
    )


def test_looks_from_before_the_clock_was_set_back_go(db: Database) -> None:
    """A stream's times never go back: they would stay, and all that follow would have their time."""
    now = status(db)
    key = db.store.keyspace.samples
    record(db, now, KEEP)
    day = now.time // 1000 + 86_400_000
    entry = db.store.one((b"XREVRANGE", key, b"+", b"-", b"COUNT", 1))[0][1]
    db.store.one((b"XADD", key, b"%d-0" % day, *entry))
    for _ in range(2):
        record(db, status(db), KEEP)
    assert [abs(one.time - now.time) < 10 * MINUTE for one in samples(db)] == [True, True]


class Past:
    """A database whose stream gets the times that the looks say, and not that of the server."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.now = status(db)

    def record(self, *observers: ObserverStatus, at: int, keep: float = KEEP, **rest: Any) -> None:
        look: Status = replace(self.now, time=at, observers=observers, **rest)

        class Store:
            keyspace = self._db.store.keyspace

            def one(store, command: tuple[Any, ...]) -> Any:  # noqa: N805
                return self._db.store.one(tuple(b"%d" % (at // 1000) if x == b"*" else x for x in command))

        class Shifted:
            store = Store()

        record(Shifted(), look, keep)  # type: ignore[arg-type]

    def stored(self) -> int:
        return int(self._db.store.one((b"XLEN", self._db.store.keyspace.samples)))

    def bytes(self) -> int:
        command = (b"MEMORY", b"USAGE", self._db.store.keyspace.samples, b"SAMPLES", 0)
        return int(self._db.store.one(command))


@pytest.fixture
def past(db: Database) -> Past:
    return Past(db)


def test_what_is_recorded_is_read(db: Database) -> None:
    assert samples(db) == []
    workers = [LiveWorker("o", "d", "here", 1, f"o:{number}", until_idle=number == 0) for number in range(3)]
    now = replace(
        status(db),
        observers=(observer("look", 10, 12.345), observer("other")),
        workers=tuple(workers),
    )
    record(db, now, KEEP, {"look": 9, "other": 50, "gone": 7})
    record(db, replace(now, observers=(), workers=()), KEEP)
    first, second = samples(db)
    assert first == Sample(
        first.time,
        locks=0,
        memory=now.store.memory,
        workers=2,
        drains=1,
        observers={
            "look": ObserverSample(backlog=10, oldest=12.3, failed=11, ran=12, failures=13, peak=10),
            "other": ObserverSample(backlog=0, oldest=None, failed=1, ran=2, failures=3, peak=50),
        },
    )
    assert (second.observers, second.workers, second.drains) == ({}, 0, 0)
    assert now.time - 1000 <= first.time <= second.time <= db.store.now()


def test_a_look_as_it_is(db: Database) -> None:
    record(db, status(db), 60)
    [found] = samples(db)
    assert found.memory > 0


def test_what_is_too_old_goes(past: Past, db: Database) -> None:
    start = past.now.time
    for number in range(1000):
        past.record(observer("look", number), at=start + number * MINUTE, keep=100 * 60)
    assert 100 <= past.stored() < 250  # whole blocks of entries go
    found = samples(db)
    assert found[-1].time // 1000 == (start + 999 * MINUTE) // 1000
    assert [one.observers["look"].backlog for one in found[-100:]] == list(range(900, 1000))
    with pytest.raises(ValueError, match="keep is a number of seconds above 0, not 0"):
        record(db, past.now, 0)


def test_from_one_time_to_another(past: Past, db: Database) -> None:
    start = past.now.time // 1000 * 1000
    times = [start + number * MINUTE for number in range(10)]
    for time in times:
        past.record(observer("look"), at=time)
    assert [one.time for one in samples(db)] == times
    assert [one.time for one in samples(db, since=times[3])] == times[3:]
    assert [one.time for one in samples(db, since=times[3] + 1)] == times[4:]
    assert [one.time for one in samples(db, until=times[3])] == times[:4]
    assert [one.time for one in samples(db, until=times[3] - 1)] == times[:3]
    assert [one.time for one in samples(db, times[2], times[4])] == times[2:5]
    assert samples(db, times[-1] + 1000) == samples(db, until=1) == []


@pytest.mark.parametrize("limit", [2, 7, 50, 299, 300, 301])
def test_a_plot_gets_no_more_than_it_asks_for(past: Past, db: Database, limit: int) -> None:
    start = past.now.time // 1000 * 1000
    times = [start + number * MINUTE for number in range(300)]
    for number, time in enumerate(times):
        past.record(observer("look", number), at=time)
    found = [one.time for one in samples(db, limit=limit)]
    assert len(found) == min(limit, 300)
    assert (found[0], found[-1]) == (times[0], times[-1])
    assert set(found) <= set(times)
    gaps = [after - before for before, after in pairwise(found)]
    assert max(gaps) <= (times[-1] - times[0]) / (min(limit, 300) - 1) + MINUTE
    part = [one.time for one in samples(db, times[100], times[199], limit=limit)]
    assert (part[0], part[-1], len(part)) == (times[100], times[199], min(limit, 100))


def test_thinning_out_what_was_looked_at_in_bursts(past: Past, db: Database) -> None:
    """Parts of the time without a look give none, and several in one millisecond are one point."""
    start = past.now.time // 1000 * 1000
    for offset in [*range(50), *range(1_000_000, 1_000_050)]:
        past.record(observer("look"), at=start + offset * 1000)
    found = [one.time for one in samples(db, limit=20)]
    assert len(found) <= 20
    assert (found[0], found[-1]) == (start, start + 1_000_049_000)
    with pytest.raises(ValueError, match="limit is 2 or more, not 1"):
        samples(db, limit=1)


def test_a_peak_between_two_points_of_a_plot_is_kept(past: Past, db: Database) -> None:
    start = past.now.time // 1000 * 1000
    for number in range(1000):
        backlog = 7532 if number == 777 else 3
        past.record(observer("look", backlog), at=start + number * MINUTE)
    for limit in (2, 10, 360):
        found = samples(db, limit=limit)
        assert max(one.observers["look"].peak for one in found) == 7532
        assert next(one.time for one in found if one.observers["look"].peak > 3) <= start + 777 * MINUTE
        # The last sample is as it was recorded.
        assert found[-1].observers["look"].peak == 3


def test_a_sample_of_an_earlier_version_has_its_backlog_as_the_peak(db: Database) -> None:
    from percolator_core.admin.samples import _pack

    numbers = _pack([[0, 1, 0, 0], [5], [None], [0], [0], [0]])
    db.store.one((b"XADD", db.store.keyspace.samples, b"*", _pack(["look"]), numbers))
    [found] = samples(db)
    assert found.observers["look"] == ObserverSample(5, None, 0, 0, 0, 5)


def test_a_thousand_looks_at_fifty_observers_stay_small(past: Past, db: Database) -> None:
    start = past.now.time
    for number in range(1000):
        many = [
            observer(f"observer_number_{each}", (number * 7919 * each) % 100_000, number * 0.7 % 60)
            for each in range(50)
        ]
        past.record(*many, at=start + number * MINUTE)
    assert past.stored() == 1000
    assert past.bytes() / 1000 < 1200
    found = samples(db, limit=100)
    assert len(found) == 100
    assert all(len(one.observers) == 50 for one in found)


def test_observers_that_come_and_go(past: Past, db: Database) -> None:
    start = past.now.time
    for number, names in enumerate((["a"], ["a", "b"], ["b", "a"], ["c"])):
        past.record(*[observer(name, ord(name)) for name in names], at=start + number * MINUTE)
    assert [{name: one.backlog for name, one in look.observers.items()} for look in samples(db)] == [
        {"a": 97},
        {"a": 97, "b": 98},
        {"b": 98, "a": 97},
        {"c": 99},
    ]
