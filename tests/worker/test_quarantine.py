"""The quarantine: looked at in pages and by row, put back, forgotten; and nothing lost meanwhile."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import ConfigurationError, TableDefinition, UnknownTable, Worker
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.status import TabletStatus, tablets
from percolator_core.layout.keys import encode_mark, failed_key
from percolator_core.observers import Retry
from percolator_core.transaction.commit import Commit
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE
from tests.transaction.crash import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Cell, Chain, Database, Transaction
    from percolator_core.admin.quarantine import FailedCell

ONCE = Retry(1, 0.001, 0.001)


class Scene:
    """A chain whose observers fail as long as ``broken`` says so."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.broken = True
        self.ran: list[tuple[bytes, bytes | None]] = []
        self.chain = chain_of(
            watch("look", self._look, "docs.text", "docs.title", retry=ONCE),
            watch("other", self._look, "docs.text", retry=ONCE),
            watch("ping", self._ping, "sums.dirty", mode="weak", retry=ONCE),
        )
        self.chain.create_tables(db)
        self.quarantine = Quarantine(db, self.chain)

    def _look(self, t: Transaction, cell: Cell) -> None:
        value = t.get(cell.table, cell.row, cell.column)
        if self.broken:
            raise ValueError(value)
        self.ran.append((cell.row, value))

    def _ping(self, t: Transaction, cell: Cell) -> None:
        if self.broken:
            raise ValueError
        self.ran.append((cell.row, None))

    def work(self) -> None:
        Worker(self.db, self.chain).run_until_idle(PATIENCE)

    def fail(self, *rows: str) -> None:
        for row in rows:
            put(self.db, row, b"1")
        self.work()


@pytest.fixture
def scene(db: Database) -> Scene:
    return Scene(db)


def names(cells: list[FailedCell]) -> list[tuple[str, bytes]]:
    return sorted((cell.observer, cell.row) for cell in cells)


def fill(db: Database, chain: Chain, observer: str, table: str, rows: range) -> None:
    """Put cells into quarantine as if they had failed."""
    handle = db.catalog.table(table)
    by_tag: dict[bytes, list[bytes]] = {}
    for number in rows:
        row = b"row%d" % number
        record = {"error": "E", "traceback": "T" * 50, "attempts": 1, "time": number + 1}
        by_tag.setdefault(handle.tag(row), []).extend(
            (
                encode_mark(b"text", row),
                json.dumps(record).encode(),
            )
        )
    db.store.call(*[(b"HSET", failed_key(tag, observer), *fields) for tag, fields in by_tag.items()])


def pages(quarantine: Quarantine, limit: int, observer: str | None = None) -> list[list[FailedCell]]:
    found, cursor = quarantine.page(limit, observer=observer)
    every = [found]
    while cursor is not None:
        found, cursor = quarantine.page(limit, cursor, observer)
        every.append(found)
    return every


def test_counts_cells_and_rows(scene: Scene) -> None:
    quarantine = scene.quarantine
    assert quarantine.count() == {"look": 0, "other": 0, "ping": 0}
    assert list(quarantine.cells()) == []
    assert quarantine.page(10) == ([], None)
    scene.fail("a", "b")
    put(scene.db, "a", b"1", column="title")
    with scene.db.transaction() as t:
        t.notify("sums", "a", "dirty")
    scene.work()
    assert quarantine.count() == {"look": 3, "other": 2, "ping": 1}
    assert len(list(quarantine.cells())) == 6
    assert names(list(quarantine.cells("other"))) == [("other", b"a"), ("other", b"b")]
    found = quarantine.find("docs", "a")
    assert [(cell.observer, cell.column, cell.error) for cell in found] == [
        ("look", "text", "ValueError: b'1'"),
        ("look", "title", "ValueError: b'1'"),
        ("other", "text", "ValueError: b'1'"),
    ]
    assert found == [cell for cell in quarantine.page(10)[0] if (cell.table, cell.row) == ("docs", b"a")]
    assert [cell.observer for cell in quarantine.find("sums", b"a")] == ["ping"]
    assert quarantine.find("docs", "c") == quarantine.find("nowhere", "a") == []
    keys = {"docs": b"b", "sums": b"a"}
    assert names(list(quarantine.cells(keys=keys))) == [("look", b"b"), ("other", b"b"), ("ping", b"a")]
    assert names(list(quarantine.cells("ping", keys))) == [("ping", b"a")]


def test_tables_that_are_not_there_yet_are_empty(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    quarantine = Quarantine(db, chain)
    assert quarantine.count() == {"look": 0}
    assert (quarantine.page(5), quarantine.retry(), quarantine.discard([])) == (([], None), 0, 0)
    assert quarantine.find("docs", "a") == list(quarantine.cells("look")) == []


def test_who_is_asked_for_must_be_there(scene: Scene) -> None:
    for call in (
        scene.quarantine.cells,
        scene.quarantine.retry,
        lambda observer: scene.quarantine.page(1, None, observer),
    ):
        with pytest.raises(
            ConfigurationError, match="test has no observer 'nobody': it has look, other, ping"
        ):
            call(observer="nobody")
    with pytest.raises(ValueError, match="limit is 1 or more, not 0"):
        scene.quarantine.page(0)
    for cursor in ("", "x", "é", "W10=", "WzFd", "bnVsbA=="):
        with pytest.raises(ValueError, match="the cursor is not from a page"):
            scene.quarantine.page(1, cursor)


@pytest.mark.parametrize("limit", [1, 3, 50, 333, 1000])
def test_pages_are_full_and_have_each_cell_once(scene: Scene, limit: int) -> None:
    fill(scene.db, scene.chain, "look", "docs", range(250))
    fill(scene.db, scene.chain, "other", "docs", range(83))
    every = pages(scene.quarantine, limit)
    sizes = [len(page) for page in every]
    assert set(sizes[:-1]) <= {limit}
    assert 0 < sizes[-1] <= limit
    found = [(cell.observer, cell.row) for page in every for cell in page]
    assert len(found) == len(set(found)) == 333
    assert [observer for observer, _ in found] == ["look"] * 250 + ["other"] * 83
    assert sum(len(page) for page in pages(scene.quarantine, limit, "other")) == 83


def test_a_page_costs_the_same_however_many_there_are(scene: Scene) -> None:
    asked: list[Any] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(scene.db.store, name)

        def one(self, command: Any) -> Any:
            reply = scene.db.store.one(command)
            asked.append(len(reply[1]) if command[0] == b"HSCAN" else 0)
            return reply

        def call(self, *commands: Any) -> Any:
            asked.extend(0 for _ in commands)
            return scene.db.store.call(*commands)

    def cost(cursor: str | None) -> tuple[int, int]:
        asked.clear()
        store = Counting()
        client = SimpleNamespace(store=store, catalog=scene.db.catalog)
        db: Any = SimpleNamespace(client=client, store=store, catalog=client.catalog, tables=scene.db.tables)
        counted = Quarantine(db, scene.chain)
        counted.page(10, cursor)
        return len(asked), sum(asked)

    fill(scene.db, scene.chain, "look", "docs", range(20_000))
    _, cursor = scene.quarantine.page(5000)
    for at in (None, cursor):
        commands, fields = cost(at)
        assert commands < 40
        assert fields < 100


def test_pages_while_cells_come_and_go(scene: Scene) -> None:
    """What stays is on some page, also if the cells around it are put back between two pages."""
    fill(scene.db, scene.chain, "look", "docs", range(2000))
    seen: set[bytes] = set()
    stays = {b"row%d" % number for number in range(0, 2000, 4)}
    cursor: str | None = None
    for step in range(10_000):
        page, cursor = scene.quarantine.page(7, cursor)
        seen |= {cell.row for cell in page}
        gone = [cell for cell in page if cell.row not in stays]
        assert scene.quarantine.discard(gone) == len(gone)
        if step % 20 == 0:
            fill(scene.db, scene.chain, "look", "docs", range(10_000 + 50 * step, 10_000 + 50 * step + 50))
        if cursor is None:
            break
    assert stays <= seen
    assert stays <= {cell.row for cell in scene.quarantine.cells()}


def test_cursors_stay_short_where_the_store_tells_all_cells_of_a_tablet_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand in URLs; a hash of some hundred short fields is one scan, whatever was asked for.

    A larger one is scanned by whole buckets. How many cells share one differs from server to server: that
    many more than were asked for may come, and those stand in the cursor.
    """
    beyond: list[int] = []
    one = scene.db.store.one

    def watched(command: Any) -> Any:
        reply = one(command)
        if command[0] == b"HSCAN":
            beyond.append(max(0, len(reply[1]) // 2 - command[-1]))
        return reply

    row = f"https://example.org/{'a/long/path/' * 6}%05d".encode()
    tag = scene.db.catalog.table("docs").tags[0]
    key = failed_key(tag, "look")
    record = json.dumps({"error": "E", "traceback": "T" * 50, "attempts": 1, "time": 1}).encode()
    settings = [(b"hash-max-ziplist-entries", b"512"), (b"hash-max-ziplist-value", b"1024")]
    before = [scene.db.store.one((b"CONFIG", b"GET", name)) for name, _ in settings]
    try:
        for name, value in settings:
            scene.db.store.one((b"CONFIG", b"SET", name, value))
        fields = [part for number in range(400) for part in (encode_mark(b"text", row % number), record)]
        scene.db.store.one((b"HSET", key, *fields))
        assert len(scene.db.store.one((b"HSCAN", key, 0, b"COUNT", 10))[1]) == 800
        monkeypatch.setattr(scene.db.store, "one", watched)
        found, cursor = scene.quarantine.page(50)
        seen = [cell.row for cell in found]
        while cursor is not None:
            assert len(cursor) < 500 + (200 * max(beyond) if len(seen) > 200 else 0)
            if len(seen) == 200:  # it grows, and is told in parts from here on
                scene.db.store.one((b"HSET", key, encode_mark(b"text", b"zz"), b" " * 950 + record))
                beyond.clear()
            found, cursor = scene.quarantine.page(50, cursor)
            seen += [cell.row for cell in found]
        assert {row % number for number in range(400)} <= set(seen)
        assert len(seen[:200]) == len(set(seen[:200]))
    finally:
        for name, value in before:
            scene.db.store.one((b"CONFIG", b"SET", name, value))


def test_a_cursor_outlives_its_table(scene: Scene) -> None:
    fill(scene.db, scene.chain, "look", "docs", range(20))
    fill(scene.db, scene.chain, "ping", "sums", range(8))
    _, cursor = scene.quarantine.page(5)
    scene.db.drop_table("docs")
    page, end = Quarantine(scene.db, scene.chain).page(10, cursor)
    assert names(page) == [("ping", b"row%d" % number) for number in range(8)]
    assert ({cell.table for cell in page}, end) == ({"sums"}, None)


def test_retry_of_one_observer_or_of_cells(scene: Scene) -> None:
    scene.fail("a", "b")
    assert scene.quarantine.retry(scene.quarantine.find("docs", "a")) == 2
    assert scene.quarantine.count() == {"look": 1, "other": 1, "ping": 0}
    assert scene.quarantine.retry(observer="other") == 1
    assert scene.quarantine.count() == {"look": 1, "other": 0, "ping": 0}
    assert scene.quarantine.retry() == 1
    scene.broken = False
    scene.work()
    assert sorted(scene.ran) == [(b"a", b"1")] * 2 + [(b"b", b"1")] * 2


def test_retry_of_one_observers_cells_leaves_those_of_others(scene: Scene) -> None:
    scene.fail("a")
    assert scene.quarantine.retry(scene.quarantine.find("docs", "a"), observer="look") == 1
    assert scene.quarantine.count() == {"look": 0, "other": 1, "ping": 0}


def test_what_is_discarded_is_observed_when_it_changes(scene: Scene) -> None:
    scene.fail("a", "b")
    with scene.db.transaction() as t:
        t.notify("sums", "p", "dirty")
    scene.work()
    gone = [*scene.quarantine.find("docs", "a"), *scene.quarantine.find("sums", "p")]
    assert scene.quarantine.discard(iter(gone)) == 3
    assert scene.quarantine.discard(gone) == 0
    assert scene.quarantine.count() == {"look": 1, "other": 1, "ping": 0}
    scene.broken = False
    scene.work()
    assert scene.ran == []
    put(scene.db, "a", b"2")
    with scene.db.transaction() as t:
        t.notify("sums", "p", "dirty")
    scene.work()
    assert sorted(scene.ran) == [(b"a", b"2"), (b"a", b"2"), (b"p", None)]
    assert scene.quarantine.count() == {"look": 1, "other": 1, "ping": 0}


def test_a_change_is_not_discarded_with_the_failure_before_it(scene: Scene) -> None:
    scene.fail("a")
    looked_at = list(scene.quarantine.cells())
    put(scene.db, "a", b"2")
    assert scene.quarantine.discard(looked_at) == 2
    assert sum(dirty_of(scene.db, scene.chain).backlog().values()) == 2
    scene.broken = False
    scene.work()
    assert scene.ran == [(b"a", b"2")] * 2


def again(scene: Scene) -> None:
    """The cells are tried again, and fail on what they hold now."""
    assert scene.quarantine.retry() == 2
    scene.fail("a")


@pytest.mark.parametrize("when", ["after the look", "while they are compared"])
def test_a_failure_that_nobody_looked_at_is_not_discarded(scene: Scene, when: str) -> None:
    scene.fail("a")
    looked_at = list(scene.quarantine.cells("look"))
    quarantine = scene.quarantine
    if when == "after the look":
        again(scene)
    else:
        store = Interrupted(scene.db, "discard", lambda: again(scene))
        client = SimpleNamespace(store=store, catalog=scene.db.catalog)
        db = SimpleNamespace(store=store, catalog=scene.db.catalog, tables=scene.db.tables, client=client)
        quarantine = Quarantine(db, scene.chain)  # type: ignore[arg-type]
    assert quarantine.discard(looked_at) == 0
    assert scene.quarantine.count() == {"look": 1, "other": 1, "ping": 0}


def test_tablets(scene: Scene, connect: Callable[[], Database]) -> None:
    db = scene.db
    assert tablets(db, "docs") == [TabletStatus(number, 0, 0, 0, 0) for number in range(4)]
    scene.fail("a", "b", "c")
    put(db, "a", b"2")
    put(db, "d", b"1", column="plain")
    found = tablets(db, "docs")
    handle = db.catalog.table("docs")
    rows = [sum(handle.tablet(row) == number for row in (b"a", b"b", b"c", b"d")) for number in range(4)]
    assert [tablet.rows for tablet in found] == rows
    assert [tablet.number for tablet in found] == [0, 1, 2, 3]
    assert (found[handle.tablet(b"a")].dirty, sum(tablet.dirty for tablet in found)) == (2, 2)
    assert sum(tablet.failed for tablet in found) == 6
    assert sum(tablet.locks for tablet in found) == 0
    assert tablets(connect(), "docs", scene.chain) == found
    with pytest.raises(UnknownTable):
        tablets(db, "nowhere")


def test_tablets_count_the_marks_of_a_chain_that_is_not_registered(db: Database) -> None:
    db.create_defined(TableDefinition("docs", 2))
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    fill(db, chain, "look", "docs", range(10))
    assert sum(tablet.failed for tablet in tablets(db, "docs")) == 0
    assert sum(tablet.failed for tablet in tablets(db, "docs", chain)) == 10


class Rows:
    """An observer of three columns that fails on a row as long as one of them says so."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.ran: list[tuple[str, bytes]] = []
        self.meanwhile: Callable[[], object] | None = None
        self.chain = chain_of(
            watch("sum", self._sum, "docs.a", "docs.b", "docs.c", retry=ONCE),
            watch("ping", self._ping, "sums.p", "sums.q", mode="weak", retry=ONCE),
            tables=(TableDefinition("docs", 4), TableDefinition("sums", 4, ("p", "q"))),
        )
        self.chain.create_tables(db)
        self.quarantine = Quarantine(db, self.chain)

    def _sum(self, t: Transaction, cell: Cell) -> None:
        values = t.get_row("docs", cell.row)
        once, self.meanwhile = self.meanwhile, None
        if once is not None:
            once()
        if b"bad" in values.values():
            raise ValueError(values)
        self.ran.append((cell.column, cell.row))

    def _ping(self, t: Transaction, cell: Cell) -> None:
        if t.get("docs", "ping", "is it well") is None:
            raise ValueError(cell)
        self.ran.append((cell.column, cell.row))

    def write(self, row: str, **cells: bytes) -> None:
        with self.db.transaction() as t:
            for column, value in cells.items():
                t.set("docs", row, column, value)

    def work(self) -> None:
        Worker(self.db, self.chain).run_until_idle(PATIENCE)


@pytest.fixture(params=[False, True], ids=["one call", "two phases"])
def observed_rows(db: Database, request: pytest.FixtureRequest) -> Rows:
    db.client.one_call_a_tablet = request.param
    return Rows(db)


def test_a_write_to_one_cell_releases_the_row(observed_rows: Rows) -> None:
    scene = observed_rows
    for row in ("mended", "other"):
        scene.write(row, a=b"1", b=b"bad", c=b"3")
    scene.work()
    assert scene.quarantine.count() == {"ping": 0, "sum": 6}
    scene.write("mended", b=b"2")
    scene.work()
    assert sorted(scene.ran) == [(column, b"mended") for column in "abc"]
    assert names(list(scene.quarantine.cells())) == [("sum", b"other")] * 3
    # Also by a deletion.
    with scene.db.transaction() as t:
        t.delete("docs", "other", "b")
    scene.work()
    assert scene.quarantine.count() == {"ping": 0, "sum": 0}


def test_a_write_that_is_not_committed_releases_nothing(db: Database) -> None:
    scene = Rows(db)
    scene.write("row", a=b"1", b=b"bad", c=b"3")
    scene.work()
    t = db.begin()
    assert t.start_timestamp
    t.set("docs", "row", "b", b"2")
    commit = Commit(db.client, t.start_timestamp, t.mutations())
    commit.prewrite()
    assert scene.quarantine.count()["sum"] == 3
    commit.roll_back()
    scene.work()
    assert scene.quarantine.count()["sum"] == 3
    assert scene.ran == []


def test_a_row_is_released_also_by_a_cell_that_is_dirty_already(observed_rows: Rows) -> None:
    """A worker has it, or it waits for its next attempt: the write sets no mark."""
    scene = observed_rows
    scene.write("row", a=b"1", b=b"bad")
    dirty = dirty_of(scene.db, scene.chain)
    leases, _ = dirty.claim(2)
    held, other = sorted(leases, key=lambda lease: lease.column)
    now = scene.db.timestamp()
    record = {"error": "E", "traceback": "T", "attempts": 1, "time": now}
    assert scene.db.store.run(dirty.quarantine(held, "strong", now, record))
    scene.write("row", b=b"2")
    assert scene.quarantine.count()["sum"] == 0
    scene.db.store.run(dirty.postpone(other, 0, failed=False))
    scene.work()
    assert sorted(scene.ran) == [("a", b"row"), ("b", b"row")]


@pytest.mark.parametrize("column", ["b", "c"])
def test_a_row_that_changes_during_the_last_attempt_is_observed_again(
    observed_rows: Rows, column: str
) -> None:
    """The write found nothing in quarantine yet."""
    scene = observed_rows
    scene.write("row", a=b"1", b=b"bad")
    dirty = dirty_of(scene.db, scene.chain)
    leases, _ = dirty.claim(2)
    held = next(lease for lease in leases if lease.column == b"a")
    run = scene.db.begin()
    assert run.start_timestamp
    scene.write("row", **{column: b"2"})
    record = {"error": "E", "traceback": "T", "attempts": 1, "time": run.start_timestamp}
    assert not scene.db.store.run(dirty.quarantine(held, "strong", run.start_timestamp, record))
    assert len(dirty.claim(2)[0]) == (1 if column == "b" else 2)
    # What has not changed goes there.
    now = scene.db.timestamp()
    assert scene.db.store.run(dirty.quarantine(held, "strong", now, record))


def test_a_notification_releases_the_other_notifications_of_its_row(observed_rows: Rows) -> None:
    scene = observed_rows
    with scene.db.transaction() as t:
        for row in ("r", "s"):
            t.notify("sums", row, "p")
            t.notify("sums", row, "q")
    scene.work()
    assert scene.quarantine.count()["ping"] == 4
    scene.write("ping", **{"is it well": b"yes"})
    with scene.db.transaction() as t:
        t.set("docs", "elsewhere", "x", b"1")
        t.notify("sums", "r", "p")
    scene.work()
    assert sorted(scene.ran) == [("p", b"r"), ("q", b"r")]
    assert scene.quarantine.count()["ping"] == 2
