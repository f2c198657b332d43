"""A flush moves rows from the store to the base: nothing is lost or doubled, and whatever is in use stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import percolator_core as percolator
from percolator_core import Cell, Database, ObserverTransaction, PrimaryKey, Table, Worker
from percolator_core.admin.rerun import rerun
from percolator_core.base import manifest as manifests
from percolator_core.base.cache import ByteCache
from percolator_core.base.flush import Flushed, TabletFlush
from percolator_core.base.location import Location
from percolator_core.base.manifest import Manifest, TabletFolder
from percolator_core.base.tablet import TabletBase
from percolator_core.layout.keys import BASE, MARKER, is_internal, meta_key, row_prefix, rows_key
from percolator_core.layout.records import pack_timestamp, unpack_version
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Evicted
from tests.chains import chain_of, watch
from tests.schema.values import QUICK
from tests.servers.plain import PATIENCE


class Items(Table, name="items"):
    id: PrimaryKey[int]
    name: str | None = None
    price: int = 0


@dataclass
class Tablet:
    """The first tablet of a table, with a base."""

    db: Database
    table: str
    location: Location
    cache: ByteCache[object] = field(default_factory=lambda: ByteCache(1 << 20))

    @property
    def tag(self) -> bytes:
        return self.db.store.keyspace.tag(self.table, 0)

    @property
    def reference(self) -> bytes:
        return self.db.store.one((b"HGET", meta_key(self.tag), BASE)) or b""

    def base(self, reference: bytes | None = None) -> TabletBase:
        _, name = manifests.split_reference(self.reference if reference is None else reference)
        manifest = manifests.load(self.location, name) if name else Manifest(0, 0)
        return TabletBase(self.db.catalog.table(self.table).definition, self.location, manifest, self.cache)

    def flush(self, observers: Sequence[str] = (), reference: bytes | None = None) -> Flushed:
        """Flush all rows, as of a safe point that a collection has just made."""
        safe = self.db.collect_garbage(timedelta(0)).safe_point
        return self.begun(observers, reference).run(safe, safe)

    def begun(self, observers: Sequence[str] = (), reference: bytes | None = None) -> TabletFlush:
        reference = self.reference if reference is None else reference
        folder = TabletFolder(self.tag, self.db.catalog.table(self.table).version, self.location, "t/0")
        return TabletFlush(self.db.store, folder, self.base(reference), reference, observers)

    def stored(self) -> dict[bytes, dict[bytes, bytes | None]]:
        """The newest cells in the store, by row and column; a deletion is None."""
        found = {}
        for row in self.db.store.one((b"ZRANGE", rows_key(self.tag), 0, -1)):
            flat = self.db.store.one((b"HGETALL", row_prefix(self.tag) + row))
            found[row] = {
                mark[1:]: unpack_version(packed).value
                for mark, packed in zip(flat[::2], flat[1::2], strict=True)
                if mark[:1] == b"c"
            }
        return found

    def rows(self) -> dict[bytes, dict[bytes, bytes]]:
        """The rows as a reader has to see them: the store above the base."""
        rows = {row.key: dict(row.cells) | {MARKER: b""} for row in self.base().rows(b"", None)}
        for key, cells in self.stored().items():
            row = rows.setdefault(key, {})
            for column, value in cells.items():
                if value is None:
                    row.pop(column, None)
                elif column == MARKER or not is_internal(column):
                    row[column] = value
        typed = self.db.catalog.table(self.table).is_typed
        shown = {}
        for key, row in rows.items():
            exists = MARKER in row
            row.pop(MARKER, None)
            if exists if typed else row:
                shown[key] = row
        return shown


@pytest.fixture
def raw(db: Database, tmp_path: Path) -> Tablet:
    db.create_table("raw", tablets=1)
    return Tablet(db, "raw", Location(str(tmp_path)))


def put(db: Database, row: str, column: str, value: bytes | None) -> None:
    with db.transaction() as t:
        if value is None:
            t.delete("raw", row, column)
        else:
            t.set("raw", row, column, value)


def test_rows_leave_the_store_and_are_in_the_base(raw: Tablet) -> None:
    for row in ("b", "a"):
        put(raw.db, row, "v", row.encode())
        put(raw.db, row, "w", b"x")
    assert raw.flush().rows == 2
    assert raw.stored() == {}
    assert raw.rows() == {b"a": {b"v": b"a", b"w": b"x"}, b"b": {b"v": b"b", b"w": b"x"}}
    assert raw.flush() == Flushed(0, 0)
    assert raw.base().manifest.number == 1


def test_a_part_of_a_row_and_a_deletion_above_the_base(raw: Tablet) -> None:
    for column in ("v", "w"):
        for row in ("changed", "cut", "removed"):
            put(raw.db, row, column, b"1")
    raw.flush()
    put(raw.db, "changed", "v", b"2")
    put(raw.db, "cut", "v", None)
    for column in ("v", "w"):
        put(raw.db, "removed", column, None)
    expected = {b"changed": {b"v": b"2", b"w": b"1"}, b"cut": {b"w": b"1"}}
    assert raw.rows() == expected
    # A collection may not take the deletions, which hide cells of the base.
    raw.db.collect_garbage(timedelta(0))
    assert raw.rows() == expected
    assert raw.flush().rows == 3
    assert raw.stored() == {}
    assert raw.rows() == expected
    changed = raw.base().row(b"changed")
    assert changed is not None
    assert changed.times[b"w"] < changed.times[b"v"]
    # All rows of the first row set have been replaced, so it is named no more.
    assert len(raw.base().manifest.entries) == 1


def test_what_changes_during_a_flush_stays(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    put(raw.db, "a", "w", b"1")
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    flush = raw.begun()
    [portion] = flush._portions(safe, safe)
    put(raw.db, "a", "v", b"2")
    put(raw.db, "a", "x", b"3")
    snapshot = raw.db.snapshot(safe)
    assert flush._add_to_base(portion, safe) is not None
    assert flush._evict(portion, safe) == 0
    assert raw.stored() == {b"a": {b"v": b"2", b"x": b"3"}}
    assert raw.rows() == {b"a": {b"v": b"2", b"w": b"1", b"x": b"3"}}
    # The version that the snapshot sees is still in the store.
    assert snapshot.get("raw", "a", "v") == b"1"


def published(raw: Tablet) -> tuple[TabletFlush, Any, int]:
    """A flush that has read and published the rows, and has not evicted them yet."""
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    flush = raw.begun()
    [portion] = flush._portions(safe, safe)
    assert flush._add_to_base(portion, safe) is not None
    return flush, portion, safe


def whole_rows_only(raw: Tablet, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, no cell is removed by itself: only the fast way out of evict.lua is taken."""
    script = raw.db.store.scripts["evict"]
    start = b"local function evict_row(row)"
    source = script.source.replace(start, start + b" if true then error('cell by cell') end")
    assert source != script.source
    raw.db.store.one((b"SCRIPT", b"LOAD", source))
    sha = sha1(source, usedforsecurity=False).hexdigest().encode()
    changed = dict(raw.db.store.scripts) | {"evict": replace(script, source=source, sha=sha)}
    monkeypatch.setattr(raw.db.store, "scripts", changed)


def test_rows_that_nobody_has_changed_leave_as_a_whole(raw: Tablet, monkeypatch: pytest.MonkeyPatch) -> None:
    for row in "abc":
        put(raw.db, row, "v", b"1")
        put(raw.db, row, "w", b"1")
    flush, portion, safe = published(raw)
    whole_rows_only(raw, monkeypatch)
    assert flush._evict(portion, safe) == 3
    assert raw.stored() == {}


@pytest.mark.parametrize("collected", [False, True])
def test_a_version_that_replaces_another_during_a_flush_stays(raw: Tablet, collected: bool) -> None:
    """The row has as many fields as before; after a collection, no older version shows the change."""
    put(raw.db, "a", "v", b"1")
    flush, portion, safe = published(raw)
    put(raw.db, "a", "v", b"2")
    if collected:
        raw.db.collect_garbage(timedelta(0))
    assert flush._evict(portion, safe) == 0
    assert raw.stored() == {b"a": {b"v": b"2"}}


def test_a_cell_that_is_new_during_a_flush_stays(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    flush, portion, safe = published(raw)
    put(raw.db, "a", "w", b"2")
    assert flush._evict(portion, safe) == 0
    assert raw.stored() == {b"a": {b"w": b"2"}}


def test_an_eviction_that_is_sent_again_takes_no_row_that_is_made_again(raw: Tablet) -> None:
    """The new row has as many cells as the one that was evicted, and no older versions."""
    put(raw.db, "a", "v", b"1")
    flush, portion, safe = published(raw)
    assert flush._evict(portion, safe) == 1
    put(raw.db, "a", "v", b"2")
    assert flush._evict(portion, safe) == 0
    assert raw.stored() == {b"a": {b"v": b"2"}}


def test_an_eviction_that_is_sent_again_after_a_failover_takes_no_row_that_is_made_again(raw: Tablet) -> None:
    """The failover has lost an eviction, and the next one must not get its number."""
    for row in ("a", "b"):
        put(raw.db, row, "v", b"1")
    _, portion, safe = published(raw)

    def evict(stamp: bytes, row: bytes) -> Evicted:
        version = raw.db.catalog.table("raw").version
        evicted = raw.db.store.run(calls.evict(raw.tag, raw.reference, version, safe, stamp, [], [row, 1]))
        assert evicted is not None
        return evicted

    stamp = evict(portion.stamp, b"a").stamp
    raw.db.store.one((b"HDEL", meta_key(raw.tag), b"evictions"))
    assert evict(stamp, b"b").rows == 1
    put(raw.db, "b", "v", b"2")
    assert evict(stamp, b"b").rows == 0
    assert raw.stored() == {b"b": {b"v": b"2"}}


def test_a_cell_stays_for_an_observer_that_the_flush_does_not_know(raw: Tablet) -> None:
    """It was registered after the flush has read the names of the observers, and before it reads the rows."""
    Worker(raw.db, chain_of(watch("late", lambda t, cell: None, "raw.v"), tables=())).run_until_idle(PATIENCE)
    put(raw.db, "a", "v", b"1")
    flush, portion, safe = published(raw)
    assert flush._evict(portion, safe) == 0
    assert raw.stored() == {b"a": {b"v": b"1"}}


def test_a_tombstone_stays_where_its_row_was(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    start = raw.db.timestamp()
    fate = raw.db.store.run(calls.resolve_primary(raw.tag, start, b"a", b"v", "dead", 0, 0))
    assert fate.state == "rolled back"
    assert raw.begun().run(safe, safe) == Flushed(0, raw.base().manifest.entries[0].row_set.size)
    key = row_prefix(raw.tag) + b"a"
    assert raw.db.store.one((b"HGETALL", key))[::2] == [b"x" + pack_timestamp(start) + b"v"]


def test_a_flush_collects_what_keeps_cold_rows(raw: Tablet) -> None:
    for row in ("a", "b"):
        for value in (b"1", b"2"):
            put(raw.db, row, "v", value)
    put(raw.db, "gone", "v", b"1")
    put(raw.db, "gone", "v", None)
    safe = GarbageCollector(raw.db.client).settle(0).timestamp
    put(raw.db, "b", "v", b"3")
    assert raw.begun().run(safe, safe).rows == 1
    assert raw.stored() == {b"b": {b"v": b"3"}}
    assert raw.rows() == {b"a": {b"v": b"2"}, b"b": {b"v": b"3"}}


@pytest.mark.parametrize("moment", [1, 2])
def test_a_row_that_is_deleted_during_the_first_flush_does_not_come_back(
    raw: Tablet, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """A collection may take the deletion only before the tablet has a base: then the row is read again."""
    put(raw.db, "a", "v", b"1")
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    publish, published = TabletFlush._publish, []

    def slowly(self: TabletFlush, manifest: Manifest) -> bool:
        published.append(manifest)
        if len(published) == moment:
            put(raw.db, "a", "v", None)
            raw.db.collect_garbage(timedelta(0))
        return publish(self, manifest)

    monkeypatch.setattr(TabletFlush, "_publish", slowly)
    raw.begun().run(safe, safe)
    assert len(published) == moment
    assert raw.rows() == {}


def test_a_tablet_without_cold_rows_gets_no_base(raw: Tablet) -> None:
    assert raw.flush() == Flushed(0, 0)
    assert raw.reference == b""


def test_a_crash_before_the_eviction_does_no_harm(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    flush = raw.begun()
    [portion] = flush._portions(safe, safe)
    flush._add_to_base(portion, safe)
    assert raw.stored() == {b"a": {b"v": b"1"}}
    assert raw.rows() == {b"a": {b"v": b"1"}}
    assert raw.flush().rows == 1
    assert raw.stored() == {}
    assert raw.rows() == {b"a": {b"v": b"1"}}
    assert raw.base().manifest.height == 1


def test_of_two_flushes_one_publishes_and_the_other_evicts_nothing(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    late = raw.begun()
    [portion] = late._portions(safe, safe)
    put(raw.db, "b", "v", b"1")
    raw.flush()
    assert late._add_to_base(portion, safe) is None
    assert late._evict(portion, safe) == 0
    assert raw.rows() == {b"a": {b"v": b"1"}, b"b": {b"v": b"1"}}


def test_a_publication_that_is_sent_again_is_still_published(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    raw.flush()
    version = raw.db.catalog.table("raw").version
    base = raw.base().manifest
    for _ in range(2):
        name = manifests.write(raw.location, "t/0", base)
        call = calls.publish_base(
            raw.tag, raw.reference, manifests.reference(raw.location, name), base.timestamp, version
        )
        assert [raw.db.store.run(call) for _ in range(2)] == ["published", "published"]


def test_two_equal_manifests_have_files_of_their_own(raw: Tablet) -> None:
    """One of two maintainers removes its own file again, not the one that the other has published."""
    names = {manifests.write(raw.location, "t/0", Manifest(1, 9)) for _ in range(2)}
    assert len(names) == 2


def test_a_flush_above_the_safe_point_is_not_published(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    at = raw.db.timestamp()
    assert raw.begun().run(at, at) == Flushed(0, 0)
    assert raw.stored() == {b"a": {b"v": b"1"}}


def test_a_flush_as_of_an_earlier_time_does_not_turn_the_time_of_the_base_back(raw: Tablet) -> None:
    early = raw.db.collect_garbage(timedelta(0)).safe_point
    put(raw.db, "a", "v", b"1")
    raw.flush()
    after = raw.base().manifest.timestamp
    flush = raw.begun()
    put(raw.db, "b", "v", b"1")
    [portion] = flush._portions(early, raw.db.timestamp())
    assert flush._add_to_base(portion, early) is not None
    assert raw.base().manifest.timestamp == after > early
    assert raw.base().manifest.number == 2


def test_large_rows_leave_in_several_steps(raw: Tablet) -> None:
    for number in range(5):
        put(raw.db, str(number), "v", bytes(700_000))
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    flush = raw.begun()
    [portion] = flush._portions(safe, safe)
    assert [len(rows) // 2 for rows in portion.steps(200)] == [2, 2, 1]
    assert flush.run(safe, safe).rows == 5
    assert raw.stored() == {}


def test_long_names_of_columns_make_more_portions(raw: Tablet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow repeats the name of a column, and the key of a row, for each cell."""
    monkeypatch.setattr("percolator_core.base.flush._STEP_ROWS", 1)
    monkeypatch.setattr("percolator_core.base.flush.ROW_SET_BYTES", 2000)
    for number in range(4):
        put(raw.db, str(number), "n" * 10_000, b"1")
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    flush = raw.begun()
    assert [len(portion) for portion in flush._portions(safe, safe)] == [2, 2]
    assert flush.run(safe, safe).rows == 4


def test_older_versions_and_locks_keep_a_row(raw: Tablet) -> None:
    put(raw.db, "old", "v", b"1")
    with raw.db.snapshot() as pinned:
        put(raw.db, "old", "v", b"2")
        raw.flush()
        assert raw.rows() == {b"old": {b"v": b"2"}}
        assert pinned.get("raw", "old", "v") == b"1"
    assert raw.flush().rows == 1


def test_a_changed_table_is_not_flushed_by_its_old_definition(db: Database, tmp_path: Path) -> None:
    db.create_table(Items)
    tablet = Tablet(db, "items", Location(str(tmp_path)))
    with db.transaction() as t:
        for number in range(100):
            t.insert(Items(id=number, name="n", price=2))
    before = tablet.stored()
    assert before
    safe = db.collect_garbage(timedelta(0)).safe_point
    late = tablet.begun()
    db.drop_column(Items, "name")
    assert late.run(safe, safe) == Flushed(0, 0)
    assert tablet.reference == b""
    assert tablet.flush().rows == len(before)
    rows = list(tablet.base().rows(b"", None))
    assert [row.key for row in rows] == list(before)
    assert all(set(row.cells) == {b"price"} for row in rows)


def test_a_cell_that_an_observer_has_not_seen_stays_and_its_acknowledgement_goes_with_it(raw: Tablet) -> None:
    def note(t: ObserverTransaction, cell: Cell) -> None:
        t.set("raw", cell.row, "seen", t.get("raw", cell.row, "v") or b"")

    chain = chain_of(watch("note", note, "raw.v", writes=("raw.seen",)), tables=())
    worker = Worker(raw.db, chain)
    worker.run_until_idle(timeout=PATIENCE)
    put(raw.db, "a", "v", b"1")
    assert raw.flush(["note"]) == Flushed(0, 0)
    worker.run_until_idle(timeout=PATIENCE)
    assert raw.flush(["note"]).rows == 1
    assert raw.stored() == {}
    assert raw.rows() == {b"a": {b"v": b"1", b"seen": b"1"}}


def test_an_observer_that_comes_during_a_flush_finds_its_cells(raw: Tablet) -> None:
    put(raw.db, "a", "v", b"1")
    safe = raw.db.collect_garbage(timedelta(0)).safe_point
    flush = raw.begun()
    [portion] = flush._portions(safe, safe)
    flush._add_to_base(portion, safe)
    chain = chain_of(watch("late", lambda t, cell: None, "raw.v"), tables=())
    chain.create_tables(raw.db)
    assert rerun(raw.db, chain, "late", []).marked == 1
    assert flush._evict(portion, safe) == 0
    assert raw.stored()[b"a"].get(b"v") == b"1"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with percolator.connect(f"embedded:{tmp_path_factory.mktemp('state')}") as db:
        yield db


deeds = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abc"), st.sampled_from("vw"), st.binary(max_size=2)),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.sampled_from("vw"), st.none()),
        st.tuples(st.sampled_from(["flush", "collect", "publish"]), st.none(), st.none(), st.none()),
    ),
    max_size=12,
)


@given(deeds)
@QUICK
def test_any_order_of_writes_flushes_and_crashes(
    embedded: Database,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[str, str, str, bytes | None]],
) -> None:
    db = embedded
    if any(one.name == "raw" for one in db.tables()):
        db.drop_table("raw")
    db.create_table("raw", tablets=1)
    tablet = Tablet(db, "raw", Location(str(tmp_path_factory.mktemp("base"))))
    expected: dict[bytes, dict[bytes, bytes]] = {}
    for deed, row, column, value in drawn:
        if deed in {"set", "delete"}:
            put(db, row, column, value)
            cells = expected.setdefault(row.encode(), {})
            if value is None:
                cells.pop(column.encode(), None)
            else:
                cells[column.encode()] = value
        elif deed == "flush":
            tablet.flush()
            assert tablet.stored() == {}
        elif deed == "collect":
            db.collect_garbage(timedelta(0))
        else:
            safe = db.collect_garbage(timedelta(0)).safe_point
            flush = tablet.begun()
            for portion in flush._portions(safe, safe):
                flush._add_to_base(portion, safe)
        assert tablet.rows() == {key: cells for key, cells in expected.items() if cells}
