"""Spark's own Parquet reader above a base finds the rows that a snapshot has."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from percolator_core import Database, Hash, PrimaryKey, SnapshotTooOld, Table, connect
from percolator_core.schema.expression import parse
from percolator_core.schema.predicates import bind
from percolator_core.spark import read_table, snapshot_views
from percolator_core.spark.tables import native
from tests.servers.plain import commit_of, die
from tests.spark.tables import Document

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROWS = 120


@pytest.fixture(scope="module")
def session(spark: SparkContext) -> SparkSession:
    return SparkSession(spark)


@pytest.fixture
def db(url: str, tmp_path: Path) -> Iterator[Database]:
    """A table with cold, changed, removed, reinserted and new rows, and with removed rows in row sets."""
    chance = random.Random(7)
    with connect(url, uuid4().hex) as db:
        db.create_table(Document)
        db.set_base("documents", f"file://{tmp_path}/base")
        for _ in range(3):
            for _ in range(ROWS):
                change(db, chance)
            db.flush("documents", everything=True)
        for _ in range(60):
            change(db, chance)
        yield db


def change(db: Database, chance: random.Random) -> None:
    number = chance.randrange(ROWS)
    url = f"http://{number}"
    with db.transaction() as t:
        exists = t.find(Document, url=url) is not None
        match chance.randrange(5):
            case 0 if exists:
                t.remove(Document, url=url)
            case 1 if exists:
                t.update(Document, url=url, size=chance.randrange(100), text=chance.choice([None, "new"]))
            case _:
                t.upsert(
                    Document(
                        url=url,
                        size=number,
                        rank=chance.choice([0.0, -0.0, float("nan"), -1.5, number / 7]),
                        text=chance.choice([None, "", f"text {number}", "größer"]),
                        price=Decimal(number) / 4,
                        at=chance.choice([None, NOON + timedelta(microseconds=number)]),
                        ref=chance.choice([None, UUID(int=number)]),
                        tags=chance.choice([[], ["a", "b"]]),
                    )
                )


@pytest.fixture
def native_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads by the source fail."""
    read = native.read_native

    def strict(*arguments: Any) -> DataFrame:
        found = read(*arguments)
        assert found is not None, "the source reads the table"
        return found

    monkeypatch.setattr("percolator_core.spark.tables.views.read_native", strict)


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def by_source(session: SparkSession, db: Database, **options: Any) -> DataFrame:
    """The rows as the source reads them, which has its own tests."""
    return read_table(session, db.url, "documents", namespace=db.namespace, partitions=4, **options)


@pytest.mark.usefixtures("native_only")
def test_every_row_is_found_as_the_source_finds_it(session: SparkSession, db: Database) -> None:
    at = db.timestamp()
    found = read_table(session, db.url, "documents", namespace=db.namespace, at=at)
    expected = by_source(session, db, at=at)
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert rows_of(found) == rows_of(expected)
    with db.snapshot(at) as snapshot:
        urls = {row["url"] for row in snapshot.select("documents", columns=["url"])}
    assert {row.url for row in found.collect()} == urls


@pytest.mark.usefixtures("native_only")
@pytest.mark.parametrize(
    "where",
    [
        "size > 50 and text is not null",
        "rank >= 0.0",
        "rank = 0.0 or rank < -1",
        "not (text = 'new') or at is null",
        "url in ('http://1', 'http://2', 'http://77')",
        "price <= 12.25",
        "ref > '00000000-0000-0000-0000-000000000050'",
        "text >= 'g'",
    ],
)
def test_a_predicate_means_the_same(session: SparkSession, db: Database, where: str) -> None:
    at = db.timestamp()
    options: dict[str, Any] = {"where": where, "columns": ["size", "url"], "at": at}
    found = read_table(session, db.url, "documents", namespace=db.namespace, **options)
    assert rows_of(found) == rows_of(by_source(session, db, **options))


@pytest.mark.usefixtures("native_only")
def test_an_older_snapshot_is_read_below_newer_versions(session: SparkSession, db: Database) -> None:
    chance = random.Random(8)
    with db.snapshot() as snapshot:
        at = snapshot.start_timestamp
        expected = {row["url"]: row["size"] for row in snapshot.select("documents")}
        for _ in range(2 * ROWS):
            change(db, chance)
        found = read_table(session, db.url, "documents", namespace=db.namespace, at=at)
        assert {row.url: row.size for row in found.collect()} == expected
        assert rows_of(found) == rows_of(by_source(session, db, at=at))


class Numbered(Table, name="numbered", partition=[Hash("id", buckets=4)]):
    """Rows whose key is one number, which Spark joins as a number."""

    id: PrimaryKey[int]
    value: int | None = None
    name: str = ""


@pytest.mark.usefixtures("native_only")
@pytest.mark.parametrize("columns", [None, ["value"], ["id"], ["name", "id"]])
def test_keys_of_one_number(
    session: SparkSession, url: str, tmp_path: Path, columns: list[str] | None
) -> None:
    numbers = [-(1 << 63), -2, -1, 0, 1, 2, 3, 1 << 40, (1 << 63) - 1]
    with connect(url, uuid4().hex) as db:
        db.create_table(Numbered)
        db.set_base(Numbered, f"file://{tmp_path}/base")
        with db.transaction() as t:
            for number in numbers[::2]:
                t.insert(Numbered(id=number, value=1))
        db.flush(Numbered, everything=True)
        with db.transaction() as t:
            for number in numbers[1::2]:
                t.insert(Numbered(id=number, name="new"))
            t.update(Numbered, id=3, value=None, name="changed")
            t.remove(Numbered, id=1)
        at, expected = db.timestamp(), [row.id for row in db.snapshot().select(Numbered)]
        assert len(expected) == len(numbers) - 1
        options: dict[str, Any] = {"namespace": db.namespace, "columns": columns, "at": at}
        found = read_table(session, url, "numbered", **options)
        assert found.count() == len(expected)
        assert rows_of(found) == rows_of(read_table(session, url, "numbered", partitions=2, **options))


def change_numbers(db: Database, chance: random.Random) -> None:
    """Change some rows in one transaction, whose client may die before or after the commit point."""
    t = db.transaction()
    for number in chance.sample(range(-8, 8), chance.randrange(1, 4)):
        value, name = chance.choice([None, number]), chance.choice(["", "new", "x" * (1 << 19)])
        if chance.randrange(3) or t.find(Numbered, id=number) is None:
            t.upsert(Numbered(id=number, value=value, name=name))
        elif chance.randrange(2):
            t.update(Numbered, id=number, value=value)
        else:
            t.remove(Numbered, id=number)
    if chance.randrange(4):
        t.commit()
        return
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    if chance.randrange(2):
        commit.commit_primary(commit_ts)
    die(db)


@pytest.mark.usefixtures("native_only")
def test_reads_beside_writers_flushes_and_the_locks_of_dead_clients(
    session: SparkSession, url: str, tmp_path: Path
) -> None:
    chance, namespace, ended = random.Random(3), uuid4().hex, threading.Event()

    def write() -> None:
        own = random.Random(4)
        while not ended.is_set():
            with connect(url, namespace) as other, suppress(SnapshotTooOld):
                change_numbers(other, own)

    def flush() -> None:
        own = random.Random(5)
        with connect(url, namespace) as other:
            while not ended.is_set():
                other.flush(Numbered, everything=own.random() < 0.5, share=own.choice([0.9, 1.0]))
                other.compact(Numbered)

    with connect(url, namespace) as db, ThreadPoolExecutor() as threads:
        db.create_table(Numbered)
        db.set_base(Numbered, f"file://{tmp_path}/base", cold_after=timedelta(0))
        running = [threads.submit(write), threads.submit(flush)]
        read = 0
        try:
            while read < 4:
                # A flush may have chosen its safe point before the snapshot was pinned.
                with suppress(SnapshotTooOld), db.snapshot() as snapshot:
                    at = snapshot.start_timestamp
                    time.sleep(chance.random())
                    columns = chance.choice([["id", "value", "name"], ["value", "id"], ["id"]])
                    options: dict[str, Any] = {"namespace": namespace, "columns": columns, "at": at}
                    found = read_table(session, url, "numbered", **options).collect()
                    expected = list(snapshot.select("numbered", columns=columns))
                    assert sorted(map(repr, expected)) == sorted(repr(row.asDict()) for row in found)
                    read += 1
        finally:
            ended.set()
        for one in running:
            one.result()


def test_a_read_of_no_columns_is_refused_as_by_the_source(session: SparkSession, db: Database) -> None:
    messages = set()
    for partitions in (None, 4):
        with pytest.raises(AnalysisException) as refused:
            read_table(
                session, db.url, "documents", namespace=db.namespace, columns=[], partitions=partitions
            )
        messages.add(str(refused.value).partition("\n")[0])
    assert len(messages) == 1


@pytest.mark.usefixtures("native_only")
def test_changed_columns(session: SparkSession, db: Database) -> None:
    """Files from before a change have neither the new column nor the new name."""
    db.rename_column("documents", "size", "length")
    db.drop_column("documents", "ref")
    at = db.timestamp()
    found = read_table(session, db.url, "documents", namespace=db.namespace, at=at)
    assert found.columns[:3] == ["url", "length", "rank"]
    assert rows_of(found) == rows_of(by_source(session, db, at=at))


@pytest.mark.usefixtures("native_only")
def test_names_of_columns_may_have_any_characters(session: SparkSession, db: Database) -> None:
    for old, new in (("size", "a.b"), ("rank", "a`b"), ("text", "delta.key"), ("at", "größe 1")):
        db.rename_column("documents", old, new)
    columns = ["a`b", "a`b", "a.b"]
    options: dict[str, Any] = {"at": db.timestamp(), "columns": columns, "where": '"delta.key" is not null'}
    found = read_table(session, db.url, "documents", namespace=db.namespace, **options)
    assert found.columns == ["a`b", "a.b"]
    assert rows_of(found) == rows_of(by_source(session, db, **options))


def test_names_that_differ_in_case_only_are_read_by_the_source(session: SparkSession, db: Database) -> None:
    """Spark would take the values of a dropped column in the files for those of the new one."""

    class Added(Document, name="documents", partition=[Hash("url", buckets=4)]):
        Size: int = 77
        Text: str | None = None

    db.drop_column("documents", "size")
    for name in ("Size", "Text"):
        db.add_column(Added, name)
        at = db.timestamp()
        found = read_table(session, db.url, "documents", namespace=db.namespace, at=at)
        assert {row.Size for row in found.select("Size").collect()} == {77}
        assert rows_of(found) == rows_of(by_source(session, db, at=at))


@pytest.mark.usefixtures("native_only")
def test_a_table_without_deltas_is_plain_parquet(session: SparkSession, db: Database) -> None:
    """There is no join, and Spark pushes its predicates down to the files."""
    db.flush("documents", everything=True)
    db.compact("documents")
    found = read_table(session, db.url, "documents", namespace=db.namespace)
    plan = found.where("size > 50").select("url")._jdf.queryExecution().toString()
    assert "Join" not in plan
    assert "PushedFilters: [IsNotNull(`c.size`), GreaterThan(`c.size`,50)]" in plan
    assert "ReadSchema: struct<c.url:string,c.size:bigint>" in plan


@pytest.mark.usefixtures("native_only")
def test_views_are_of_one_snapshot(session: SparkSession, db: Database) -> None:
    with snapshot_views(session, db.url, {"d": "documents"}, namespace=db.namespace) as at:
        before = rows_of(session.sql("select * from d"))
        with db.transaction() as t:
            t.upsert(Document(url="http://later"))
        db.flush("documents", everything=True)
        assert rows_of(session.sql("select * from d")) == before
        assert before == rows_of(by_source(session, db, at=at))


@pytest.fixture
def careless(session: SparkSession) -> Iterator[None]:
    """A session that skips lost files, and reads old times by the Julian calendar."""
    changed = {
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    }
    for name, value in changed.items():
        session.conf.set(name, value)
    yield
    for name in changed:
        session.conf.unset(name)


@pytest.mark.usefixtures("native_only", "careless")
def test_settings_of_the_session_neither_lose_rows_nor_change_times(
    session: SparkSession, db: Database, tmp_path: Path
) -> None:
    with db.transaction() as t:
        t.upsert(Document(url="http://old", at=datetime(1200, 1, 1, tzinfo=UTC)))
    db.flush("documents", everything=True)
    found = read_table(session, db.url, "documents", namespace=db.namespace)
    [row] = found.where("url = 'http://old'").selectExpr("unix_micros(at) as at").collect()
    assert row["at"] == datetime(1200, 1, 1, tzinfo=UTC).timestamp() * 1e6
    for file in tmp_path.rglob("rows-*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        found.count()


def test_a_base_in_a_folder_that_spark_takes_for_a_pattern(
    session: SparkSession, db: Database, tmp_path: Path
) -> None:
    db.flush("documents", everything=True)
    db.set_base("documents", str(tmp_path / "a[b]{c}"))
    at = db.timestamp()
    found = read_table(session, db.url, "documents", namespace=db.namespace, at=at)
    assert rows_of(found) == rows_of(by_source(session, db, at=at))


def test_a_hot_table_is_read_by_the_source(
    session: SparkSession, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "MOST_DELTAS", 10)
    at = db.timestamp()
    found = read_table(session, db.url, "documents", namespace=db.namespace, at=at)
    assert "Parquet" not in found._jdf.queryExecution().toString()
    assert rows_of(found) == rows_of(by_source(session, db, at=at))


def test_conditions_know_every_operator(session: SparkSession, db: Database) -> None:
    definition = db.catalog.table("documents").definition
    bound = bind(parse("url ^= 'http' and not (size != 1)", definition), definition)
    assert "startswith" in str(native.condition(bound, definition.by_name)).lower()
    assert session is not None
