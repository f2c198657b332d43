"""The maintainer of bases: what is cold moves, row sets are merged, and no file that is needed is removed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from percolator_core import ConfigurationError, Database, Hash, PrimaryKey, Table
from percolator_core.base import cleanup, compaction, row_set
from percolator_core.base import manifest as manifests
from percolator_core.base.changes import folder_of, reference_of
from percolator_core.base.compaction import plan
from percolator_core.base.flush import TabletFlush
from percolator_core.base.location import Location
from percolator_core.base.manifest import Entry, Manifest, Removed, TabletFolder, publish
from percolator_core.base.pace import Pace
from percolator_core.base.row_set import RowSet
from percolator_core.base.tablet import TabletBase
from percolator_core.errors import BaseDamaged, SnapshotTooOld
from percolator_core.layout.keys import MAINTAINER, meta_key
from percolator_core.maintenance import bases
from percolator_core.maintenance.bases import BaseMaintainer
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call
from percolator_core.scripts.replies import ColdRows
from tests.servers.plain import commit_of, die

Connect = Callable[..., Database]


class Items(Table, name="items", partition=[Hash("id", buckets=2)]):
    id: PrimaryKey[int]
    name: str | None = None


def put(db: Database, row: str, value: bytes | None = b"1", column: str = "v") -> None:
    with db.transaction() as t:
        if value is None:
            t.delete("raw", row, column)
        else:
            t.set("raw", row, column, value)


def rows(db: Database) -> dict[bytes, dict[str, bytes]]:
    # A scan that is slower than the grace of a test's maintainers is refused: it begins again.
    return db.run(lambda t: dict(t.scan("raw")), attempts=100)


def in_store(db: Database) -> list[str]:
    tags = db.catalog.table("raw").tags
    return sorted(row.decode() for tag in tags for row in db.store.one((b"ZRANGE", tag + b"rows", 0, -1)))


def tablet(db: Database, number: int = 0) -> tuple[TabletFolder, bytes, Manifest]:
    """A tablet's folder, and its manifest with the reference."""
    handle = db.catalog.table("raw")
    rule = handle.definition.base
    assert rule is not None
    location = Location(rule.location)
    folder = TabletFolder(handle.tags[number], handle.version, location, folder_of(rule, number))
    reference = reference_of(db.store, folder.tag)
    name = manifests.split_reference(reference)[1]
    return folder, reference, manifests.load(location, name) if name else Manifest(0, 0)


def maintainer(db: Database, grace: float = 3600) -> BaseMaintainer:
    return BaseMaintainer(db.client, db.schema_changes, grace=grace)


@pytest.fixture
def raw(db: Database, tmp_path: Path) -> Database:
    """A database with a raw table of one tablet that has a base."""
    db.create_table("raw", tablets=1)
    db.set_base("raw", str(tmp_path))
    return db


def test_nothing_moves_by_itself_without_a_policy(raw: Database) -> None:
    put(raw, "a")
    assert raw.flush("raw").rows == 0
    assert in_store(raw) == ["a"]
    assert raw.flush("raw", everything=True).rows == 1


def test_only_rows_that_nobody_has_changed_for_a_while_are_cold(raw: Database, tmp_path: Path) -> None:
    put(raw, "a")
    raw.set_base("raw", str(tmp_path), cold_after=timedelta(hours=1))
    assert raw.flush("raw").rows == 0
    raw.set_base("raw", str(tmp_path), cold_after=timedelta(0))
    assert raw.flush("raw").rows == 1
    assert rows(raw) == {b"a": {"v": b"1"}}


def test_a_flush_refuses_no_snapshot_that_is_younger_than_the_rows_that_move(
    raw: Database, tmp_path: Path
) -> None:
    raw.set_base("raw", str(tmp_path), cold_after=timedelta(hours=1))
    put(raw, "a")
    snapshot = raw.snapshot()
    put(raw, "a", b"2")
    raw.flush("raw")
    assert snapshot.get("raw", "a", "v") == b"1"


def test_above_the_budget_of_memory_the_rows_changed_longest_ago_move(
    raw: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "SHORTEST_KEEP", 0.0)
    monkeypatch.setattr(bases, "_SAMPLE", 200)
    for number in range(100):
        put(raw, f"{number:02}", bytes(1000))
    raw.set_base("raw", str(tmp_path), memory=1_000_000)
    assert raw.flush("raw").rows == 0
    raw.set_base("raw", str(tmp_path), memory=60_000)
    # The sizes and ages are estimated by a random sample.
    assert 20 < raw.flush("raw").rows < 80
    left = in_store(raw)
    assert left == [f"{number:02}" for number in range(100 - len(left), 100)]
    assert len(rows(raw)) == 100
    assert raw.flush("raw").rows <= 15


def test_the_youngest_rows_stay_whatever_the_budget(
    raw: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "SHORTEST_KEEP", 3600.0)
    put(raw, "a", bytes(100_000))
    raw.set_base("raw", str(tmp_path), memory=1)
    with raw.transaction() as running:
        running.get("raw", "a", "v")
        assert raw.flush("raw").rows == 0
        running.set("raw", "b", "v", b"1")


def test_a_flush_first_resolves_the_locks_that_its_rows_decide_about(raw: Database, connect: Connect) -> None:
    """A lock in any table is judged by the versions of its primary, which must not have left the store."""
    dead = connect()
    dead.client.one_call_a_tablet = True
    transaction = dead.begin()
    assert transaction.start_timestamp
    transaction.set("raw", "primary", "v", b"1")
    transaction.set("t", "secondary", "v", b"1")
    commit = commit_of(transaction)
    commit.commit_primary(commit.prewrite())
    assert (commit.primary.table, len(list(raw.locks()))) == ("raw", 1)
    die(dead)
    assert raw.flush("raw", everything=True).rows == 1
    assert raw.snapshot().get("t", "secondary", "v") == b"1"


def test_one_maintainer_works_at_a_tablet_at_a_time(raw: Database) -> None:
    put(raw, "a")
    [tag] = raw.catalog.table("raw").tags
    assert raw.store.run(calls.lease_base(tag, "other", 60_000))
    assert not raw.store.run(calls.lease_base(tag, "third", 60_000))
    assert raw.store.run(calls.lease_base(tag, "other", 60_000))
    assert raw.flush("raw", everything=True).rows == 0
    # A maintainer that has died is waited for only until its lease ends.
    raw.store.call((b"HSET", meta_key(tag), MAINTAINER, b"%d other" % 1))
    assert raw.flush("raw", everything=True).rows == 1
    assert not raw.store.one((b"HEXISTS", meta_key(tag), MAINTAINER))


def test_the_lease_of_a_dead_maintainer_ends_although_the_clock_was_set_back(raw: Database) -> None:
    put(raw, "a")
    [tag] = raw.catalog.table("raw").tags
    raw.store.call((b"HSET", meta_key(tag), MAINTAINER, b"%d other" % (raw.timestamp() + 3600 * 10**6)))
    assert raw.flush("raw", everything=True).rows == 1


def test_a_maintainer_that_has_lost_its_lease_stops(raw: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    put(raw, "a")
    [tag] = raw.catalog.table("raw").tags
    monkeypatch.setattr(bases, "LEASE", 0.0)
    first = TabletFlush._add_to_base

    def late(self: TabletFlush, *arguments: Any) -> Any:
        raw.store.call((b"HSET", meta_key(tag), MAINTAINER, b"%d other" % (raw.timestamp() + 10**8)))
        return first(self, *arguments)

    monkeypatch.setattr(TabletFlush, "_add_to_base", late)
    assert raw.flush("raw", everything=True).rows == 0
    assert raw.store.one((b"HGET", meta_key(tag), MAINTAINER)).endswith(b" other")
    assert rows(raw) == {b"a": {"v": b"1"}}


def maintain(other: Database, stop: threading.Event, failed: list[Exception], everything: bool) -> None:
    own = maintainer(other, grace=10)
    try:
        while not stop.is_set():
            own.flush("raw", everything=everything)
            own.compact("raw")
    except Exception as error:  # noqa: BLE001 - reported by the test
        failed.append(error)


def test_many_maintainers_beside_writers_do_no_harm(
    db: Database, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without leases, so that they really meet."""
    monkeypatch.setattr(bases, "LEASE", 0.0)
    monkeypatch.setattr(compaction, "FEWEST_RUNS", 2)
    db.create_table("raw", tablets=2)
    db.set_base("raw", str(tmp_path), cold_after=timedelta(0))
    stop = threading.Event()
    failed: list[Exception] = []
    threads = [
        threading.Thread(target=maintain, args=(connect(), stop, failed, everything))
        for everything in (True, False, False)
    ]
    for thread in threads:
        thread.start()
    expected: dict[bytes, dict[str, bytes]] = {}
    has_moved = False
    for number in range(10_000):
        if number > 300 and has_moved:
            break
        row, value = f"{number * 7 % 40:02}", b"%d" % number if number % 5 else None

        def write(t: Any, row: str = row, value: bytes | None = value) -> None:
            if value is None:
                t.delete_row("raw", row)
            else:
                t.set("raw", row, "v", value)

        db.run(write, attempts=100)
        expected[row.encode()] = {"v": value} if value is not None else {}
        if number % 50 == 0:
            assert rows(db) == {row: cells for row, cells in expected.items() if cells}
            figures = db.base("raw")
            assert figures is not None
            has_moved = has_moved or figures.rows_in_base > 0
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    db.client.bases.cache.forget(lambda _: False)
    assert rows(db) == {row: cells for row, cells in expected.items() if cells}
    assert has_moved


def test_a_compaction_makes_one_run_without_removed_rows(raw: Database) -> None:
    for number in range(6):
        for row in range(10):
            put(raw, f"{row * 3 % 10}{number}", b"%d" % number)
        raw.flush("raw", everything=True)
    put(raw, "00", None)
    raw.flush("raw", everything=True)
    before = rows(raw)
    assert raw.compact("raw").bytes > 0
    figures = raw.base("raw")
    assert figures is not None
    assert (figures.height, figures.rows_in_base, figures.rows_in_store) == (1, 59, 0)
    assert all(entry.removed is None for entry in tablet(raw)[2].entries)
    assert rows(raw) == before
    assert raw.compact("raw").bytes == 0


def test_a_flush_merges_only_what_gains_enough(raw: Database) -> None:
    for number in range(30):
        put(raw, f"large-{number}", random.randbytes(20_000))
    raw.flush("raw", everything=True)
    [large] = tablet(raw)[2].entries
    heights = []
    for number in range(12):
        for row in range(4):
            put(raw, f"{row}-{number:02}", b"x" * 50)
        raw.flush("raw", everything=True)
        heights.append(tablet(raw)[2].height)
    assert max(heights) >= 3
    assert max(heights) <= 7
    assert large in tablet(raw)[2].entries
    assert len(rows(raw)) == 78


def test_what_a_compaction_writes_is_bounded_and_keeps_a_row_together(
    raw: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "ROW_SET_BYTES", 1)
    from percolator_core.base import tablet as tablets

    monkeypatch.setattr(tablets, "_WINDOW", 1)
    from percolator_core.base import row_set

    monkeypatch.setattr(row_set, "GROUP_ROWS", 8)
    for number in range(2):
        for row in range(10):
            for column in "abc":
                put(raw, f"{row}{number}", b"1", column)
        raw.flush("raw", everything=True)
    before = rows(raw)
    raw.compact("raw")
    manifest = tablet(raw)[2]
    assert len(manifest.entries) > 1
    assert manifest.height == 1
    assert rows(raw) == before


def entry(low: str, high: str, size: int = 100, removed: int = 0) -> Entry:
    row_set = RowSet(f"{low}-{high}", 100, size, low.encode(), high.encode(), 1, 0, 0, b"")
    return Entry(row_set, Removed("r", removed, 0) if removed else None)


def planned(*entries: Entry, everything: bool = False) -> tuple[int, ...]:
    found = plan(Manifest(1, 1, entries), everything=everything)
    return () if found is None else tuple(sorted(found.entries))


def test_which_row_sets_are_merged() -> None:
    assert planned() == ()
    assert planned(entry("a", "z")) == ()
    equal = [entry("a", "z") for _ in range(3)]
    assert planned(*equal) == ()
    assert planned(*equal, entry("a", "z")) == (0, 1, 2, 3)
    # The large one is merged when the others are as large together.
    assert planned(entry("a", "z", 1000), *equal, entry("a", "z")) == (1, 2, 3, 4)
    assert planned(entry("a", "z", 300), *equal) == (0, 1, 2, 3)
    assert planned(*equal, everything=True) == (0, 1, 2)
    # Row sets beside each other are one run.
    assert planned(entry("a", "b"), entry("c", "d"), entry("e", "f"), entry("g", "h")) == ()
    assert planned(entry("a", "b", 10**9), entry("c", "d", 10**9), everything=True) == ()
    # At equal keys they overlap.
    assert planned(entry("a", "c", 10**9), entry("c", "d", 10**9), everything=True) == (0, 1)


def test_row_sets_with_many_removed_rows_are_written_again() -> None:
    assert planned(entry("a", "b", removed=20)) == ()
    assert planned(entry("a", "b", removed=40)) == (0,)
    assert planned(entry("a", "b", removed=1), everything=True) == (0,)


def test_what_removes_more_for_a_byte_gains_more() -> None:
    def gain(*entries: Entry) -> float:
        found = plan(Manifest(1, 1, entries), everything=True)
        assert found is not None
        return found.gain

    assert gain(*[entry("a", "z")] * 4) > gain(*[entry("a", "z", 1000)] * 4)
    assert gain(*[entry("a", "z")] * 4) > gain(*[entry("a", "z", 200)] * 2)
    assert gain(entry("a", "b", removed=90)) > gain(entry("a", "b", removed=40))


def age(location: Location, names: list[str], seconds: float) -> None:
    for name in names:
        path = Path(location._at(name))
        when = path.stat().st_mtime - seconds
        os.utime(path, (when, when))


def test_files_that_nobody_names_are_removed_when_they_are_old(raw: Database) -> None:
    put(raw, "a")
    raw.flush("raw", everything=True)
    put(raw, "a", b"2")
    raw.flush("raw", everything=True)
    folder, _, manifest = tablet(raw)
    before = folder.location.names()
    assert maintainer(raw).compact("raw").files == 0
    assert folder.location.names() == before
    age(folder.location, before, 10_000)
    assert maintainer(raw).compact("raw").files > 0
    left = set(folder.location.names())
    assert manifest.files <= left
    # What is left: the row set, and the manifest before and after the removal.
    assert len(left) == len(manifest.files) + 2
    raw.client.bases.cache.forget(lambda _: False)
    assert rows(raw) == {b"a": {"v": b"2"}}


def test_a_reader_with_the_manifest_before_finds_its_files(raw: Database) -> None:
    """A file may be old, and may have been named until a moment ago."""
    for number in range(3):
        put(raw, f"{number}")
        raw.flush("raw", everything=True)
    folder, reference, manifest = tablet(raw)
    handle = raw.catalog.table("raw")
    age(folder.location, folder.location.names(), 10_000)
    raw.compact("raw")
    assert tablet(raw)[2].files.isdisjoint(manifest.files)
    before = manifests.load(folder.location, manifests.split_reference(reference)[1])
    reader = TabletBase(handle.definition, folder.location, before, raw.client.bases.cache)
    raw.client.bases.cache.forget(lambda _: False)
    raw.compact("raw")
    assert [row.key for row in reader.rows(b"", None)] == [b"0", b"1", b"2"]
    # Once the manifest that replaced it is old, too, its files go, unless a pinned snapshot is as old.
    at = raw.timestamp()
    age(folder.location, folder.location.names(), 10_000)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(GarbageCollector, "pins", lambda _: [at - 12_000_000_000])
        raw.compact("raw")
    assert manifest.files <= set(folder.location.names())
    raw.compact("raw")
    assert not manifest.files & set(folder.location.names())


@pytest.fixture
def paused(raw: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[Any]]:
    """Begins a scan, and replaces and removes the files that the scan was reading."""
    monkeypatch.setattr(row_set, "GROUP_ROWS", 100)
    for first in (0, 1):
        with raw.transaction() as t:
            for number in range(first, 3000, 2):
                t.set("raw", f"{number:04}", "v", b"%d" % number)
        raw.flush("raw", everything=True)

    def begin(**options: Any) -> Iterator[Any]:
        scan = raw.snapshot().scan("raw", **options)
        yield next(scan)
        location = tablet(raw)[0].location
        for _ in range(2):
            raw.compact("raw")
            age(location, location.names(), 10_000)
        assert raw.compact("raw").files > 0
        raw.client.bases.cache.forget(lambda _: False)
        yield from scan

    return begin


@pytest.mark.parametrize("options", [{}, {"columns": ["v"]}, {"reverse": True}])
def test_a_scan_that_has_paused_goes_on_with_the_files_of_now(
    paused: Callable[..., Iterator[Any]], options: Any
) -> None:
    found = [(f"{number:04}".encode(), {"v": b"%d" % number}) for number in range(3000)]
    assert list(paused(**options)) == (found[::-1] if options.get("reverse") else found)


def test_a_scan_that_has_paused_too_long_is_refused(
    raw: Database, paused: Callable[..., Iterator[Any]]
) -> None:
    scan = paused()
    next(scan)
    put(raw, "9")
    raw.flush("raw", everything=True)
    with pytest.raises(SnapshotTooOld):
        list(scan)


def test_a_file_that_is_lost_during_a_scan_is_damage(
    raw: Database, paused: Callable[..., Iterator[Any]]
) -> None:
    scan = paused()
    for _ in range(2):
        next(scan)
    location = tablet(raw)[0].location
    for name in location.names():
        if name.endswith(".parquet"):
            location.remove(name)
    raw.client.bases.cache.forget(lambda _: False)
    with pytest.raises(BaseDamaged, match="is missing"):
        list(scan)


def test_a_writer_that_was_slow_never_names_a_file_that_was_removed(raw: Database) -> None:
    put(raw, "a")
    raw.flush("raw", everything=True)
    put(raw, "b")
    safe = raw.collect_garbage(timedelta(0)).safe_point
    folder, reference, manifest = tablet(raw)
    definition = raw.catalog.table("raw").definition
    base = TabletBase(definition, folder.location, manifest, raw.client.bases.cache)
    late = TabletFlush(raw.store, folder, base, reference, ())
    [portion] = late._portions(safe, safe)

    def removed_meanwhile(*arguments: Any) -> Any:
        assert cleanup.remove_unneeded(raw.store, folder, reference, time.time() + 10) > 0
        return publish(*arguments)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("percolator_core.base.flush.publish", removed_meanwhile)
        assert late._add_to_base(portion, safe) is None
    raw.client.bases.cache.forget(lambda _: False)
    assert rows(raw) == {b"a": {"v": b"1"}, b"b": {"v": b"1"}}


def test_nothing_is_removed_by_a_maintainer_that_was_slow(raw: Database) -> None:
    put(raw, "a")
    raw.flush("raw", everything=True)
    folder, reference, _ = tablet(raw)
    put(raw, "b")
    raw.flush("raw", everything=True)
    before = folder.location.names()
    assert cleanup.remove_unneeded(raw.store, folder, reference, time.time() + 10) == 0
    assert set(before) <= set(folder.location.names())


def test_a_share_of_the_time_and_a_rate_of_bytes(raw: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(type(raw.store), "sleep", lambda _, seconds: slept.append(seconds))
    pace = Pace(raw.store, rate=1000, share=0.25)
    pace.wrote(2500)
    assert slept == [1.0, 1.0, 0.5]
    slept.clear()
    [tag] = raw.catalog.table("raw").tags
    pace.run(calls.weigh(tag, [], [0]))
    assert len(slept) == 1
    slept.clear()
    Pace(raw.store).run(calls.weigh(tag, [], [0]))
    Pace(raw.store).wrote(10**9)
    assert slept == []
    for wrong in ({"rate": 0}, {"share": 0.0}, {"share": 1.5}):
        with pytest.raises(ValueError, match="is above 0"):
            raw.flush("raw", **wrong)


def test_the_steps_of_a_flush_are_shorter_beside_other_clients(
    raw: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(raw.store), "sleep", lambda _, seconds: None)
    steps: list[int] = []
    run = Pace.run

    def counting(pace: Pace, call: Call[Any]) -> Any:
        found = run(pace, call)
        if isinstance(found, ColdRows):
            steps.append(len(found.keys))
        return found

    monkeypatch.setattr(Pace, "run", counting)
    for share in (1.0, 0.5):
        with raw.transaction() as t:
            for number in range(120):
                t.set("raw", f"{number:03}", "v", b"1")
        raw.flush("raw", everything=True, share=share)
    # The first step is read again, because it made the base.
    assert steps == [300, 300, 60, 75, 75, 75, 75, 60]


def test_a_part_of_the_tablets_is_flushed(db: Database, tmp_path: Path) -> None:
    db.create_table("raw", tablets=4)
    db.set_base("raw", str(tmp_path))
    for number in range(40):
        put(db, f"{number}")
    counts = [db.flush("raw", everything=True, tablets=[("raw", number)]).rows for number in range(4)]
    assert sum(counts) == 40
    assert all(counts)
    with pytest.raises(ValueError, match="no tablet 9"):
        db.flush("raw", tablets=[("raw", 9)])


def test_the_figures_of_a_base(db: Database, tmp_path: Path) -> None:
    db.create_table(Items)
    assert db.base(Items) is None
    db.set_base(Items, str(tmp_path))
    found = db.base(Items)
    assert found is not None
    assert (found.location, found.base_timestamp, found.height) == (f"file://{tmp_path}", 0, 0)
    with db.transaction() as t:
        for number in range(10):
            t.insert(Items(id=number, name="n"))
    before = db.timestamp()
    db.flush(Items, everything=True)
    with db.transaction() as t:
        t.update(Items, id=1, name="m")
        t.insert(Items(id=99))
    found = db.base(Items)
    assert found is not None
    assert (found.rows_in_store, found.rows_in_base, found.height) == (2, 10, 1)
    assert found.deltas in {1, 2}  # an estimate
    assert found.base_timestamp > before
    assert found.bytes == sum(
        (tmp_path / name).stat().st_size for name in Location(str(tmp_path)).names() if "/rows-" in name
    )


def test_a_table_without_a_base_is_not_flushed(db: Database) -> None:
    for act in (db.flush, db.compact):
        with pytest.raises(ConfigurationError, match="set_base"):
            act("t")
