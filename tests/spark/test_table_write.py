"""What a task of a write does with rows, what others have done to them, and its own earlier attempts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from percolator_core import (
    ConfigurationError,
    Hash,
    Indexed,
    PercolatorError,
    PrimaryKey,
    RowExists,
    RowNotFound,
    SnapshotTooOld,
    Table,
    Unique,
    UnknownColumn,
    UnknownTable,
    connect,
)
from percolator_core.spark.tables.options import write_options
from percolator_core.spark.tables.writing import begin_write, write_rows
from tests.spark.tables import Document, Tables, batches, whole


@pytest.fixture
def tables(url: str) -> Iterator[Tables]:
    with connect(url, uuid4().hex) as db:
        db.create_table(Document)
        yield Tables(db, url)


def versions(tables: Tables, url: str, column: str = "size") -> int:
    return len(tables.db.history("documents", url, column))


def test_upsert(tables: Tables) -> None:
    tables.insert(Document(url="old", size=1), Document(url="same", size=3))
    found = tables.run(tables.job(), [whole("old", 2), whole("same", 3), whole("new", 4)])
    assert found == {"changed": 1, "unchanged": 1, "new": 1}
    assert tables.sizes() == {"old": 2, "same": 3, "new": 4}
    assert versions(tables, "same") == 1
    assert versions(tables, "old", "rank") == 1


def test_upsert_of_some_columns_leaves_the_others(tables: Tables) -> None:
    tables.insert(Document(url="old", size=1, text="kept"))
    rows = [{"url": "old", "text": None, "size": 7}]
    found = tables.run(tables.job("url", "text", "size", mode_of_rows="update"), rows)
    assert found == {"changed": 1}
    row = tables.db.snapshot().find(Document, url="old")
    assert row is not None
    assert (row.size, row.text) == (7, None)


def test_the_same_once_more_writes_nothing(tables: Tables) -> None:
    job = tables.job()
    rows = [whole(f"u{number}", number) for number in range(250)]
    assert tables.run(job, rows) == {"new": 250}
    assert tables.run(job, rows) == {"unchanged": 250}
    assert tables.run(tables.job(), rows) == {"unchanged": 250}
    assert versions(tables, "u7") == 1


def test_unchanged_rows_can_be_written(tables: Tables) -> None:
    tables.run(tables.job(), [whole("u", 1)])
    assert tables.run(tables.job(skip_unchanged="false"), [whole("u", 1)]) == {"changed": 1}
    assert tables.run(tables.job(skip_unchanged="false", newer="overwrite"), [whole("u", 1)]) == {
        "written": 1
    }
    assert versions(tables, "u") == 3


def test_a_late_attempt_does_not_undo_what_others_did(tables: Tables) -> None:
    job = tables.job()
    rows = [whole("a", 1), whole("b", 1), whole("c", 1), whole("d", 1)]
    tables.run(job, rows[:3])
    tables.update(Document(url="a", size=9))
    tables.remove("b")
    assert tables.run(job, rows) == {"kept": 2, "unchanged": 1, "new": 1}
    assert tables.sizes() == {"a": 9, "c": 1, "d": 1}


def test_back_and_forth_counts_as_newer(tables: Tables) -> None:
    """Who sets back what the first attempt wrote has the last word, too."""
    tables.insert(Document(url="a", size=1))
    job = tables.job()
    tables.run(job, [whole("a", 2)])
    tables.update(Document(url="a", size=1))
    assert tables.run(job, [whole("a", 2)]) == {"kept": 1}
    assert tables.sizes() == {"a": 1}


def test_what_others_changed_can_be_overwritten_or_refused(tables: Tables) -> None:
    tables.insert(Document(url="a", size=1))
    fail, overwrite = tables.job(newer="fail"), tables.job(newer="overwrite")
    tables.update(Document(url="a", size=9))
    with pytest.raises(PercolatorError, match="row url='a': another client has changed the row"):
        tables.run(fail, [whole("a", 2)])
    assert tables.sizes() == {"a": 9}
    assert tables.run(overwrite, [whole("a", 2)]) == {"changed": 1}
    assert tables.sizes() == {"a": 2}


def test_rows_that_were_made_of_a_snapshot(tables: Tables) -> None:
    """What was changed between the snapshot and the write is not lost."""
    at = tables.insert(Document(url="a", size=1), Document(url="b", size=1))
    tables.update(Document(url="a", size=9))
    tables.remove("b")
    assert tables.run(tables.job(since=str(at)), [whole("a", 2), whole("b", 2)]) == {"kept": 2}
    assert tables.sizes() == {"a": 9}
    tables.end_leases()
    tables.db.collect_garbage(keep=timedelta(0))
    with pytest.raises(SnapshotTooOld):
        tables.job(since=str(at))


def test_changes_of_other_columns_are_no_obstacle(tables: Tables) -> None:
    tables.insert(Document(url="a", size=1))
    job = tables.job("url", "size", mode_of_rows="update")
    tables.update(Document(url="a", text="theirs"))
    assert tables.run(job, [{"url": "a", "size": 2}]) == {"changed": 1}
    row = tables.db.snapshot().find(Document, url="a")
    assert row is not None
    assert (row.size, row.text) == (2, "theirs")


def test_insert(tables: Tables) -> None:
    tables.insert(Document(url="old", size=1))
    job = tables.job(mode_of_rows="insert")
    assert tables.run(job, [whole("a", 1)]) == {"new": 1}
    assert tables.run(job, [whole("a", 1), whole("b", 2)]) == {"unchanged": 1, "new": 1}
    with pytest.raises(RowExists, match="url='old'"):
        tables.run(job, [whole("c", 1), whole("old", 1)])
    with pytest.raises(RowExists, match="url='a'"):
        tables.run(tables.job(mode_of_rows="insert"), [whole("a", 1)])
    assert tables.sizes() == {"old": 1, "a": 1, "b": 2}


def test_update(tables: Tables) -> None:
    tables.insert(Document(url="a", size=1))
    job = tables.job("url", "size", mode_of_rows="update")
    with pytest.raises(RowNotFound, match="url='b'"):
        tables.run(job, [{"url": "a", "size": 2}, {"url": "b", "size": 2}])
    assert tables.sizes() == {"a": 1}
    assert tables.run(job, [{"url": "a", "size": 2}]) == {"changed": 1}


def test_remove(tables: Tables) -> None:
    tables.insert(Document(url="a", size=1), Document(url="b", size=1))
    job = tables.job("url", mode_of_rows="remove")
    assert tables.run(job, [{"url": "a"}, {"url": "nothing"}]) == {"removed": 1, "unchanged": 1}
    tables.insert(Document(url="a", size=5))
    tables.update(Document(url="b", text="theirs"))
    assert tables.run(job, [{"url": "a"}, {"url": "b"}]) == {"kept": 2}
    assert tables.sizes() == {"a": 5, "b": 1}


@pytest.mark.parametrize(
    ("columns", "options", "error", "words"),
    [
        (["url", "size"], {}, ConfigurationError, "'rank' is missing, and a new row needs this column"),
        (
            ["size"],
            {"mode_of_rows": "update"},
            ConfigurationError,
            "'url', which is part of the key, is missing",
        ),
        (["url", "size"], {"mode_of_rows": "remove"}, ConfigurationError, "leave size out"),
        (["url"], {"table": "nothing"}, UnknownTable, "no table 'nothing'"),
    ],
)
def test_what_cannot_be_written_at_all(
    tables: Tables, columns: list[str], options: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        tables.job(*columns, **options)


def test_an_unknown_column_or_type(tables: Tables) -> None:
    from pyspark.sql.types import StructType

    options = write_options({**tables.options, "mode_of_rows": "update"})
    with pytest.raises(UnknownColumn, match="no column 'sise': it has url, size"):
        begin_write(options, StructType().add("url", "string").add("sise", "long"))
    with pytest.raises(ConfigurationError, match="size"):
        begin_write(options, StructType().add("url", "string").add("size", "string"))
    begin_write(options, StructType().add("url", "string").add("size", "integer"))


def test_a_row_that_does_not_fit(tables: Tables) -> None:
    """Nothing of its transaction is written, and the sentence names row and field."""
    rows = [whole("a", 1), whole("b", 1, tags="[broken"), whole("c", 1)]
    with pytest.raises(ValueError, match="documents, row url='b': tags: "):
        tables.run(tables.job(), rows)
    assert tables.sizes() == {}


def test_a_table_that_was_changed(tables: Tables) -> None:
    job = tables.job()
    tables.db.drop_table("documents")
    tables.db.create_table(Document)
    with pytest.raises(ConfigurationError, match="has changed since the write began: write again"):
        tables.run(job, [whole("a", 1)])


def test_collection_waits_for_a_write(tables: Tables) -> None:
    """A late attempt can tell a removed row from one that never was."""
    job = tables.job()
    tables.run(job, [whole("a", 1)])
    tables.remove("a")
    assert tables.db.collect_garbage(keep=timedelta(0)).safe_point < job.lease.at
    assert tables.run(job, [whole("a", 1)]) == {"kept": 1}


class Account(Table, name="accounts", partition=[Hash("id", buckets=2)]):
    id: PrimaryKey[int]
    mail: Unique[str]
    town: Indexed[str | None] = None


def test_indexes_move_with_the_rows(tables: Tables) -> None:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    tables.db.create_table(Account)
    schema = StructType().add("id", "long").add("mail", "string").add("town", "string")
    options = write_options({**tables.options, "table": "accounts"})

    def run(*rows: dict[str, Any]) -> dict[str, int]:
        return dict(write_rows(begin_write(options, schema), [pa.RecordBatch.from_pylist(list(rows))]).counts)

    assert run({"id": 1, "mail": "a", "town": "x"}, {"id": 2, "mail": "b", "town": "x"}) == {"new": 2}
    assert run({"id": 1, "mail": "c", "town": "y"}) == {"changed": 1}
    assert [row.id for row in tables.db.snapshot().select(Account, Account.town == "x")] == [2]
    assert run({"id": 3, "mail": "a", "town": None}) == {"new": 1}
    with pytest.raises(RowExists, match="mail"):
        run({"id": 4, "mail": "b", "town": None})


def test_batches_are_cut_by_size(tables: Tables) -> None:
    tables.insert(*(Document(url=f"u{number}") for number in range(12)))
    job = tables.job("url", "text", mode_of_rows="update")
    rows = [{"url": f"u{number}", "text": "x" * (1 << 20)} for number in range(12)]
    assert write_rows(job, batches(rows)).counts == {"changed": 12}
    commits = {tables.db.history("documents", f"u{number}", "text")[0].commit_ts for number in range(12)}
    assert 3 <= len(commits) < 12
