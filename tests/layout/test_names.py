"""Columns with names of every length up to 64 KiB, and all that is done with them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from percolator_core import Cell, Database, LockTimeout, Transaction, TransactionConflict, Worker
from percolator_core.admin.locks import locks
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.row_history import row_history
from percolator_core.admin.trace import trace
from percolator_core.catalog.table_handle import COLUMNS_BYTES
from percolator_core.errors import MOST_NAMED, abbreviated
from percolator_core.layout.acknowledgements import TRACED_BYTES, Ack, TracedWrite
from percolator_core.layout.keys import MAX_COLUMN, acknowledgement, encode_column
from percolator_core.layout.records import MAX_ROW, PUT
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Retry
from percolator_core.schema.definitions import TableDefinition
from percolator_core.scripts import calls
from percolator_core.transaction.cache import CACHE_BYTES, CACHE_COLUMN
from percolator_core.transaction.write_set import BYTES_PER_CALL, Mutation, bounded_calls
from tests.chains import chain_of, watch
from tests.servers.fixtures import Connect
from tests.servers.plain import PATIENCE, cache_of, commit_of, die, rows_apart
from tests.transaction.crash import POINTS, RESOLVERS, Scene
from tests.transaction.test_crash_points import (
    no_lock_is_left_after_twice_the_time_to_live,
    observers_have_seen,
)

NOTHING = timedelta(0)
LENGTHS = (1, 199, 200, 201, 255, 256, 65_535, MAX_COLUMN)
PIECES = ("x", "http://a.b/?q=1&", "é", "{}", "\0", "\n*?[", "漢字:")
ONCE = Retry(attempts=1, backoff=0.001, max_backoff=0.001)


def name_of(piece: str, length: int) -> str:
    """A name of so many bytes: the piece over and over, and at the end what fits."""
    text = (piece * length).encode()[:length].decode(errors="ignore")
    return text + "." * (length - len(text.encode()))


NAMES = sorted({name_of(piece, length) for piece in PIECES for length in LENGTHS})
LONG = [name_of(piece, MAX_COLUMN) for piece in PIECES]
NOTIFIED = name_of("ping:", MAX_COLUMN)
ROWS = rows_apart(3)


def rows_of(value: bytes) -> dict[bytes, dict[str, bytes]]:
    return {row: {name: value + b"%d" % number for number, name in enumerate(NAMES)} for row in sorted(ROWS)}


def write(db: Database, rows: dict[bytes, dict[str, bytes]]) -> int:
    with db.transaction() as t:
        for row, cells in rows.items():
            for name, value in cells.items():
                t.set("t", row, name, value)
    return db.timestamp()


def seen(reader: Any) -> Iterator[dict[bytes, dict[str, bytes]]]:
    """The same rows, read in every way."""
    yield {row: {name: value for name in NAMES if (value := reader.get("t", row, name))} for row in ROWS}
    values = iter(reader.get_many([("t", row, name) for row in ROWS for name in NAMES]))
    yield {row: {name: value for name in NAMES if (value := next(values))} for row in ROWS}
    yield {row: reader.get_row("t", row) for row in ROWS}
    yield {row: reader.get_row("t", row, NAMES) for row in ROWS}
    yield dict(reader.scan("t"))
    yield dict(reader.scan("t", columns=NAMES, reverse=True))


@pytest.fixture
def store(connect_to_every_kind: Connect) -> Database:
    db = connect_to_every_kind(timeout=60.0, patience=60.0, lock_ttl=60.0)
    db.create_table("t", notify_only=[NOTIFIED])
    return db


def test_the_names_are_those_at_the_borders() -> None:
    assert {len(name.encode()) for name in NAMES} == set(LENGTHS)
    assert len(NAMES) == len(LENGTHS) * len(PIECES) - 1  # of one byte, "é" and "漢" leave nothing but the dot


def test_cells_of_any_name_are_written_read_and_collected(store: Database) -> None:
    old, new = rows_of(b"old"), rows_of(b"new")
    between = write(store, old)
    write(store, new)
    for found in seen(store.snapshot()):
        assert found == new
    for found in seen(store.snapshot(between)):
        assert found == old
    with store.transaction() as t:
        changed = {row: cells | {NAMES[-1]: b"own"} for row, cells in new.items()}
        for row in ROWS:
            t.set("t", row, NAMES[-1], b"own")
        for found in seen(t):
            assert found == changed
    for name in NAMES[:-1]:
        versions = [version.value for version in store.history("t", ROWS[0], name)]
        assert versions == [new[ROWS[0]][name], old[ROWS[0]][name]]
    shown = row_history(store, "t", ROWS[0], limit=len(NAMES))
    assert [(cell.column, len(cell.versions)) for cell in shown.cells] == [
        (name, 3 if name == NAMES[-1] else 2) for name in sorted(NAMES, key=str.encode)
    ]
    assert store.collect_garbage(NOTHING).versions == len(ROWS) * (len(NAMES) + 1)
    for found in seen(store.snapshot()):
        assert found == changed
    with store.transaction() as t:
        for row in ROWS:
            t.delete_row("t", row)
    assert list(store.snapshot().scan("t")) == []
    store.drop_table("t")


def test_what_is_longer_is_refused_in_one_sentence(store: Database) -> None:
    for name in (name_of(piece, MAX_COLUMN + 1) for piece in PIECES):
        sentence = f"a column name has 1 to {MAX_COLUMN} bytes, this one has {MAX_COLUMN + 1}"
        t = store.begin()
        for refused in (
            lambda name=name, t=t: t.set("t", "row", name, b""),
            lambda name=name, t=t: t.delete("t", "row", name),
            lambda name=name, t=t: t.get("t", "row", name),
            lambda name=name, t=t: list(t.scan("t", columns=[name])),
            lambda name=name: store.history("t", "row", name),
        ):
            with pytest.raises(ValueError, match=f"^{sentence}$"):
                refused()


@pytest.mark.parametrize("is_committed", [False, True])
def test_locks_of_the_dead_are_listed_and_settled(
    connect_to_every_kind: Connect, store: Database, is_committed: bool
) -> None:
    victim = connect_to_every_kind(lock_ttl=60.0)
    victim.client.one_call_a_tablet = True
    t = victim.begin()
    assert t.start_timestamp
    for row in ROWS:
        for name in LONG[1:]:
            t.set("t", row, name, b"new")
        t.notify("t", row, NOTIFIED)
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    if is_committed:
        commit.commit_primary(commit_ts)
    die(victim)
    first, *_ = found = locks(store)
    assert {(one.row, one.column) for one in found} >= {
        (row, name) for row in ROWS for name in (NOTIFIED, *LONG[1:]) if row != t.mutations()[0].row
    }
    assert {one.primary[2] for one in found} == {LONG[1]}
    expected = "committed" if is_committed else "rolled back"
    assert store.resolve_lock(first.table, first.row, first.column, first.start_timestamp) == expected
    left = store.resolve_locks(NOTHING)
    # A primary is settled with the first lock that leads to it.
    assert len(found) - 2 <= (left.committed if is_committed else left.rolled_back) < len(found)
    assert locks(store) == []
    expected_row = dict.fromkeys(LONG[1:], b"new") if is_committed else {}
    for row in ROWS:
        assert store.snapshot().get_row("t", row) == expected_row


def test_observers_of_long_names(store: Database) -> None:
    """Strong and weak ones; their acknowledgements are longer than what they watch, and traces name it."""
    ran: list[tuple[bytes, str]] = []

    def look(t: Transaction, cell: Cell) -> None:
        ran.append((cell.row, cell.column))
        t.set("t", cell.row, LONG[2], t.get("t", cell.row, LONG[1]) or b"")
        t.notify("t", cell.row, NOTIFIED)

    def hear(t: Transaction, cell: Cell) -> None:
        ran.append((cell.row, cell.column))
        t.set("t", cell.row, LONG[3], b"heard")

    tables = (TableDefinition("t", 16, (NOTIFIED,)),)
    chain = chain_of(
        watch("look", look, f"t.{LONG[1]}", writes=(f"t.{LONG[2]}", f"t.{NOTIFIED}")),
        watch("hear", hear, f"t.{NOTIFIED}", mode="weak"),
        tables=tables,
    )
    chain = replace(chain, trace=True)
    chain.create_tables(store)
    for value in (b"1", b"2"):
        ran.clear()
        with store.transaction() as t:
            for row in ROWS:
                t.set("t", row, LONG[1], value)
        Worker(store, chain).run_until_idle(PATIENCE)
        assert sorted(ran) == sorted((row, name) for row in ROWS for name in (NOTIFIED, LONG[1]))
        for row in ROWS:
            assert store.snapshot().get_row("t", row) == {
                LONG[1]: value,
                LONG[2]: value,
                LONG[3]: b"heard",
            }
    followed = trace(store, chain, "t", ROWS[0], LONG[1], change="all")
    assert [(run.observer, run.column) for run in followed.runs] == [
        ("look", LONG[1]),
        ("hear", NOTIFIED),
        ("look", LONG[1]),
        ("hear", NOTIFIED),
    ]
    assert {cell.column for run in followed.runs for cell in run.cells} == {NOTIFIED, LONG[2], LONG[3]}
    # An acknowledgement stays as long as its cell.
    store.collect_garbage(NOTHING)
    acked = b"c" + acknowledgement("look", encode_column(LONG[1]))
    for row in ROWS:
        assert store.store.one((b"HEXISTS", store.catalog.table("t").row_key(row), acked)) == 1


def test_quarantine_of_long_names(store: Database) -> None:
    broken = True

    def look(t: Transaction, cell: Cell) -> None:
        if broken:
            raise ValueError(cell.column)

    chain = chain_of(
        watch("look", look, *(f"t.{name}" for name in LONG[1:]), retry=ONCE),
        tables=(TableDefinition("t", 16, (NOTIFIED,)),),
    )
    chain.create_tables(store)
    with store.transaction() as t:
        for row in ROWS:
            for name in LONG[1:]:
                t.set("t", row, name, b"1")
    Worker(store, chain).run_until_idle(PATIENCE)
    quarantine = Quarantine(store, chain)
    cells = {(row, name) for row in ROWS for name in LONG[1:]}
    assert quarantine.count() == {"look": len(cells)}
    assert [cell.column for cell in quarantine.find("t", ROWS[0])] == sorted(LONG[1:])
    found, cursor, pages = [], None, 0
    while True:
        page, cursor = quarantine.page(4, cursor)
        found += page
        pages += 1
        assert cursor is None or len(cursor) < 4_000  # it goes into a URL
        if cursor is None:
            break
    assert pages > 1
    assert {(cell.row, cell.column) for cell in found} == cells
    assert len(found) == len(cells)
    broken = False
    assert quarantine.discard(found[:2]) == 2
    assert quarantine.retry(found[2:]) == len(cells) - 2
    Worker(store, chain).run_until_idle(PATIENCE)
    assert quarantine.count() == {"look": 0}
    assert not any(DirtyIndex(store.client, chain.observed).backlog().values())


@pytest.mark.parametrize("who", RESOLVERS)
@pytest.mark.parametrize("point", POINTS)
def test_a_client_stops(connect: Connect, point: str, who: str) -> None:
    """As with short names: nothing hangs on how long they are."""
    scene = Scene(connect, "dead", observed=LONG[1], notified=NOTIFIED)
    reach, fate, resume = POINTS[point]
    reach(scene)
    scene.stop()
    assert RESOLVERS[who](scene)
    expected = "rolled back" if fate == "open" else fate
    assert scene.outcome() == expected
    if expected == "rolled back" and resume is Scene.finish:
        with pytest.raises(TransactionConflict) as conflict:
            resume(scene)
        assert len(str(conflict.value)) < 1_000
        scene.writer.store.one((b"PING",))
    else:
        resume(scene)
    assert scene.outcome() == expected
    no_lock_is_left_after_twice_the_time_to_live(scene)
    observers_have_seen(scene, expected, written=who == "writer")


# How much at a time.


def test_calls_are_bounded_by_the_bytes_of_names() -> None:
    column = b"c" * MAX_COLUMN
    mutations = [Mutation(b"{n:t:0}", "t", b"%d" % number, column, PUT, b"") for number in range(500)]
    found = list(bounded_calls(mutations, one_a_tablet=True))
    assert [one for call in found for one in call] == mutations
    assert max(sum(len(one.column) for one in call) for call in found) <= BYTES_PER_CALL


def tablet_of_long_names(db: Database) -> bytes:
    """The only tablet of a new table, whose 40 rows have many bytes of names."""
    db.create_table("one", tablets=1)
    with db.transaction() as t:
        for row in range(40):
            for name in LONG:
                t.set("one", b"%02d" % row, name, b"")
    return db.catalog.table("one").tag(b"00")


@pytest.mark.parametrize("columns", [(), LONG])
def test_a_scan_stops_after_so_many_bytes_of_names(db: Database, columns: tuple[str, ...]) -> None:
    tag = tablet_of_long_names(db)
    bounds = (db.timestamp(), b"-", b"+", 512, 1 << 20)
    encoded = [column.encode() for column in columns]
    scanned = db.store.run(calls.scan(tag, *bounds, "forward", 0, encoded))
    assert scanned is not None
    resume, _, rows, _ = scanned
    assert resume != b""
    assert 1 <= len(rows) <= (1 << 20) / (len(LONG) * MAX_COLUMN) + 1
    found = dict(db.snapshot().scan("one", columns=columns or None))
    assert found == {b"%02d" % row: dict.fromkeys(LONG, b"") for row in range(40)}


def test_collection_stops_after_so_many_bytes_of_names(db: Database) -> None:
    tag = tablet_of_long_names(db)
    bound, steps = b"-", 0
    while bound:
        bound, _, _ = db.store.run(calls.collect(tag, bound, 200, 1, ()))
        steps += 1
    assert steps >= 40 * len(LONG) * MAX_COLUMN / (6 << 20)


def test_what_a_client_remembers_of_columns_is_bounded_in_bytes(db: Database) -> None:
    columns = db.catalog.table("t").columns
    for number in range(300):
        assert columns[f"{number:03}" + "c" * (MAX_COLUMN - 3)].encoded[:3] == b"%03d" % number
        assert sum(one.names_bytes for one in columns.values()) <= COLUMNS_BYTES
    assert len(columns) > 100


def test_what_a_transaction_keeps_is_bounded_in_bytes_of_names(db: Database) -> None:
    t = db.begin()
    for number in range(100):
        assert t.get("t", "row", f"{number:03}" + "c" * (MAX_COLUMN - 3)) is None
    kept = sum(CACHE_COLUMN + one.names_bytes for one in cache_of(t))
    assert CACHE_BYTES / 2 < kept <= CACHE_BYTES


def test_an_acknowledgement_names_so_many_bytes_of_cells() -> None:
    cells = [TracedWrite("t", b"%d" % number, b"c" * MAX_COLUMN, PUT) for number in range(100)]
    ack = Ack(1).traced(cells)
    assert ack.written == 100
    assert ack.writes == tuple(cells[: len(ack.writes or ())])
    assert TRACED_BYTES / 2 < len(ack.pack()) <= TRACED_BYTES + 64
    assert Ack.unpack(ack.pack()) == ack


# What people see.


def test_names_in_messages_are_abbreviated() -> None:
    assert abbreviated("x" * MOST_NAMED) == "x" * MOST_NAMED
    assert abbreviated("x" * 65_536) == "x" * (MOST_NAMED - 1) + "…"
    assert abbreviated(b"x" * 65_536, 10) == b"x" * 9 + "…".encode()
    row, column = b"\0" * MAX_ROW, LONG[0]
    conflict = TransactionConflict("t", row, column, "locked")
    assert len(str(conflict)) < 1_000
    assert (conflict.row, conflict.column) == (row, column)
    again = pickle.loads(pickle.dumps(conflict))
    assert (again.row, again.column, str(again)) == (row, column, str(conflict))


def test_messages_of_a_cell_with_a_long_name_are_short(db: Database, connect: Connect) -> None:
    row = b"r" * MAX_ROW
    writer = connect()
    writer.client.one_call_a_tablet = True
    t = writer.begin()
    assert t.start_timestamp
    t.set("t", row, LONG[1], b"1")
    commit_of(t).prewrite()
    other = connect(lock_wait=0.05)
    with pytest.raises(LockTimeout) as timeout:
        other.snapshot().get("t", row, LONG[1])
    with pytest.raises(TransactionConflict) as conflict, other.transaction() as late:
        late.set("t", row, LONG[1], b"2")
    for told in (timeout.value, conflict.value):
        assert len(str(told)) < 1_000
