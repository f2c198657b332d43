"""A small write set is committed without an object for each write, as `Commit` would commit it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, get_args

import pytest

from percolator_core import Database, Hash, PrimaryKey, StoreUnavailable, Table
from percolator_core.errors import (
    CommitUndetermined,
    PercolatorError,
    SnapshotTooOld,
    TransactionAborted,
    TransactionConflict,
)
from percolator_core.layout.keys import MAX_COLUMN
from percolator_core.layout.records import MAX_ROW, NOTIFY
from percolator_core.scripts.replies import Outcome
from percolator_core.store import OutcomeOpenError
from percolator_core.transaction import commit as commits
from percolator_core.transaction.commit import commit_at_once
from percolator_core.transaction.transaction import Transaction
from tests.servers.plain import Faults, at_once_call, commit_of, die
from tests.transaction.phases import X, Y, Z, locks, started, values

Connect = Callable[..., Database]


class Item(Table, name="items", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[int]
    text: str


@pytest.fixture
def tables(db: Database) -> Database:
    db.create_table("other", tablets=1)
    db.create_table(Item)
    return db


def captured(db: Database, t: Transaction, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The call of `commit_at_once`, which is not sent; None if it does not make one."""
    with monkeypatch.context() as patch:
        patch.setattr(commits, "decisively", lambda *_, **__: (("prewritten", 0, 0, None), False))
        found = commit_at_once(db.client, t.start_timestamp, t._writes, t._written, restock=False, owner=1)
        return found and found[0]


def packed(call: Any) -> tuple[object, ...]:
    """The call, with the number of each tag in place of its position, which depends on the order of tags."""
    name, keys, arguments, decode = call
    tags, cells = keys[:-1], list(arguments[2:-1])
    cells[::5] = [tags[int(position) - 1] for position in cells[::5]]
    versions = dict(zip(tags, arguments[-1].split(b","), strict=True))
    return name, keys[-1], arguments[:2], cells, versions, decode


def test_the_call_is_that_of_a_commit(tables: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(300):
        chance = random.Random(seed)
        t = tables.begin()
        for _ in range(chance.randint(1, 12)):
            row, value = chance.choice([b"", b"a", b"b", b"c" * 300]), chance.randbytes(chance.randint(0, 20))
            match chance.choice(["set", "delete", "notify", "typed", "other"]):
                case "set":
                    t.set("t", row, "v", value)
                case "delete":
                    t.delete("t", row, "w")
                case "notify":
                    t.notify("t", row, "ping")
                case "typed":
                    t.upsert(Item(id=len(value), text=row.decode()))
                case "other":
                    t.set("other", row, "v", value)
        call = captured(tables, t, monkeypatch)
        commit = commit_of(t)
        if commit.primary.kind == NOTIFY:
            assert call is None
        else:
            assert packed(call) == packed(at_once_call(commit))
        t.rollback()


@pytest.mark.parametrize(
    ("cells", "size", "fits"), [(1000, 1, True), (1001, 1, False), (5, 1 << 20, False), (1, 5 << 20, True)]
)
def test_a_write_set_over_the_bounds_is_left_to_a_commit(
    tables: Database, monkeypatch: pytest.MonkeyPatch, cells: int, size: int, fits: bool
) -> None:
    t = tables.begin()
    for number in range(cells):
        t.set("t", b"%d" % number, "v", b"x" * size)
    assert (captured(tables, t, monkeypatch) is not None) == fits == (len(commit_of(t).calls) == 1)
    assert t.commit() > t.start_timestamp
    with tables.snapshot() as snapshot:
        assert len(list(snapshot.scan("t"))) == cells


@pytest.mark.parametrize(("row", "column"), [(MAX_ROW, 1), (1, MAX_COLUMN)])
def test_a_write_set_with_many_bytes_of_names_is_left_to_a_commit(
    tables: Database, monkeypatch: pytest.MonkeyPatch, row: int, column: int
) -> None:
    t = tables.begin()
    for number in range(70):
        t.set("t", f"{number:0{row}}", f"{number:0{column}}", b"")
    assert captured(tables, t, monkeypatch) is None
    assert len(commit_of(t).calls) > 1


def test_a_write_set_of_more_tablets_than_numbers_is_left_to_a_commit(
    tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create_table("wide", tablets=4096)
    t = tables.begin()
    for number in range(1800):
        t.set("wide", b"%d" % number, "v", b"x")
    assert captured(tables, t, monkeypatch) is None
    assert t.commit() > t.start_timestamp


def outcome(run: Callable[[], int]) -> object:
    try:
        return run()
    except PercolatorError as error:
        return type(error)


_COMMITTED: Final = "committed"
_OUTCOMES: dict[str, tuple[object, object]] = {
    "committed": (_COMMITTED, _COMMITTED),
    "newer commit": (TransactionConflict, TransactionConflict),
    "locked": (TransactionConflict, TransactionConflict),
    "rolled back": (TransactionAborted, TransactionAborted),
    "too old": (SnapshotTooOld, CommitUndetermined),
    "changed": (TransactionConflict, CommitUndetermined),
    "failed over": (TransactionAborted, TransactionAborted),
    "no reply": (CommitUndetermined, CommitUndetermined),
    "not sent": (StoreUnavailable, StoreUnavailable),
}
"""What a reply means, of a request that was sent once, and of one that was sent again."""

_RUN_AGAIN: Final = {"newer commit", "failed over"}
"""After these a transaction that read nothing begins again by itself."""

_REFUSED_CELL: Final = {"newer commit": [1], "locked": [1], "rolled back": [0]}


def test_every_reply_is_known() -> None:
    assert {*_OUTCOMES} - {"no reply", "not sent"} == {*get_args(Outcome)} - {"prewritten"}


@pytest.mark.parametrize("reply", _OUTCOMES)
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("read_before", [False, True])
def test_what_every_reply_means(
    tables: Database, monkeypatch: pytest.MonkeyPatch, reply: str, repeated: bool, read_before: bool
) -> None:
    """The store's answer to the first call is made up, and all later calls are sent."""
    answers, stamp = [reply], tables.timestamp()
    store = tables.client.store
    decide = store.decide

    def made_up(command: Any, **options: Any) -> Any:
        if not answers:
            return decide(command, **options)
        answers.pop()
        if reply == "no reply":
            raise OutcomeOpenError from StoreUnavailable("silent")
        if reply == "not sent":
            raise StoreUnavailable("away")
        rest = [stamp] if reply == "committed" else _REFUSED_CELL.get(reply, [])
        return [reply.encode(), *rest], repeated, 0, True

    t = tables.begin()
    if read_before:
        t.get("t", "a", "v")
    t.set("t", "a", "v", b"x")
    t.set("t", "b", "v", b"x")
    monkeypatch.setattr(type(store), "decide", lambda _, *a, **k: made_up(*a, **k))
    found = outcome(t.commit)
    assert not answers
    expected = _OUTCOMES[reply][repeated]
    if expected == _COMMITTED:
        assert found == stamp
    elif reply in _RUN_AGAIN and not read_before:
        assert found == t.commit_timestamp
        assert values_of(tables) == [b"x", b"x"]
    else:
        assert found == expected
        assert values_of(tables) == [None, None]


def values_of(db: Database) -> list[bytes | None]:
    with db.snapshot() as snapshot:
        return [snapshot.get("t", row, "v") for row in ("a", "b")]


@pytest.mark.parametrize("two_phase", [False, True], ids=["one call", "two phases"])
def test_adjacent_cells_of_a_row_get_their_own_versions(db: Database, two_phase: bool) -> None:
    """New and old cells, deletions and notifications stand side by side in the rows of a commit."""
    db.client.one_call_a_tablet = two_phase
    chance, expected = random.Random(7), dict[tuple[str, str], list[bytes | None]]()
    for number in range(150):
        with db.transaction() as t:
            for row in chance.sample("abc", chance.randint(1, 2)):
                for column in chance.sample(["v", "w", "x", "y", "ping"], chance.randint(1, 5)):
                    versions = expected.setdefault((row, column), [])
                    if column == "ping":
                        t.notify("t", row, column)
                    elif chance.random() < 0.3:
                        t.delete("t", row, column)
                        versions.insert(0, None)
                    else:
                        value = f"{number} {row} {column}".encode()
                        t.set("t", row, column, value)
                        versions.insert(0, value)
    cells = {cell: versions for cell, versions in expected.items() if cell[1] != "ping"}
    found = {cell: [version.value for version in db.history("t", *cell)] for cell in cells}
    assert found == cells
    with db.snapshot() as snapshot:
        assert [row for row, _ in snapshot.scan("t")] == [b"a", b"b", b"c"]
    assert locks(db) == []


@pytest.mark.parametrize("under_hub", [False, True], ids=["alone", "hub"])
@pytest.mark.parametrize("lost", [False, True], ids=["refused", "refused-again"])
def test_a_rollback_in_the_middle_of_a_commit_changes_nothing(
    connect: Connect, db: Database, writer: Database, lost: bool, under_hub: bool
) -> None:
    """A signal handler rolls back what is being committed. The commit has its writes also after a refusal."""
    client = connect()
    holder = commit_of(started(writer, Y, Z))
    holder.prewrite()
    if not lost:
        die(writer)
    faults = Faults(client)

    def commit() -> str:
        t = started(client, X, Y)
        if lost:
            faults.script("prewrite", "hold")
        faults.script("prewrite", t.rollback)
        try:
            t.commit()
        except Exception as error:  # noqa: BLE001 - shown below
            return type(error).__name__
        return "committed"

    if under_hub:
        with client.concurrency(2) as executor:
            found = executor.submit(commit).result()
    else:
        found = commit()
    if not lost:
        assert found == "committed"
        assert values(db) == [b"new", b"new", b"old"]
        return
    assert found == "TransactionConflict"
    holder.roll_back()
    writer.store.one((b"PING",))
    faults.deliver()  # the first copy is late, and was fenced off
    assert values(db) == [b"old"] * 3
    assert locks(db) == []
