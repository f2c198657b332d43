"""Every read goes by the definition of the table that was valid at its timestamp, or it is refused.

However long a transaction waits before its first read, and between two of them; and whatever others do to the
table at the same time: ranges are added, columns renamed and dropped, tables dropped and made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, get_args

import pytest

from percolator_core import (
    Database,
    Hash,
    PrimaryKey,
    Range,
    SnapshotTooOld,
    StoreUnavailable,
    Table,
    TransactionConflict,
    UnknownColumn,
    UnknownTable,
)
from percolator_core.layout.keys import decode_column
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Fencing
from percolator_core.transaction.snapshot import Snapshot
from tests.servers.cluster import Cluster
from tests.servers.fixtures import BINARIES, connecting
from tests.servers.plain import Server, commit_of, die

Connect = Callable[..., Database]

REFUSED = (TransactionConflict, SnapshotTooOld)


class Item(Table, name="items", partition=[Hash("name", buckets=2), Range("day", splits=[10])]):
    day: PrimaryKey[int]
    name: PrimaryKey[str]
    price: int
    note: str | None = None


NAMES = [f"n{number:04}" for number in range(60)]
MANY = [f"n{number:04}" for number in range(3000)]
"""So many that a scan takes several steps."""


@pytest.fixture(scope="module", params=["plain", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """On a cluster the timestamp and the reads come from different servers."""
    binary = next(iter(BINARIES.values()), None)
    if binary is None:
        pytest.skip("NOT TESTED: no redis-server on this machine")
    if request.param == "plain":
        with closing(Server(binary)) as server:
            yield server.unix
    else:
        with Cluster(BINARIES.get("system", binary), 2, 0) as cluster:
            yield cluster.url


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    yield from connecting(url)


@pytest.fixture
def db(connect: Connect) -> Database:
    return connect()


@pytest.fixture
def other(connect: Connect) -> Database:
    return connect()


def fill(db: Database, names: Sequence[str] = NAMES, price: int = 7) -> None:
    def insert(t: Any) -> None:
        for name in names:
            t.upsert(Item(day=1, name=name, price=price))

    db.run(insert)


def both_days(t: Snapshot) -> list[int]:
    """The days of the items ``x``, of which one was written to each of two tablets by one transaction."""
    return [item.day for item in t.select(Item, where=Item.name == "x")]


def committed(db: Database, name: str, *days: int) -> None:
    def insert(t: Any) -> None:
        for day in days:
            t.upsert(Item(day=day, name=name, price=1))

    db.run(insert)


@pytest.fixture
def many() -> None:
    """For tests of scans that others overtake."""


@pytest.fixture(params=["begun", "read before", "snapshot", "pinned"])
def reader(request: pytest.FixtureRequest, db: Database) -> Iterator[Snapshot]:
    """A transaction that has read nothing yet, or something; a snapshot; a pinned one."""
    db.create_table(Item)
    db.create_table("raw", tablets=4)
    names = MANY if "many" in request.fixturenames else NAMES
    fill(db, names)
    with db.transaction() as t:
        for name in names:
            t.set("raw", name, "text", b"one")
    if request.param == "begun":
        yield db.begin()
    elif request.param == "read before":
        t = db.begin()
        assert t.get("raw", NAMES[0], "text") == b"one"
        yield t
    elif request.param == "snapshot":
        yield db.snapshot()
    else:
        with db.snapshot() as snapshot:
            yield snapshot


def test_a_range_is_added(reader: Snapshot, other: Database) -> None:
    """A transaction that wrote to a new tablet and to an old one is seen as a whole, or not."""
    other.add_range(Item, 20)
    committed(other, "x", 1, 30)
    with suppress(*REFUSED):
        assert both_days(reader) in ([], [1, 30])
        committed(other, "y", 2, 31)
        first = both_days(reader)
        committed(other, "x", 3, 32)
        assert both_days(reader) == first


def test_a_range_is_added_and_rows_are_looked_up(reader: Snapshot, other: Database) -> None:
    other.add_range(Item, 20)
    committed(other, "x", 1, 30)
    with suppress(*REFUSED):
        found = [reader.find(Item, day=day, name="x") is not None for day in (1, 30)]
        assert found in ([False, False], [True, True])


def recreate(db: Database) -> None:
    db.drop_table("raw")
    db.create_table("raw", tablets=7)
    with db.transaction() as t:
        for name in NAMES[:20]:
            t.set("raw", name, "text", b"two")


READS: dict[str, Callable[[Snapshot], Any]] = {
    "get": lambda t: {name: t.get("raw", name, "text") for name in NAMES[:40]},
    "get_many": lambda t: dict(
        zip(NAMES[:40], t.get_many(("raw", name, "text") for name in NAMES[:40]), strict=True)
    ),
    "get_row": lambda t: {name: t.get_row("raw", name).get("text") for name in NAMES[:40]},
    "named": lambda t: {name: t.get_row("raw", name, ["text", "no"]).get("text") for name in NAMES[:40]},
    "scan": lambda t: {
        name: {row.decode(): cells["text"] for row, cells in t.scan("raw")}.get(name) for name in NAMES[:40]
    },
}


@pytest.mark.parametrize("read", READS)
def test_a_table_is_dropped_and_made_again(reader: Snapshot, other: Database, read: str) -> None:
    """Its old rows are all there, or its new ones, by however many tablets."""
    recreate(other)
    old = dict.fromkeys(NAMES[:40], b"one")
    new = {name: b"two" if name in NAMES[:20] else None for name in NAMES[:40]}
    with suppress(*REFUSED):
        assert READS[read](reader) in (old, new)
        assert READS[read](reader) in (old, new)


@pytest.mark.parametrize("read", READS)
def test_a_table_is_gone(reader: Snapshot, other: Database, read: str) -> None:
    other.drop_table("raw")
    with pytest.raises((*REFUSED, UnknownTable)):
        READS[read](reader)


@pytest.mark.parametrize("read", READS)
def test_a_table_is_in_the_middle_of_its_drop(reader: Snapshot, other: Database, read: str) -> None:
    """Some of its rows are gone, others are there."""
    entry = other.catalog.entry("raw")
    assert entry is not None
    held = other.catalog.replace(entry, entry.definition, pending={"kind": "drop", "observers": []})
    assert held is not None
    for step in other.schema_changes.steps(held):
        if step == "indexes":
            break
    for number in range(4):
        tag = other.store.keyspace.tag("raw", number)
        assert other.store.run(calls.drop_table(tag, held.version, 5, ())) == 5
    with pytest.raises((*REFUSED, UnknownTable)):
        READS[read](reader)


def test_what_follows_from_a_wrong_read_is_not_committed(db: Database, other: Database) -> None:
    db.create_table("raw", tablets=4)
    db.create_table("sums", tablets=2)
    t = db.begin()
    recreate(other)

    def add_up() -> None:
        t.set("sums", "all", "count", str(len(list(t.scan("raw")))).encode())
        t.commit()

    with suppress(*REFUSED):
        add_up()
        assert other.snapshot().get("sums", "all", "count") == b"20"


@pytest.mark.usefixtures("many")
def test_a_scan_that_was_begun_ends_in_an_error(reader: Snapshot, other: Database) -> None:
    rows = reader.scan("raw")
    found = [next(rows) for _ in range(10)]
    other.drop_table("raw")
    with pytest.raises(REFUSED):
        found += list(rows)
    assert len(found) < len(MANY)


@pytest.mark.usefixtures("many")
def test_a_select_that_was_begun_ends_in_an_error(reader: Snapshot, other: Database) -> None:
    items = reader.select(Item)
    found = [next(items) for _ in range(10)]
    other.drop_table(Item)
    with pytest.raises(REFUSED):
        found += list(items)
    assert len(found) < len(MANY)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("where", [None, Item.price == 7], ids=["all", "by the column"])
def test_a_column_is_dropped_under_a_select(reader: Snapshot, other: Database, where: Any) -> None:
    """Each item that comes has its price: an int is never null."""
    items = reader.select("items", where=where)
    found = [next(items) for _ in range(10)]
    other.drop_column(Item, "price")
    with pytest.raises(REFUSED):
        found += list(items)
    assert {item["price"] for item in found} == {7}


def test_a_column_is_dropped_under_rows_that_are_looked_up(reader: Snapshot, other: Database) -> None:
    before = reader.find("items", day=1, name=NAMES[0])
    assert before is not None
    assert before["price"] == 7
    other.drop_column(Item, "price")

    def read_on() -> None:
        for name in NAMES[1:]:
            item = reader.find("items", day=1, name=name)
            assert item is not None
            assert item["price"] == 7

    with pytest.raises(REFUSED):
        read_on()


def test_a_column_has_one_name_in_one_answer(reader: Snapshot, db: Database, other: Database) -> None:
    """Also where an older version, or a lock, has the cell read by another way."""
    reader.start_timestamp  # noqa: B018 - fixes the snapshot
    fill(db, price=8)
    other.rename_column(Item, "price", "cost")
    with suppress(*REFUSED):
        names = {name for item in reader.select("items") for name in item}
        assert names == {"day", "name", "price", "note"}
    past = other.snapshot(at=reader.start_timestamp)
    assert {name for item in past.select("items") for name in item} == {"day", "name", "cost", "note"}
    assert {name for _, cells in past.scan("items") for name in cells} == {"cost"}
    assert {item["cost"] for item in past.select("items")} == {7}


def test_no_snapshot_is_from_before_a_table_or_the_end_of_a_column(db: Database, other: Database) -> None:
    db.create_table(Item)
    before = db.timestamp()
    db.create_table("raw", tablets=2)
    fill(db)
    between = db.timestamp()
    other.drop_column(Item, "price")
    for read in (
        lambda t: t.get("raw", "a", "b"),
        lambda t: list(t.scan("raw")),
        lambda t: t.get_row("raw", "a"),
    ):
        with pytest.raises(SnapshotTooOld):
            read(db.snapshot(at=before))
        assert not read(db.snapshot())
    with pytest.raises(SnapshotTooOld):
        list(db.snapshot(at=between).select("items"))


def test_a_definition_is_known_at_once(db: Database, other: Database) -> None:
    """A client reads by the present definition, even if it looked at the catalog less than a second ago."""
    db.create_table(Item)
    committed(db, "x", 1)
    other.rename_column(Item, "price", "cost")
    assert [item["cost"] for item in db.snapshot().select("items")] == [1]
    with pytest.raises(UnknownColumn):
        db.snapshot().explain("items", columns_missing())
    other.drop_table(Item)
    with pytest.raises(UnknownTable):
        db.snapshot().find("items", day=1, name="x")


def columns_missing() -> Any:
    return Item.price == 1


def test_the_error_of_the_block_comes_out(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned snapshot is let go of without a word when the store is away and the block has failed."""
    db = connect()
    db.create_table("raw", tablets=2)

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the store is away")

    def fail() -> None:
        with db.snapshot():
            monkeypatch.setattr(db.store, "one", away)
            monkeypatch.setattr(db.store, "defer", away)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    monkeypatch.undo()


def test_an_empty_transaction_asks_for_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.create_table("raw", tablets=2)
    token = db.timestamp()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a request was sent")

    t = db.begin(after=token)
    monkeypatch.setattr(db.store, "exchange", refuse)
    assert t.commit() >= token
    assert t.commit_timestamp is not None
    with db.transaction() as t:
        pass


def test_a_fence_that_comes_late_brings_no_tablet_back(reader: Snapshot, other: Database) -> None:
    """A client stands still between reading an entry and fencing, or its request is sent twice."""
    entry = other.catalog.entry("raw")
    assert entry is not None
    tags = [other.store.keyspace.tag("raw", number) for number in range(4)]
    other.drop_table("raw")
    for how in get_args(Fencing):
        late = [calls.fence(tag, entry.version, 0, how, ("safe", "0")) for tag in tags]
        assert other.store.run_all(late) == [False] * 4
        with pytest.raises((*REFUSED, UnknownTable)):
            list(reader.scan("raw"))


def test_a_read_in_several_steps_goes_by_one_definition(db: Database, other: Database) -> None:
    """The first step fixes the snapshot, and meets the change of a table that comes later in the list."""
    db.create_table("steps", tablets=2)
    db.create_table("raw", tablets=4)
    t = db.begin()
    recreate(other)
    cells = [("steps", f"{number}", "text") for number in range(600)]
    with suppress(*REFUSED):
        found = t.get_many([*cells, *(("raw", name, "text") for name in NAMES[:20])])
        assert found[600:] == [b"two"] * 20


def test_a_column_is_dropped_that_had_the_primary_of_a_dead_client(db: Database, connect: Connect) -> None:
    """Its other writes are made visible before nobody can tell any more that it committed."""
    db.create_table(Item)
    db.create_table("raw", tablets=2)
    writer = connect()
    writer.client.one_call_a_tablet = True
    with writer.transaction() as first:
        first.insert(Item(day=1, name="x", price=1))
    t = writer.begin()
    t.update(Item, day=1, name="x", price=2)
    t.set("raw", "row", "text", b"there")
    commit = commit_of(t)
    commit.commit_primary(commit.prewrite())
    assert decode_column(commit.primary.column) == "price"
    die(writer)
    db.drop_column(Item, "price")
    assert db.snapshot().get("raw", "row", "text") == b"there"


def test_a_history_goes_by_the_table_as_it_is(db: Database, other: Database) -> None:
    db.create_table("raw", tablets=4)
    assert db.snapshot().get("raw", "a", "text") is None
    recreate(other)
    assert [len(db.history("raw", name, "text")) for name in NAMES[:20]] == [1] * 20
