"""Schema changes: the next client finishes a change, at whichever step the first client stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from percolator_core import (
    ConfigurationError,
    Database,
    LockTimeout,
    TransactionConflict,
    UnknownColumn,
    UnknownTable,
)
from percolator_core.base.changes import BaseChanges
from percolator_core.catalog.catalog import Entry
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.layout.records import PUT
from percolator_core.maintenance.locks import Locks
from percolator_core.notifications.activation import activate
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.schema.definitions import Column, HashRule, RangeRule, TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Fate
from percolator_core.tables import rows
from tests.servers.plain import PATIENCE, commit_of, die

Connect = Callable[..., Database]


DOCS = TableDefinition(
    "docs",
    4,
    columns=(
        Column("site", "str"),
        Column("page", "int"),
        Column("title", "str"),
        Column("rank", "float", nullable=True),
    ),
    key=("site", "page"),
    hashes=(HashRule(("page",), 2),),
    ranges=RangeRule("site", (b"m",), (0, 1)),
)
LANGUAGE = Column("language", "str", missing=b"en")


def key(site: str, page: int) -> bytes:
    return KeyCodec(DOCS).encode((site, page))


def write(db: Database, site: str, page: int, attempts: int = 10, **cells: bytes) -> None:
    def insert(t: object) -> None:
        rows.upsert(t, t.handle_of("docs"), key(site, page), cells, {})  # type: ignore[attr-defined, arg-type]

    db.run(insert, attempts)


def read(db: Database, site: str, page: int) -> dict[str, bytes | None] | None:
    snapshot = db.snapshot()
    handle = snapshot.handle_of("docs")
    return rows.read(snapshot, handle, key(site, page), list(handle.columns))


def looks_again(db: Database) -> Database:
    """The database, as if a second had passed since it looked at the catalog."""
    db.client.catalog.due = -1.0
    return db


@pytest.fixture
def made(connect: Connect) -> Database:
    db = connect()
    db.create_defined(DOCS)
    write(db, "a", 1, title=b"one", rank=b"r")
    write(db, "z", 2, title=b"two", rank=b"r")
    return db


class Stopped(Exception):
    pass


def stop_after(db: Database, count: int, change: Callable[[SchemaChanges], None]) -> bool:
    """Begin a change, and die after so many of its steps; whether it had as many."""

    class Dying(SchemaChanges):
        taken = 0

        def steps(self, entry: Entry) -> Iterator[str]:
            if count == 0:
                raise Stopped
            for step in super().steps(entry):
                yield step
                Dying.taken += 1
                if Dying.taken == count:
                    raise Stopped

    try:
        change(Dying(db.client, Locks(db.client), BaseChanges(db.client)))
    except Stopped:
        return True
    return False


CHANGES: dict[str, Callable[[SchemaChanges], None]] = {
    "add column": lambda changes: changes.add_column("docs", LANGUAGE),
    "drop column": lambda changes: changes.drop_column("docs", "title"),
    "rename column": lambda changes: changes.rename_column("docs", "title", "headline"),
    "rename key": lambda changes: changes.rename_column("docs", "site", "host"),
    "add range": lambda changes: changes.add_range("docs", b"g"),
    "create": lambda changes: changes.create(TableDefinition("more", 3)),
}


def is_done(db: Database, change: str) -> bool:
    definition = db.catalog.table("docs").definition
    return {
        "add column": lambda: "language" in definition.by_name,
        "drop column": lambda: "title" not in definition.by_name,
        "rename column": lambda: "headline" in definition.by_name,
        "rename key": lambda: definition.key == ("host", "page"),
        "add range": lambda: definition.tablets == 6,
        "create": lambda: any(one.name == "more" for one in db.tables()),
    }[change]()


def nothing_is_under_way(db: Database) -> bool:
    return not any(entry.pending or entry.sweep for entry in db.catalog.entries())


@pytest.mark.parametrize("finder", ["writer", "collector", "changer", "activator"])
@pytest.mark.parametrize("change", CHANGES)
def test_who_comes_next_finishes(made: Database, connect: Connect, change: str, finder: str) -> None:
    writer = connect()
    write(writer, "a", 7, rank=b"r", title=b"t")
    count = 0
    while stop_after(made, count, CHANGES[change]):
        if finder == "writer":
            if change == "create":
                # Until it is published there is no such table, and who wants it creates it.
                with suppress(UnknownTable):
                    writer.run(lambda t: t.set("more", "row", "c", b"1"))
                CHANGES[change](writer.schema_changes)
            else:
                write(writer, "a", 8, rank=b"%d" % count)
                assert (read(writer, "a", 8) or {})["rank"] == b"%d" % count
        elif finder == "collector":
            writer.collect_garbage(timedelta(0))
            assert nothing_is_under_way(writer)
        elif finder == "activator":
            activate(writer, {("docs", "rank"): ["watcher"]}, "digest")
            tags = writer.catalog.table("docs").tags
            known = writer.store.call(*[(b"HGET", tag + b"meta", b"orank") for tag in tags])
            assert known == [b"watcher"] * len(tags)
        else:
            # Once it is published the change is made: then there is no such column.
            with suppress(UnknownColumn):
                CHANGES[change](writer.schema_changes)
            assert nothing_is_under_way(writer)
        fresh = connect()
        assert not any(entry.pending for entry in fresh.catalog.entries())
        assert is_done(fresh, change)
        count += 1
        # And again from the start.
        undo(made, change)
    assert count > 1
    looks_again(writer).catalog.keep_fresh()
    assert is_done(writer, change)
    assert (read(connect(), "z", 2) or {})["rank"] == b"r"


def undo(db: Database, change: str) -> None:
    changes = db.schema_changes
    if change == "add column":
        changes.drop_column("docs", "language")
    elif change == "drop column":
        changes.finish_all()
        changes.add_column("docs", Column("title", "str", missing=b"none"))
    elif change == "rename column":
        changes.rename_column("docs", "headline", "title")
    elif change == "rename key":
        changes.rename_column("docs", "host", "site")
    elif change == "create":
        changes.drop("more")
    else:
        db.drop_table("docs")
        db.create_defined(DOCS)
        write(db, "a", 1, title=b"one", rank=b"r")
        write(db, "z", 2, title=b"two", rank=b"r")


def test_a_drop_that_broke_off_is_a_drop(made: Database, connect: Connect) -> None:
    other = connect()
    read(other, "a", 1)
    for count in range(1, 7):
        if not stop_after(made, count, lambda changes: changes.drop("docs")):
            break
        with pytest.raises((TransactionConflict, UnknownTable)), other.transaction() as t:
            t.put(other.catalog.table("docs"), key("a", 1), b"title", (PUT, b"astray"))
        with pytest.raises(UnknownTable):
            write(other, "a", 1)
        assert [one.name for one in other.tables()] == []
        other.create_defined(DOCS)
        assert read(other, "a", 1) is None
        write(other, "a", 1, title=b"new", rank=b"r")
        assert (read(other, "a", 1) or {})["title"] == b"new"
    assert count == 6
    keys = made.store.one((b"KEYS", b"*:docs:*"))
    left = [name for name in keys if made.namespace.replace(" ", "%20").encode() in name]
    assert made.store.call(*[(b"HKEYS", name) for name in left]) == [[b"gone"]] * DOCS.tablets


def test_a_resolved_lock_leaves_nothing_where_its_primary_was(made: Database) -> None:
    """A prewrite that was late, of a transaction with its primary in a table that is dropped by then."""
    tags = made.catalog.table("docs").tags
    made.drop_table("docs")
    asked = [calls.resolve_primary(tag, 1, b"row", b"title", "dead", 0, 0) for tag in tags]
    assert made.store.run_all(asked) == [Fate("rolled back")] * len(tags)
    kept = [made.store.one((b"KEYS", b"*" + tag.strip(b"{}").rpartition(b"%20")[2] + b"*")) for tag in tags]
    assert kept == [[tag + b"meta"] for tag in tags]


def test_one_who_is_late_harms_no_table_made_since(made: Database, connect: Connect) -> None:
    """A drop stops before each step; others finish it and make the table anew; then it goes on."""
    other = connect()
    for count in range(5):
        begun = made.catalog.entry("docs")
        assert begun is not None
        plan = {"kind": "drop", "token": "mine", "observers": []}
        held = made.catalog.replace(begun, begun.definition, pending=plan)
        assert held is not None
        steps = made.schema_changes.steps(held)
        for _ in range(count):
            next(steps, None)
        other.schema_changes.create(DOCS)
        write(other, "a", 1, title=b"new", rank=b"%d" % count)
        list(steps)
        assert (read(other, "a", 1) or {})["rank"] == b"%d" % count
        write(other, "a", 2, title=b"new", rank=b"r")


def test_a_table_made_anew_is_noticed(connect: Connect) -> None:
    reader, writer, db = connect(), connect(), connect()
    db.create_table("x", tablets=16)
    with db.transaction() as t:
        t.set("x", "row", "c", b"old")
    assert reader.snapshot().get("x", "row", "c") == b"old"
    late = writer.begin()
    assert late.get("x", "row", "c") == b"old"
    late.set("x", "row", "c", b"astray")
    old = writer.catalog.table("x")
    db.drop_table("x")
    db.create_table("x", tablets=3)
    with pytest.raises(TransactionConflict, match="table changed"):
        late.commit()
    # One that has not looked since.
    writer.catalog.handles["x"], writer.catalog.due = old, time.monotonic() + 60
    blind = writer.begin()
    blind.set("x", "row", "c", b"astray")
    with pytest.raises(TransactionConflict, match="table changed"):
        blind.commit()
    writer.run(lambda t: t.set("x", "row", "c", b"new"))
    assert reader.snapshot().get("x", "row", "c") == b"new"
    with reader.transaction() as t:
        assert t.get("x", "row", "c") == b"new"
    db.drop_table("x")
    with pytest.raises(UnknownTable):
        reader.snapshot().get("x", "row", "c")
    with pytest.raises((UnknownTable, TransactionConflict)):
        looks_again(writer).run(lambda t: t.notify("x", "row", "c"))


def test_a_notification_by_an_old_definition_is_refused(connect: Connect) -> None:
    writer, db = connect(), connect()
    db.create_table("x", 2, ["ping"])
    t = writer.begin()
    t.notify("x", "row", "ping")
    db.drop_table("x")
    db.create_table("x", 3, ["ping"])
    with pytest.raises(TransactionConflict, match="table changed"):
        t.commit()
    writer.run(lambda t: t.notify("x", "row", "ping"))


@pytest.mark.parametrize("dies", [False, True])
def test_the_fence_settles_what_is_in_flight(made: Database, connect: Connect, dies: bool) -> None:
    writer = connect()
    writer.client.one_call_a_tablet = True
    t = writer.begin()
    assert t.start_timestamp
    handle = writer.catalog.table("docs")
    for row in (key("a", 1), key("z", 2)):
        t.put(handle, row, b"title", (PUT, b"in flight"))
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    if dies:
        die(writer)
        made.drop_column("docs", "rank")
        assert (read(made, "a", 1) or {})["title"] == b"one"
        return
    impatient = connect(lock_wait=0.05)
    with pytest.raises(LockTimeout):
        impatient.drop_column("docs", "rank")
    with pytest.raises(TransactionConflict, match="table changed"), impatient.transaction() as other:
        other.put(handle, key("a", 5), b"title", (PUT, b"late"))
    done = threading.Thread(target=made.drop_column, args=("docs", "rank"))
    done.start()
    commit.commit_secondaries(commit.commit_primary(commit_ts))
    done.join(PATIENCE)
    assert not done.is_alive()
    for site, page in (("a", 1), ("z", 2)):
        assert read(connect(), site, page) == {"title": b"in flight"}


def test_a_later_change_asks_again_how_a_transaction_ended(made: Database, connect: Connect) -> None:
    """A failover may lose a commit. A client that had seen it must not publish the other half later."""
    made.create_table("primaries", tablets=1)
    writer = connect()
    writer.client.one_call_a_tablet = True
    t = writer.begin()
    t.set("primaries", "p", "v", b"both")
    handle, row = t.handle_of("docs"), key("a", 1)
    t.put(handle, row, b"title", (PUT, b"both"))
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    tags = (*made.catalog.table("primaries").tags, *handle.tags)
    names = [tag + one for tag in tags for one in (b"r:p", b"r:" + row, b"v:" + row, b"locks")]
    prewritten = made.store.call(*[(b"DUMP", name) for name in names])
    commit.commit_primary(commit_ts)
    die(writer)
    made.schema_changes.add_column("docs", LANGUAGE)
    assert (read(made, "a", 1) or {})["title"] == b"both"
    for name, packed in zip(names, prewritten, strict=True):
        made.store.one((b"RESTORE", name, 0, packed, b"REPLACE") if packed else (b"DEL", name))
    made.schema_changes.rename_column("docs", "language", "tongue")
    assert (read(made, "a", 1) or {})["title"] == b"one"
    assert made.snapshot().get("primaries", "p", "v") is None


def test_two_changes_at_once(made: Database, connect: Connect) -> None:
    names = [f"c{number}" for number in range(6)]
    clients = [connect() for _ in names]

    def add(db: Database, name: str) -> None:
        db.schema_changes.add_column("docs", Column(name, "str", nullable=True))
        db.schema_changes.rename_column("docs", name, name + "x")

    threads = [threading.Thread(target=add, args=pair) for pair in zip(clients, names, strict=True)]
    for thread in threads:
        thread.start()
    for number in range(20):
        # Twelve changes at once refuse a transaction more often than `run` usually tries.
        write(made, "a", 1, attempts=1000, title=b"%d" % number)
    for thread in threads:
        thread.join(PATIENCE)
    definition = connect().catalog.table("docs").definition
    assert sorted(definition.by_name) == sorted(
        ["site", "page", "title", "rank", *(name + "x" for name in names)]
    )
    assert (read(connect(), "a", 1) or {})["title"] == b"19"


def test_a_dropped_column_leaves_nothing_and_its_name_is_free(made: Database) -> None:
    before = made.catalog.table("docs")
    for _ in range(3):
        write(made, "a", 1, title=b"again")
    tag, row = before.tag(key("a", 1)), key("a", 1)
    made.drop_column("docs", "title")
    assert made.store.one((b"HEXISTS", tag + b"r:" + row, b"ctitle")) == 0
    assert made.store.one((b"EXISTS", tag + b"v:" + row)) == 0
    assert read(made, "a", 1) == {"rank": b"r"}
    made.schema_changes.add_column("docs", Column("title", "int", missing=column_type("int").encode(7)))
    handle = made.catalog.table("docs")
    assert handle.columns["title"].encoded == b"2.title"
    assert handle.decode(b"title") == "title (dropped)"
    with pytest.raises(UnknownColumn):
        handle.fields(b"title")
    assert (read(made, "a", 1) or {})["title"] == column_type("int").encode(7)


def test_columns_that_cannot_be_dropped_added_or_renamed(made: Database) -> None:
    changes = made.schema_changes
    refused: list[tuple[Callable[[], None], str]] = [
        (lambda: changes.drop_column("docs", "site"), "part of the key"),
        (lambda: changes.rename_column("docs", "title", "rank"), "rank exists"),
        (lambda: changes.add_column("docs", Column("title", "int", nullable=True)), "exists as str"),
        (lambda: changes.add_column("docs", Column("x", "int")), "give the column a default"),
        (lambda: changes.add_column("docs", Column("x", "int", True, missing=b"1")), "may be null"),
        (lambda: changes.add_column("docs", Column("x", "fancy", True)), "there is no type"),
    ]
    for change, match in refused:
        with pytest.raises(ConfigurationError, match=match):
            change()
    with pytest.raises(UnknownColumn):
        changes.drop_column("docs", "nothing")
    with pytest.raises(UnknownColumn):
        changes.rename_column("docs", "nothing", "x")
    with pytest.raises(UnknownTable):
        changes.drop_column("nothing", "x")
    made.create_table("raw")
    with pytest.raises(ConfigurationError, match="raw"):
        changes.drop_column("raw", "x")
    changes.add_column("docs", LANGUAGE)
    version = made.catalog.table("docs").version
    changes.add_column("docs", LANGUAGE)
    assert made.catalog.table("docs").version == version


def test_a_watched_column_is_not_dropped_and_may_be_renamed(made: Database, connect: Connect) -> None:
    observed = {("docs", "title"): ["watcher"]}
    activate(made, observed, "digest")
    with pytest.raises(ConfigurationError, match="'watcher'"):
        made.drop_column("docs", "title")
    made.rename_column("docs", "title", "headline")
    write(made, "a", 3, headline=b"new")
    dirty = DirtyIndex(made.client, observed)
    assert dirty.backlog() == {"watcher": 1}
    with pytest.raises(UnknownColumn):
        activate(made, observed, "digest")
    activate(made, {("docs", "headline"): ["watcher"]}, "digest")
    assert dirty.backlog() == {"watcher": 1}
    leases, _ = dirty.claim(10)
    assert [made.catalog.column_name("docs", lease.column) for lease in leases] == ["headline"]


@pytest.mark.parametrize(("site", "value", "number"), [("a", b"g", 2), ("h", b"g", 2)])
def test_ranges_are_cut_where_no_row_moves(connect: Connect, site: str, value: bytes, number: int) -> None:
    db, other = connect(), connect()
    db.create_defined(DOCS)
    activate(db, {("docs", "title"): ["watcher"]}, "digest")
    dirty = DirtyIndex(other.client, {("docs", "title"): ["watcher"]})
    write(db, site, 1, title=b"one")
    write(other, "z", 1, title=b"one")
    db.add_range("docs", value.decode())
    handle = db.catalog.table("docs")
    assert handle.tablets == 6
    rule = handle.definition.ranges
    assert rule is not None
    assert rule.splits == (b"g", b"m")
    assert rule.numbers == ((0, 2, 1) if site == "a" else (2, 0, 1))
    for name in ("b", "k", "y"):
        write(other, name, 1, title=name.encode())
        assert (read(db, name, 1) or {})["title"] == name.encode()
    assert (read(db, site, 1) or {})["title"] == b"one"
    assert handle.tag(key("k" if site == "a" else "b", 1)) in handle.tags[4:]
    looks_again(other)
    assert dirty.backlog() == {"watcher": 5}
    assert len(dirty.claim(10)[0]) == 5
    db.add_range("docs", value.decode())
    assert db.catalog.table("docs") is handle
    db.create_defined(DOCS)
    assert db.catalog.table("docs").tablets == 6


@pytest.mark.parametrize("column", ["site", "page"])
def test_a_range_with_rows_on_both_sides_is_refused(connect: Connect, column: str) -> None:
    db = connect()
    encode = column_type("int" if column == "page" else "str").encode
    splits = (encode(1000),) if column == "page" else (b"zz",)
    db.create_defined(DOCS.with_(hashes=(), tablets=2, ranges=RangeRule(column, splits, (0, 1))))
    write(db, "a", 1, title=b"one")
    write(db, "h", 20, title=b"one")
    version = db.catalog.table("docs").version
    with pytest.raises(ConfigurationError, match=r"site='a', page=1 below it or site='h', page=20 above"):
        db.add_range("docs", 10 if column == "page" else "g")
    assert db.catalog.table("docs").version == version
    # A row that comes after the first look is found by the second.
    changes = db.schema_changes
    entry = db.catalog.entry("docs")
    assert entry is not None
    held = changes.begin(entry, {"kind": "add range", "value": encode(10 if column == "page" else "g").hex()})
    assert held is not None
    with pytest.raises(ConfigurationError, match="would move rows"):
        changes.finish(held, is_ours=True)
    write(db, "h", 21, title=b"one")
    assert db.catalog.table("docs").tablets == 2
    assert nothing_is_under_way(db)


def test_entry_and_tablets_that_do_not_agree(made: Database, connect: Connect) -> None:
    """A failover may lose one of both: the next writer mends it."""
    for version in (b"999", b"0"):
        made.store.call(
            *[(b"HSET", tag + b"meta", b"version", version) for tag in made.catalog.table("docs").tags]
        )
        if version == b"999":
            made.store.one((b"HSET", made.store.keyspace.catalog, b"\xff", b"1000"))
        writer = connect()
        write(writer, "a", 1, title=b"mended" + version)
        assert (read(writer, "a", 1) or {})["title"] == b"mended" + version
        made.catalog.expire()


def test_every_kind_of_store(connect_to_every_kind: Connect) -> None:
    db, other = connect_to_every_kind(), connect_to_every_kind()
    db.create_defined(DOCS)
    write(other, "a", 1, title=b"one")
    db.schema_changes.add_column("docs", LANGUAGE)
    db.rename_column("docs", "title", "headline")
    db.add_range("docs", "g")
    write(other, "k", 1, headline=b"two")
    db.drop_column("docs", "rank")
    assert read(db, "a", 1) == {"headline": b"one", "language": b"en"}
    assert read(db, "k", 1) == {"headline": b"two", "language": b"en"}
    other.collect_garbage(timedelta(0))
    other.drop_table("docs")
    with pytest.raises(UnknownTable):
        db.run(lambda t: rows.upsert(t, db.catalog.table("docs"), key("a", 1), {}, {}))


def test_a_column_that_is_added_to_a_watched_table_is_watched(made: Database) -> None:
    """A chain may know of it: the table was dropped, and made again without the column."""
    made.drop_table("docs")
    made.create_defined(DOCS.with_(columns=(*DOCS.columns, LANGUAGE)))
    activate(made, {("docs", "language"): ["watcher"]}, "digest")
    made.drop_table("docs")
    made.create_defined(DOCS)
    made.schema_changes.add_column("docs", LANGUAGE)
    handle = made.catalog.table("docs")
    field = b"o" + handle.columns["language"].encoded
    known = made.store.call(*[(b"HGET", tag + b"meta", field) for tag in handle.tags])
    assert known == [b"watcher"] * len(handle.tags)
