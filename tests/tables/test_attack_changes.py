"""Changes of tables beside those who write: what has not changed is left alone, and nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from percolator_core import (
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    PrimaryKey,
    Range,
    SnapshotTooOld,
    Table,
    TransactionConflict,
    Unique,
    UnknownTable,
)
from percolator_core.base.changes import BaseChanges
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.maintenance.locks import Locks
from percolator_core.schema.definitions import Column
from percolator_core.tables.verify import check_indexes

Connect = Callable[[], Database]


class Part(Table, name="parts", partition=[Hash("id", buckets=2)]):
    id: PrimaryKey[int]
    code: Unique[str | None] = None
    kind: Indexed[int] = 0


class Word(Table, name="words", partition=[Hash("word", buckets=4), Range("word", splits=[])]):
    word: PrimaryKey[str]
    n: int = 0


def versions(db: Database) -> dict[str, int]:
    return {entry.definition.name: entry.version for entry in db.catalog.entries()}


def test_a_refused_writer_does_not_change_the_tables_beside(connect: Connect) -> None:
    """Else each change puts out all who write to the indexes, who put out those of other tables."""
    db, writer = connect(), connect()
    db.create_table(Part)
    writer.run(lambda t: t.insert(Part(id=1, code="a")))
    before = versions(db)
    late = writer.begin()
    late.upsert(Part(id=1, code="b", kind=1))
    db.schema_changes.add_column("parts", Column("more", "int", nullable=True))
    with pytest.raises(TransactionConflict, match="table changed"):
        late.commit()
    after = versions(db)
    assert after.pop("parts") > before.pop("parts")
    assert after == before


def test_a_dropped_table_leaves_no_index_behind_whoever_writes_meanwhile(connect: Connect) -> None:
    """An index that a writer gave a newer version than the drop's was kept, with what stood in it."""
    db, writer = connect(), connect()
    db.create_table(Part)
    writer.run(lambda t: t.insert(Part(id=1, code="a")))
    for stop in ("fence", "settle", "indexes", "rows"):

        class Dropping(SchemaChanges):
            def steps(self, entry):  # type: ignore[no-untyped-def]
                for step in super().steps(entry):
                    yield step
                    if step == stop and entry.definition.name == "parts":  # noqa: B023
                        with suppress(UnknownTable, TransactionConflict):
                            late.commit()  # noqa: B023

        late = writer.begin()
        late.upsert(Part(id=2, code=stop, kind=1))
        late.upsert(Part(id=1, code="c", kind=1))
        Dropping(db.client, Locks(db.client), BaseChanges(db.client)).drop("parts")
        assert db.catalog.entries() == []
        db.create_table(Part)
        writer.run(lambda t: t.insert(Part(id=9, code=stop, kind=1)))  # noqa: B023
        with db.snapshot() as snapshot:
            assert [row.id for row in snapshot.select(Part)] == [9]
            assert check_indexes(snapshot, Part) == []


def test_a_row_with_an_empty_key_is_not_overlooked_when_a_range_is_cut(db: Database) -> None:
    db.create_table(Word)
    db.run(lambda t: t.insert(Word(word="", n=1)))
    db.run(lambda t: t.insert(Word(word="z", n=2)))
    with pytest.raises(ConfigurationError, match="would move rows"):
        db.add_range(Word, "m")
    assert db.snapshot().find(Word, word="") == Word(word="", n=1)
    assert [row.word for row in db.snapshot().select(Word)] == ["", "z"]


def test_no_transaction_is_seen_by_half_while_a_range_is_added(connect: Connect) -> None:
    """A client that has just looked at the catalog does not know the new tablet."""
    db, reader = connect(), connect()
    db.create_table(Word)
    db.run(lambda t: t.insert(Word(word="a")))
    assert [row.n for row in reader.snapshot().select(Word)] == [0]
    db.add_range(Word, "m")
    with db.transaction() as t:
        t.update(Word(word="a", n=7))
        t.insert(Word(word="z", n=7))
    assert [row.n for row in reader.snapshot().select(Word)] == [7, 7]
    with reader.begin(after=db.timestamp()) as later:
        assert later.find(Word, word="z") == Word(word="z", n=7)


def test_a_table_that_is_dropped_while_it_is_read_is_not_taken_for_a_short_one(connect: Connect) -> None:
    db, reader = connect(), connect()
    db.create_table(Part)
    for first in range(0, 6000, 1000):
        with db.transaction() as t:
            for number in range(first, first + 1000):
                t.upsert(Part(id=number, kind=number % 2))
    with reader.snapshot() as snapshot:
        rows = snapshot.select(Part)
        assert next(rows).id == 0
        db.drop_table(Part)
        with pytest.raises(SnapshotTooOld):
            list(rows)
        with pytest.raises(SnapshotTooOld):
            snapshot.to_arrow(Part)
        with pytest.raises(SnapshotTooOld):
            list(snapshot.select(Part, Part.kind == 1))


def test_a_thread_that_was_slow_does_not_bring_back_what_a_table_was(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds an old copy while another thread takes in the next one; no snapshot reads by it."""
    db, other = connect(), connect()
    db.create_table(Part)
    db.run(lambda t: t.insert(Part(id=1, kind=1)))
    old = db.store.one((b"HGETALL", db.store.keyspace.catalog))
    db.rename_column(Part, "kind", "sort")
    assert "sort" in other.catalog.table("parts").columns
    with monkeypatch.context() as slow:
        slow.setattr(other.store, "one", lambda _: old)
        assert "kind" in other.catalog.refresh()["parts"].columns
    assert [row["sort"] for row in other.snapshot().select("parts")] == [1]
