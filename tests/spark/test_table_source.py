"""The data source in Spark: reads, writes, what is said in the driver, failing tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from percolator_core import (
    ConfigurationError,
    Hash,
    PercolatorError,
    PrimaryKey,
    RowExists,
    SnapshotTooOld,
    StoreUnavailable,
    Table,
    UnknownColumn,
    UnknownTable,
    connect,
)
from percolator_core.schema.predicates import ColumnExpression
from percolator_core.spark import plain_table_error, read_table, snapshot_views
from percolator_core.spark.tables.lease import Lease
from tests.flushing import flush
from tests.spark.tables import Document, Tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(spark: SparkContext) -> SparkSession:
    return SparkSession(spark)


@pytest.fixture
def tables(url: str) -> Iterator[Tables]:
    with connect(url, uuid4().hex) as db:
        db.create_table(Document)
        yield Tables(db, url)


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def filled(tables: Tables, count: int = 20) -> int:
    return tables.insert(
        *(
            Document(
                url=f"u{number:02d}",
                size=number,
                rank=number / 4,
                text="odd" if number % 2 else None,
                price=Decimal(number),
                at=NOON + timedelta(hours=number),
                ref=UUID(int=number),
                tags=["x"] * number,
            )
            for number in range(count)
        )
    )


def documents(session: SparkSession, rows: int, tasks: int, size: int = 1) -> DataFrame:
    """Rows ``u0`` and so on, as every column wants them."""
    return session.range(0, rows, numPartitions=tasks).selectExpr(
        "concat('u', id) as url",
        f"cast({size} as bigint) as size",
        "cast(0 as double) as rank",
        "cast(null as string) as text",
        "cast(id as decimal(10,2)) as price",
        "cast(null as timestamp) as at",
        "cast(null as string) as ref",
        "'[]' as tags",
    )


def sentence(run: Callable[[], Any]) -> PercolatorError:
    with pytest.raises(PySparkException) as raised:
        run()
    assert "Traceback" not in str(raised.value)
    return plain_table_error(raised.value)


def test_a_read(session: SparkSession, tables: Tables) -> None:
    filled(tables)
    frame = tables.read(session)
    assert [(one.name, one.dataType.simpleString(), one.nullable) for one in frame.schema] == [
        ("url", "string", False),
        ("size", "bigint", False),
        ("rank", "double", False),
        ("text", "string", True),
        ("price", "decimal(10,2)", False),
        ("at", "timestamp", True),
        ("ref", "string", True),
        ("tags", "string", False),
    ]
    found = {row.url: row for row in frame.collect()}
    assert len(found) == 20
    assert found["u03"].asDict() == {
        "url": "u03",
        "size": 3,
        "rank": 0.75,
        "text": "odd",
        "price": Decimal("3.00"),
        "at": (NOON + timedelta(hours=3)).replace(tzinfo=None),
        "ref": str(UUID(int=3)),
        "tags": '["x","x","x"]',
    }
    some = frame.where(f"size > 3 and text is not null and ref < '{UUID(int=9)}' and url like '%7'")
    assert [row.url for row in some.collect()] == ["u07"]
    assert frame.where("size > 3 and size < 2").count() == 0


def test_columns_filter_and_a_schema(session: SparkSession, tables: Tables) -> None:
    filled(tables)
    size, at = (ColumnExpression(name) for name in ("size", "at"))
    where = (size >= 4) & (at < NOON + timedelta(hours=6))
    frame = read_table(
        session, tables.url, "documents", namespace=tables.db.namespace, columns=["size", "url"], where=where
    )
    assert sorted(map(tuple, frame.collect())) == [(4, "u04"), (5, "u05")]
    reader = session.read.format("percolator").options(**tables.options, partitions="1").schema("rank double")
    frame = reader.load()
    assert frame.rdd.getNumPartitions() == 1
    assert frame.selectExpr("sum(rank)").first() == (47.5,)
    error = sentence(reader.schema("rank string").load().collect)
    assert isinstance(error, ConfigurationError)
    assert "rank is double, not string" in str(error)


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_a_filter_is_for_its_own_scan(session: SparkSession, tables: Tables, pushdown: str) -> None:
    """Whatever a session of one's own says: Spark 4.2 would leave a filter that is pushed to later scans."""
    filled(tables)
    other = session.newSession()
    other.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    frame = tables.read(other)
    assert frame.where("size = 7").count() == 1
    assert frame.count() == 20
    few, many = frame.where("size < 3"), frame.where("size >= 10")
    assert sorted(row.size for row in few.union(many).collect()) == [0, 1, 2, *range(10, 20)]
    assert frame.join(few.withColumnRenamed("url", "other"), "size").count() == 3


def test_time_travel(session: SparkSession, tables: Tables) -> None:
    at = filled(tables, 3)
    tables.update(Document(url="u01", size=100))
    tables.remove("u02")
    assert {row.url: row.size for row in tables.read(session, at=at).collect()} == {
        "u00": 0,
        "u01": 1,
        "u02": 2,
    }
    assert {row.url: row.size for row in tables.read(session).collect()} == {"u00": 0, "u01": 100}


def test_views_of_one_snapshot(session: SparkSession, tables: Tables) -> None:
    class Owner(Table, name="owners", partition=[Hash("name", buckets=2)]):
        name: PrimaryKey[str]
        url: str

    tables.db.create_table(Owner)
    filled(tables, 3)
    with tables.db.transaction() as t:
        t.insert(Owner(name="o", url="u01"))
    query = "select size from {} join own on {}.url = own.url"
    with snapshot_views(
        session, tables.url, {"docs": "documents", "own": "owners"}, namespace=tables.db.namespace
    ) as at:
        with tables.db.transaction() as t:
            t.update(Owner(name="o", url="u02"))
            t.update(Document(url="u01", size=77))
        # Pinned, so collection has to leave it.
        assert tables.db.collect_garbage(keep=timedelta(0)).safe_point < at
        assert session.sql(query.format("docs", "docs")).collect() == [(1,)]
    assert not session.catalog.tableExists("docs")
    with pytest.raises(UnknownTable):
        snapshot_views(session, tables.url, ["nothing"], namespace=tables.db.namespace).__enter__()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"table": "nothing"}, UnknownTable, "there is no table 'nothing' in the namespace"),
        ({"columns": "url,nothing"}, UnknownColumn, "no column 'nothing': it has url, size"),
        ({"filter": "nothing = 1"}, UnknownColumn, "no column 'nothing'"),
        ({"filter": "size = 'x'"}, ConfigurationError, "size is int"),
        ({"sinse": "1"}, ConfigurationError, "no option 'sinse'"),
        ({"at": str(2**52)}, ConfigurationError, "is in the future"),
        (
            {"url": "redis://u:canary@127.0.0.1:1/0?socket_connect_timeout=1"},
            StoreUnavailable,
            "did not answer",
        ),
    ],
)
def test_what_cannot_be_read(
    session: SparkSession, tables: Tables, options: dict[str, str], kind: type[Exception], words: str
) -> None:
    def read() -> None:
        session.read.format("percolator").options(**{**tables.options, **options}).load().collect()

    error = sentence(read)
    assert type(error) is kind
    assert words in str(error)
    assert "canary" not in str(error)


def test_a_snapshot_that_is_too_old(session: SparkSession, tables: Tables) -> None:
    at = filled(tables, 3)
    tables.db.collect_garbage(keep=timedelta(0))
    with pytest.raises(AnalysisException):
        tables.read(session, at=at).collect()
    error = sentence(tables.read(session, at=at).collect)
    assert type(error) is SnapshotTooOld
    assert "read a newer snapshot" in str(error)
    error = sentence(tables.read(session, since=at).collect)
    assert type(error) is SnapshotTooOld


def test_collection_waits_for_a_read(session: SparkSession, tables: Tables) -> None:
    """Whose planning process need not live, and whose tasks Spark may run again at any time."""
    filled(tables, 3)
    frame = tables.read(session)
    first = frame.collect()
    tables.update(Document(url="u01", size=100))
    tables.remove("u02")
    tables.db.collect_garbage(keep=timedelta(0))
    assert sorted(frame.collect()) == sorted(first)
    tables.end_leases()
    tables.db.collect_garbage(keep=timedelta(0))
    assert type(sentence(frame.collect)) is SnapshotTooOld


def test_a_lease_keeps_those_of_its_time(tables: Tables) -> None:
    """The next scan of a query that waits for the first one."""
    db = tables.db
    now = db.timestamp()
    mine, later = (Lease(now, now, minute, b"spark-%d:x" % minute, 3600.0) for minute in (100, 101))
    far = Lease(now, now, 102, b"spark-102:x", 3600.0)
    for lease in (later, far):
        lease.renew(db)
        db.store.one((b"PEXPIRE", db.client.token_of(b"spark-%d" % lease.minute), 1000_000))
    with mine.kept(db):
        pass
    left = [
        db.store.one((b"PTTL", db.client.token_of(b"spark-%d" % minute))) for minute in (100, 101, 102, 99)
    ]
    assert left[0] > 3_000_000
    assert left[1] > 3_000_000
    assert left[2] <= 1000_000
    assert left[3] < 0


def test_the_password_is_nowhere_in_a_plan(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    reader = (
        session.read.format("percolator").option("url", "redis://u:canary@127.0.0.1:1/0").option("table", "t")
    )
    frame = reader.schema("url string").load()
    frame.explain("extended")
    assert "percolator" in capsys.readouterr().out
    assert "canary" not in frame._jdf.queryExecution().toString()


def test_a_write(session: SparkSession, tables: Tables) -> None:
    tables.write(documents(session, 300, 3))
    assert len(tables.sizes()) == 300
    first = tables.db.history("documents", "u7", "size")
    tables.write(documents(session, 300, 2))
    assert tables.db.history("documents", "u7", "size") == first
    tables.write(documents(session, 10, 1).selectExpr("url"), mode_of_rows="remove")
    assert len(tables.sizes()) == 290
    row = tables.db.snapshot().find(Document, url="u12")
    assert row == Document(url="u12", size=1, price=Decimal(12))


def test_what_cannot_be_written(session: SparkSession, tables: Tables) -> None:
    frame = documents(session, 1, 1)
    error = sentence(lambda: tables.write(frame.withColumn("nothing", frame.size)))
    assert type(error) is UnknownColumn
    error = sentence(lambda: tables.write(frame.drop("url")))
    assert "'url', which is part of the key, is missing" in str(error)
    error = sentence(lambda: tables.write(frame.drop("rank")))
    assert "'rank' is missing" in str(error)
    writer = frame.write.format("percolator").options(**tables.options)
    error = sentence(writer.mode("overwrite").save)
    assert "does not overwrite tables" in str(error)
    assert tables.sizes() == {}


def test_rows_that_do_not_fit(session: SparkSession, tables: Tables) -> None:
    tables.insert(Document(url="u3"))
    error = sentence(lambda: tables.write(documents(session, 5, 1), mode_of_rows="insert"))
    assert type(error) is RowExists
    assert "url='u3'" in str(error)
    assert set(tables.sizes()) == {"u3"}


def test_a_task_that_fails_and_is_run_again(session: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """Each task fails once in the midst of its rows; somebody else has changed some meanwhile."""
    folder = str(tmp_path)

    def faulty(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(given):
            yield batch
            if number == 3 and not context.attemptNumber():
                (Path(folder) / f"failed-{context.partitionId()}").touch()
                raise OSError("on purpose")

    small = session.newSession()
    small.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = documents(small, 2000, 2)
    tables.write(frame.mapInArrow(faulty, frame.schema))
    assert {path.name for path in tmp_path.iterdir()} == {"failed-0", "failed-1"}
    assert tables.sizes() == {f"u{number}": 1 for number in range(2000)}
    histories = [tables.db.history("documents", f"u{number}", "size") for number in (0, 150, 1999)]
    assert [len(history) for history in histories] == [1, 1, 1]


def test_a_worker_that_is_killed(session: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """In the midst of the write all Python processes of the executor but one die."""
    marker = str(tmp_path / "killed")

    def killing(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal

        for number, batch in enumerate(given):
            yield batch
            if number == 3 and not Path(marker).exists():
                Path(marker).touch()
                daemon = os.getppid()
                for found in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
                    if int(found) != os.getpid():
                        os.kill(int(found), signal.SIGKILL)

    small = session.newSession()
    small.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = documents(small, 2000, 2)
    tables.write(frame.mapInArrow(killing, frame.schema))
    assert Path(marker).exists()
    assert tables.sizes() == {f"u{number}": 1 for number in range(2000)}


def test_a_read_beside_updates(session: SparkSession, tables: Tables) -> None:
    """All tasks see one snapshot: the sum that each transaction keeps."""
    tables.insert(*(Document(url=f"u{number:02d}", size=10) for number in range(40)))
    over = threading.Event()

    def move() -> None:
        number = 0
        while not over.is_set():
            number += 1

            def transfer(t: Any, number: int = number) -> None:
                one, other = (t.find(Document, url=f"u{n % 40:02d}") for n in (number, number * 7 + 1))
                if one.url != other.url:
                    one.size, other.size = one.size - 1, other.size + 1
                    t.update(one)
                    t.update(other)

            tables.db.run(transfer, 100)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        frame = tables.read(session, columns="size")
        sums = [frame.selectExpr("count(*)", "sum(size)").first() for _ in range(3)]
    finally:
        over.set()
        thread.join()
    assert sums == [(40, 400)] * 3


def test_rows_of_a_base(session: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """With all types, and as a batch of changes from the beginning."""
    columns: dict[str, Any] = {
        "price": Decimal("1.25"),
        "at": NOON,
        "ref": UUID(int=7),
        "tags": ["a", "b"],
        "rank": 0.5,
    }
    tables.insert(*(Document(url=f"u{number:02}", size=number, **columns) for number in range(20)))
    tables.insert(Document(url="nulls"))
    before = tables.read(session).collect()
    at = tables.db.timestamp()
    assert flush(tables.db, "documents", tmp_path) == 21
    assert sorted(tables.read(session).collect()) == sorted(before)
    tables.update(Document(url="u03", size=30))
    tables.remove("u04")
    tables.insert(Document(url="new", size=31))
    rows = {row.url: row for row in tables.read(session).collect()}
    assert set(rows) == {row.url for row in before} - {"u04"} | {"new"}
    assert (rows["u03"].size, rows["u03"].price, rows["u03"].tags) == (30, Decimal("1.25"), '["a","b"]')
    assert tables.read(session, filter="size >= 19 or at is null", columns="url").count() == 4
    with snapshot_views(session, tables.url, {"later": "documents"}, namespace=tables.db.namespace):
        assert session.sql("select sum(size) from later").collect()[0][0] == sum(range(20)) - 7 + 61
    changes = {row.url: row for row in tables.read(session, since=0).collect()}
    assert set(changes) == set(rows)
    assert changes["u00"]._commit_timestamp < at < changes["u03"]._commit_timestamp
