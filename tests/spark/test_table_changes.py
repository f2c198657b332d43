"""Rows that were changed between two timestamps, as a batch and as a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from percolator_core import Database, SnapshotTooOld, connect
from percolator_core.schema.partitions import pieces, whole
from percolator_core.spark import plain_table_error
from percolator_core.spark.tables import changes as changes_module
from percolator_core.spark.tables.changes import changed_rows
from percolator_core.tables.query import Query
from percolator_core.transaction.commit import Commit
from percolator_core.transaction.snapshot import Snapshot
from tests.flushing import flush
from tests.spark.tables import DEFINITION, Document, Tables

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture
def tables(url: str) -> Iterator[Tables]:
    with connect(url, uuid4().hex) as db:
        db.create_table(Document)
        yield Tables(db, url)


Change = tuple[str, int | None, int, bool]
"""URL, size, when, whether it is gone."""


def changes(db: Database, since: int, at: int | None = None) -> list[Change]:
    handle = db.catalog.table("documents")
    columns = tuple(DEFINITION.by_name[name] for name in ("url", "size"))
    snapshot = Snapshot(db.client, at or db.timestamp())
    found = changed_rows(db, snapshot, Query(handle, columns), whole(DEFINITION), since)
    return sorted(tuple(row.values()) for batch in found for row in batch.to_pylist())


def test_what_was_changed(tables: Tables) -> None:
    db = tables.db
    began = db.timestamp()
    first = tables.insert(Document(url="a", size=1), Document(url="b", size=1), Document(url="c", size=1))
    assert changes(db, 0) == changes(db, began) == [(url, 1, first, False) for url in "abc"]
    assert changes(db, first) == []
    second = tables.update(Document(url="a", text="other"))
    tables.remove("b")
    third = tables.update(Document(url="a", text=None))
    assert changes(db, first, second) == [("a", 1, second, False)]
    found = changes(db, first)
    assert found[0] == ("a", 1, third, False)
    assert (found[1][:2], found[1][3]) == (("b", None), True)
    assert changes(db, second, third)[0] == ("a", 1, third, False)
    assert [change[0] for change in changes(db, 0)] == ["a", "c"]
    assert changes(db, third) == []


def test_ranges_side_by_side_have_every_change_once(tables: Tables) -> None:
    """Also while writers go on: of one row at most one change a range, and the last one is right."""
    db = tables.db
    tables.insert(*(Document(url=f"u{number}") for number in range(10)))
    over = threading.Event()
    commits: dict[str, set[int]] = {f"u{number}": set() for number in range(10)}

    def write(own: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            row = Document(url=f"u{own + 2 * (number % 5)}", size=number)
            commits[row.url].add(tables.update(row))

    begin = since = db.timestamp()
    seen: dict[str, list[tuple[int, int | None]]] = {url: [] for url in commits}
    threads = [threading.Thread(target=write, args=(own,)) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for turn in range(30):
        if turn == 29:
            over.set()
            for thread in threads:
                thread.join()
        at = db.timestamp()
        for url, size, commit_ts, gone in changes(db, since, at):
            assert since < commit_ts <= at
            assert not gone
            seen[url].append((commit_ts, size))
        since = at
    for url, found in seen.items():
        assert {commit_ts for commit_ts, _ in found} <= commits[url]
        assert [commit_ts for commit_ts, _ in found] == sorted({commit_ts for commit_ts, _ in found})
        assert found[-1][0] == max(commits[url])
    last = dict(tables.sizes())
    assert {url: found[-1][1] for url, found in seen.items()} == last
    assert begin < since


def test_a_lock_in_the_way_is_waited_for(tables: Tables) -> None:
    """A transaction that is committing may still belong to the range."""
    db = tables.db
    since = tables.insert(Document(url="a", size=1))
    t = db.begin()
    t.update(Document(url="a", size=2))
    commit = Commit(db.client, t.start_timestamp, t.mutations())
    commit_ts = commit.prewrite()
    at = db.timestamp()
    found: list[Any] = []
    with connect(tables.url, db.namespace) as other:
        thread = threading.Thread(target=lambda: found.append(changes(other, since, at)))
        thread.start()
        thread.join(0.2)
        assert not found
        commit.commit_primary(commit_ts)
        commit.commit_secondaries(commit_ts)
        thread.join()
    assert found == [[("a", 2, commit_ts, False)]]


def test_what_was_collected_cannot_be_told(tables: Tables) -> None:
    since = tables.insert(Document(url="a", size=1))
    tables.remove("a")
    tables.db.collect_garbage(keep=timedelta(0))
    with pytest.raises(SnapshotTooOld, match="since=0"):
        changes(tables.db, since)
    assert changes(tables.db, 0) == []


def test_pieces_narrow_it(tables: Tables) -> None:
    from percolator_core.schema.predicates import bind

    db = tables.db
    tables.insert(Document(url="a", size=1), Document(url="b", size=1))
    bound = bind(Document.url == "b", DEFINITION)  # type: ignore[arg-type]
    query = Query(db.catalog.table("documents"), (DEFINITION.by_name["url"],), bound)
    found = changed_rows(db, db.snapshot(), query, pieces(DEFINITION, bound), 0)
    assert [row["url"] for batch in found for row in batch.to_pylist()] == ["b"]


@pytest.mark.parametrize("step", [2, 500])
def test_what_moved_to_the_base_is_there_from_the_beginning(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(changes_module, "_ROWS", step)
    db = tables.db
    first = tables.insert(*(Document(url=f"u{number}", size=1) for number in range(10)))
    assert flush(db, "documents", tmp_path) == 10
    since = db.timestamp()
    second = tables.update(*(Document(url=f"u{number}", size=2) for number in range(3)))
    between = db.timestamp()
    tables.remove("u3")
    third = tables.insert(Document(url="new", size=3))
    hot = [("u0", 2, second, False), ("u1", 2, second, False), ("u2", 2, second, False)]
    cold = [(f"u{number}", 1, first, False) for number in range(3, 10)]
    assert changes(db, 0) == sorted([("new", 3, third, False), *hot, *cold[1:]])
    # A change that is newer than the snapshot hides nothing.
    assert changes(db, 0, between) == sorted([*hot, *cold])
    assert changes(db, 0, since) == [(f"u{number}", 1, first, False) for number in range(10)]
    assert [(url, gone) for url, _, _, gone in changes(db, since)] == [
        ("new", False),
        ("u0", False),
        ("u1", False),
        ("u2", False),
        ("u3", True),
    ]
    assert flush(db, "documents", tmp_path) == 5
    assert changes(db, 0) == sorted([("new", 3, third, False), *hot, *cold[1:]])


def test_a_lock_on_a_row_of_the_base_is_waited_for(tables: Tables, tmp_path: Path) -> None:
    db = tables.db
    first = tables.insert(Document(url="a", size=1), Document(url="b", size=1))
    flush(db, "documents", tmp_path)
    for ends in ("rolled back", "committed"):
        t = db.begin()
        t.update(Document(url="a", size=2))
        commit = Commit(db.client, t.start_timestamp, t.mutations())
        commit_ts = commit.prewrite()
        found: list[Any] = []
        with connect(tables.url, db.namespace) as other:
            thread = threading.Thread(target=lambda: found.append(changes(other, 0)))  # noqa: B023
            thread.start()
            thread.join(0.2)
            assert not found
            if ends == "committed":
                commit.commit_primary(commit_ts)
                commit.commit_secondaries(commit_ts)
            else:
                commit.roll_back()
            thread.join()
        change = ("a", 2, commit_ts, False) if ends == "committed" else ("a", 1, first, False)
        assert found == [[change, ("b", 1, first, False)]]


# In Spark.


@pytest.fixture(scope="module")
def session(spark: SparkContext) -> SparkSession:
    return SparkSession(spark)


@pytest.mark.spark
def test_a_batch_of_changes(session: SparkSession, tables: Tables) -> None:
    since = tables.insert(Document(url="a", size=1), Document(url="b", size=1))
    tables.remove("b")
    at = tables.update(Document(url="a", size=2))
    frame = tables.read(session, since=since, columns="url,size")
    assert frame.columns == ["url", "size", "_commit_timestamp", "_deleted"]
    rows = {row.url: row for row in frame.collect()}
    assert (rows["a"].size, rows["a"]._commit_timestamp, rows["a"]._deleted) == (2, at, False)
    assert (rows["b"].size, rows["b"]._deleted) == (None, True)


def ended(query: StreamingQuery) -> StreamingQueryException | None:
    """Wait for the end of the query, and return its failure."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return error
    return None


@pytest.mark.spark
def test_a_stream_into_another_table(session: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """Two runs of one query, stopped in between: every change once, in the end the same rows."""
    with connect(tables.url, uuid4().hex) as copy:
        copy.create_table(Document)
        sink = {"url": tables.url, "namespace": copy.namespace, "table": "documents"}
        counts: list[int] = []

        def pour() -> None:
            stream: DataFrame = (
                session.readStream.format("percolator")
                .options(**tables.options, since="0", partitions="1")
                .load()
            )
            writer = (
                stream.where("not _deleted")
                .drop("_commit_timestamp", "_deleted")
                .writeStream.format("percolator")
                .options(**sink, checkpointLocation=str(tmp_path / "checkpoint"))
                .outputMode("append")
                .trigger(availableNow=True)
            )
            query = writer.start()
            # Spark waits ten seconds for its Python processes to start. On a busy machine this is too short,
            # and the query has to be started again. It continues from its checkpoint.
            while (failure := ended(query)) is not None and "failed to connect back" in str(failure):
                query = writer.start()
            if failure is not None:
                raise failure
            counts.append(sum(progress.numInputRows for progress in query.recentProgress))

        tables.insert(*(Document(url=f"u{number}", size=1) for number in range(10)))
        pour()
        tables.update(Document(url="u1", size=3))
        tables.insert(Document(url="new", size=1))
        pour()
        assert Tables(copy, tables.url).sizes() == tables.sizes()
        assert counts == [10, 2]
        tables.update(Document(url="u1", size=4))
        tables.end_leases()
        tables.db.collect_garbage(keep=timedelta(0))
        with pytest.raises(Exception, match="below the safe point") as raised:
            pour()
        assert type(plain_table_error(raised.value)) is SnapshotTooOld
