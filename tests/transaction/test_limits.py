"""Values, rows and transactions as large as they may be, and all that is done with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest

import percolator_core as percolator
from percolator_core import Database, Transaction, TransactionConflict
from percolator_core.layout.keys import MAX_COLUMN, encode_mark, pack_column
from percolator_core.layout.records import MAX_ROW, MAX_VALUE
from percolator_core.notifications.ack import acknowledge
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.schema.definitions import TableDefinition
from percolator_core.scripts import calls
from percolator_core.transaction.write_set import CELLS_PER_CALL
from tests.chains import chain_of, watch
from tests.servers.cluster import Cluster
from tests.servers.fixtures import BINARIES, Connect, connecting
from tests.servers.plain import Server, commit_of, die

NOTHING = timedelta(0)
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module", params=["embedded", pytest.param("tcp", marks=pytest.mark.slow), "cluster"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "embedded":
            found = f"embedded:{tmp_path_factory.mktemp('store')}"
            stack.enter_context(percolator.connect(found, "keeper"))
        elif "system" not in BINARIES:
            pytest.skip("NOT TESTED: no redis-server on this machine")
        elif request.param == "tcp":
            found = stack.enter_context(closing(Server(BINARIES["system"]))).tcp
        else:
            found = stack.enter_context(Cluster(BINARIES["system"], 3, 0)).url
        yield found


@pytest.fixture
def connect_here(url: str) -> Iterator[Connect]:
    # A machine under load may take longer for what is this large than the usual limits allow.
    patient = {"timeout": 60.0, "patience": 60.0, "lock_ttl": 60.0}
    made = connecting(url)
    make = next(made)
    yield lambda **settings: make(**patient, **settings)
    next(made, None)


@pytest.fixture
def watched(connect_here: Connect) -> tuple[Database, DirtyIndex]:
    """A database in which the column ``v`` is observed, and its dirty cells."""
    db = connect_here()
    chain = chain_of(watch("look", lambda t, cell: None, "t.v"), tables=(TableDefinition("t"),))
    chain.create_tables(db)
    return db, DirtyIndex(db.client, chain.observed)


def observe(db: Database, dirty: DirtyIndex, room: int) -> int:
    """Run an observer that does nothing on up to so many dirty cells; returns how many it was given."""
    leases, _ = dirty.claim(room)
    for lease in leases:
        run = Transaction(db.client)
        assert acknowledge(run, lease, "strong")
        run.commit()
        assert db.store.run(dirty.clear(lease, "strong", run.start_timestamp))
    return len(leases)


def is_gone(db: Database) -> bool:
    """Whether a dropped table has left nothing but that it is gone."""
    pattern = db.store.keyspace.prefix.replace(b"}", b":t:") + b"*"
    ask = db.store.ask
    return all(
        ask(endpoint, (b"TYPE", key)) == b"hash" and ask(endpoint, (b"HKEYS", key)) == [b"gone"]
        for endpoint in db.store.endpoints()
        for key in ask(endpoint, (b"KEYS", pattern))
    )


def test_a_value_of_64_mebibytes(watched: tuple[Database, DirtyIndex]) -> None:
    db, dirty = watched
    value = bytes(range(256)) * (64 * MEBIBYTE // 256)
    with db.transaction() as t:
        t.set("t", "large", "v", value)
        t.set("t", "small", "v", b"beside it, so that there are two phases")
    first = db.timestamp()
    assert db.snapshot().get("t", "large", "v") == value
    assert db.snapshot().get_row("t", "large") == {"v": value}
    assert observe(db, dirty, 2) == 2
    with db.transaction() as t:
        t.set("t", "large", "v", value[:-1])
    assert [len(version.value or b"") for version in db.history("t", "large", "v")] == [
        len(value) - 1,
        len(value),
    ]
    assert db.snapshot(first).get("t", "large", "v") == value
    assert {row: len(cells["v"]) for row, cells in db.snapshot().scan("t", columns=["v"])} == {
        b"large": len(value) - 1,
        b"small": 39,
    }
    assert observe(db, dirty, 2) == 1
    assert db.collect_garbage(NOTHING).versions >= 1
    assert db.snapshot().get("t", "large", "v") == value[:-1]
    db.drop_table("t")
    assert is_gone(db)


def test_a_row_of_10_000_columns(watched: tuple[Database, DirtyIndex]) -> None:
    db, dirty = watched
    columns = ["v", *(f"c{number}" for number in range(9_999))]
    old, new = dict.fromkeys(columns, b"old"), dict.fromkeys(columns, b"new")
    between = 0
    for cells in (old, new):
        with db.transaction() as t:
            for column, value in cells.items():
                t.set("t", "wide", column, value)
        if cells is old:
            between = db.timestamp()
        assert db.snapshot().get_row("t", "wide") == cells
        assert db.snapshot().get_row("t", "wide", columns) == cells
        assert list(db.snapshot().scan("t")) == [(b"wide", cells)]
        assert list(db.snapshot().scan("t", columns=columns)) == [(b"wide", cells)]
        assert observe(db, dirty, 10) == 1
    assert db.snapshot(between).get_row("t", "wide") == old
    assert db.snapshot(between).get_many([("t", "wide", column) for column in columns]) == [b"old"] * 10_000
    assert len(db.history("t", "wide", "c9998")) == 2
    assert db.collect_garbage(NOTHING).versions >= 10_000
    with db.transaction() as t:
        t.delete_row("t", "wide")
    assert db.snapshot().get_row("t", "wide") == {}
    db.drop_table("t")
    assert is_gone(db)


def test_a_transaction_of_100_000_cells(watched: tuple[Database, DirtyIndex]) -> None:
    db, dirty = watched
    rows = [b"%06d" % number for number in range(100_000)]
    with db.transaction() as t:
        for row in rows:
            t.set("t", row, "v", row)
    assert db.snapshot().get_many([("t", row, "v") for row in rows]) == rows
    assert [row for row, _ in db.snapshot().scan("t")] == rows
    assert sum(dirty.backlog().values()) == 100_000
    assert observe(db, dirty, 100) == 100
    late = db.begin()
    assert late.start_timestamp
    for row in rows:
        late.set("t", row, "v", b"too late")
    with db.transaction() as t:
        t.set("t", rows[-1], "v", b"in the way")
    with pytest.raises(TransactionConflict):
        late.commit()
    assert db.snapshot().get("t", rows[50_000], "v") == rows[50_000]
    assert db.snapshot().get("t", rows[-1], "v") == b"in the way"
    db.collect_garbage(NOTHING)
    db.drop_table("t")
    assert is_gone(db)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_client_that_dies_in_a_large_commit_is_cleaned_up_after(
    connect_here: Connect, is_committed: bool
) -> None:
    db, victim = connect_here(), connect_here()
    db.create_table("t")
    victim.client.one_call_a_tablet = True
    t = victim.begin()
    assert t.start_timestamp
    for number in range(5_000):
        t.set("t", b"%d" % number, "v", b"x")
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    if is_committed:
        commit.commit_primary(commit_ts)
    die(victim)
    seen = db.snapshot().get_many([("t", b"%d" % number, "v") for number in range(4_000, 4_200)])
    assert seen == [b"x" if is_committed else None] * 200
    with db.transaction() as t:
        for number in range(4_000):
            t.set("t", b"%d" % number, "v", b"y")
    resolved = db.resolve_locks(NOTHING)
    assert resolved.live == 0
    assert resolved.committed + resolved.rolled_back <= 1_000
    assert list(db.locks()) == []


def test_row_keys_of_64_kibibytes(watched: tuple[Database, DirtyIndex]) -> None:
    db, dirty = watched
    rows = [b"%03d" % number + b"k" * (MAX_ROW - 3) for number in range(100)]
    for value in (b"1", b"2"):
        with db.transaction() as t:
            for row in rows:
                t.set("t", row, "v", value)
        assert db.snapshot().get_many([("t", row, "v") for row in rows]) == [value] * 100
        assert [row for row, _ in db.snapshot().scan("t")] == rows
        while observe(db, dirty, 50):
            pass
    assert len(db.history("t", rows[0], "v")) == 2
    db.collect_garbage(NOTHING)
    db.drop_table("t")
    assert is_gone(db)


def test_what_is_larger_is_refused_with_the_limit(connect_here: Connect) -> None:
    db = connect_here()
    db.create_table("t")
    t = db.begin()
    with pytest.raises(
        ValueError, match=f"a value has at most {MAX_VALUE} bytes, this one has {MAX_VALUE + 1}"
    ):
        t.set("t", "row", "v", bytes(MAX_VALUE + 1))
    with pytest.raises(
        ValueError, match=f"a row key has at most {MAX_ROW} bytes, this one has {MAX_ROW + 1}"
    ):
        t.set("t", b"k" * (MAX_ROW + 1), "v", b"")
    with pytest.raises(
        ValueError, match=f"a column name has 1 to {MAX_COLUMN} bytes, this one has {MAX_COLUMN + 1}"
    ):
        t.set("t", "row", "c" * (MAX_COLUMN + 1), b"")


# Nobody is held up for long: what there is much of is cut into steps.


def test_collection_stops_after_so_many_cells(db: Database) -> None:
    db.create_table("one", tablets=1)
    with db.transaction() as t:
        for row in range(12):
            for column in range(1_000):
                t.set("one", b"%02d" % row, f"c{column}", b"x")
    tag = db.catalog.table("one").tag(b"00")
    safe = db.timestamp()
    bound, steps = b"-", 0
    while bound:
        bound, versions, _ = db.store.run(calls.collect(tag, bound, 200, safe, ()))
        assert versions == 0
        steps += 1
    assert steps == 3


def test_collection_stops_after_so_many_versions(db: Database) -> None:
    """Of one cell, too: it goes on at the same row. The rest is still there meanwhile, and then is gone."""
    with db.transaction() as t:
        t.set("t", "row", "a", b"newest")
        t.set("t", "row", "b", b"newest")
    tag = db.catalog.table("t").tag(b"row")
    newest = db.timestamp()
    for column, count in ((b"a", 12_345), (b"b", 10)):
        prefix = pack_column(column)
        members: list[bytes | int] = []
        for number in range(1, count + 1):
            members += (0, prefix + number.to_bytes(8, "big") + number.to_bytes(8, "big"))
        db.store.one((b"ZADD", tag + b"v:row", *members))
    bound, dropped = b"-", []
    db.store.run(calls.raise_safe_point(tag, newest))
    while bound:
        bound, versions, _ = db.store.run(calls.collect(tag, bound, 200, newest, ()))
        dropped.append(versions)
        assert db.snapshot().get_row("t", "row") == {"a": b"newest", "b": b"newest"}
    assert sum(dropped) == 12_355
    assert max(dropped) <= 10_000
    assert len(dropped) == 3
    assert db.store.one((b"EXISTS", tag + b"v:row")) == 0


def test_a_deletion_goes_after_what_it_hides(db: Database) -> None:
    """While older versions are left, the deletion in front of them is, too: it leads to them."""
    with db.transaction() as t:
        t.delete("t", "row", "v")
    tag = db.catalog.table("t").tag(b"row")
    safe = db.timestamp()
    members: list[bytes | int] = []
    for number in range(1, 6_001):
        members += (0, pack_column(b"v") + number.to_bytes(8, "big") + number.to_bytes(8, "big"))
    db.store.one((b"ZADD", tag + b"v:row", *members))
    db.store.run(calls.raise_safe_point(tag, safe))
    collect = calls.collect(tag, b"-", 200, safe, ())
    assert db.store.run(collect) == (b"[row", 5_000, 0)
    assert db.store.one((b"HEXISTS", tag + b"r:row", b"cv")) == 1
    assert db.store.run(collect) == (b"", 1_001, 1)
    assert db.store.one((b"EXISTS", tag + b"r:row", tag + b"v:row", tag + b"rows")) == 0


def test_dropping_stops_after_so_many_cells(db: Database) -> None:
    db.create_table("one", tablets=1)
    for row in range(3):
        with db.transaction() as t:
            for column in range(30_000):
                t.set("one", b"%d" % row, f"c{column}", b"")
    handle = db.catalog.table("one")
    step = calls.drop_table(handle.tag(b"0"), int(handle.version), 1000, ())
    steps = [db.store.run(step) for _ in range(3)]
    assert steps == [2, 1, 0]


def test_a_scan_stops_after_so_many_cells(db: Database) -> None:
    """Also where the cells are small, or not to be seen at all."""
    db.create_table("one", tablets=1)
    before = db.timestamp()
    with db.transaction() as t:
        for row in range(40):
            for column in range(1_000):
                t.set("one", b"%02d" % row, f"c{column}", b"")
    tag = db.catalog.table("one").tag(b"00")
    for at, rows in ((before, 0), (db.timestamp(), 10)):
        scanned = db.store.run(calls.scan(tag, at, b"-", b"+", 512, 1 << 20, "forward", 0, ()))
        assert scanned is not None
        resume, _, row_keys, _ = scanned
        assert resume != b""
        assert len(row_keys) <= max(rows, 17)
    assert len(list(db.snapshot().scan("one"))) == 40
    assert list(db.snapshot(before).scan("one")) == []


@pytest.mark.parametrize("columns", [(), (b"v",)])
def test_a_scan_of_the_past_stops_after_so_many_bytes(db: Database, columns: tuple[bytes, ...]) -> None:
    """Although the newest versions, which it does not bring, have none."""
    db.create_table("one", tablets=1)
    for row in range(8):
        with db.transaction() as t:
            t.set("one", b"%d" % row, "v", bytes(1 << 19))
    before = db.timestamp()
    with db.transaction() as t:
        for row in range(8):
            t.delete("one", b"%d" % row, "v")
    tag = db.catalog.table("one").tag(b"0")
    scanned = db.store.run(calls.scan(tag, before, b"-", b"+", 512, 1 << 20, "forward", 0, columns))
    assert scanned is not None
    assert len(scanned[2]) <= 3
    assert len(list(db.snapshot(before).scan("one"))) == 8


def test_a_claim_of_more_marks_than_lua_can_unpack(db: Database) -> None:
    tag = db.catalog.table("t").tags[0]
    marks: list[bytes | int] = []
    for number in range(9_000):
        marks += (2, encode_mark(b"v", b"%05d" % number))
    db.store.one((b"ZADD", tag + b"dirty:look", *marks))
    db.store.one((b"HSET", tag + b"tries:look", encode_mark(b"v", b"08999"), 7))
    claimed = db.store.run(calls.claim([tag], 10_000, 5_000, 60_000, (1, 1, "look", 10_000, 0)))
    assert [mark for _, _, mark, _, _, _ in claimed.cells] == marks[1::2]
    tries = [tries for _, _, _, _, tries, _ in claimed.cells]
    assert tries == [0] * 8_999 + [7]
    assert {
        int(score) for score in db.store.one((b"ZRANGE", tag + b"dirty:look", 0, -1, b"WITHSCORES"))[1::2]
    } == {claimed.deadline}


def test_cells_of_one_row_that_stand_side_by_side_are_each_judged(db: Database) -> None:
    """They are read and published together; a refusal still names the cell that is in the way."""
    with db.transaction() as t:
        for column in "abc":
            t.set("t", "row", column, b"old")
    late = db.begin()
    assert late.start_timestamp
    with db.transaction() as t:
        t.set("t", "row", "b", b"newer")
    for column in "abcd":
        late.set("t", "row", column, b"late")
    late.set("t", "other", "a", b"late")
    with pytest.raises(TransactionConflict) as conflict:
        late.commit()
    assert (conflict.value.row, conflict.value.column) == (b"row", "b")
    with db.transaction() as t:
        assert t.get_row("t", "row") == {"a": b"old", "b": b"newer", "c": b"old"}
        t.set("t", "row", "a", b"new")
        t.delete("t", "row", "b")
        t.set("t", "row", "d", b"new")
        t.notify("t", "row", "ping")
        t.set("t", "row", "e", b"new")
    assert db.snapshot().get_row("t", "row") == {"a": b"new", "c": b"old", "d": b"new", "e": b"new"}
    assert [version.value for version in db.history("t", "row", "b")] == [None, b"newer", b"old"]
    assert [version.value for version in db.history("t", "row", "d")] == [b"new"]


def test_a_call_has_no_more_cells_than_lua_can_unpack() -> None:
    assert 2 * CELLS_PER_CALL + 2 < 8_000
