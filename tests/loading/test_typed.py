"""Loads into typed tables: in this process, and one with the same result on Spark."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import Field

from percolator_core import ConfigurationError, Database, Hash, Indexed, PrimaryKey, Table, Unique, connect
from percolator_core.errors import PercolatorError
from percolator_core.loading import open_source
from percolator_core.loading.records import BadRecord, Origin, Record
from percolator_core.loading.repeatable import in_groups
from percolator_core.loading.transactions import merge_group
from percolator_core.loading.typed_records import TypedRecords
from percolator_core.loading.values import JsonNumber, converter
from percolator_core.schema.types import column_type
from tests.loading.loads import Loading

if TYPE_CHECKING:
    from pyspark import SparkContext

REF = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Item(Table, name="documents", partition=[Hash("shop", buckets=2)]):
    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    name: str
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)]
    weight: float | None = None
    added: date | None = None
    seen: datetime | None = None
    open: bool | None = None
    ref: UUID | None = None
    raw: bytes | None = None
    tags: list[str] | None = None
    kind: Indexed[str | None] = None
    code: Unique[str | None] = None


class Page(Table, name="documents", partition=[Hash("url", buckets=2)]):
    url: PrimaryKey[str]
    contents: bytes
    content_type: str | None = None


ORIGIN = Origin("in", "line", 1)
NAMES = list(Item.model_fields)
WHOLE: dict[str, Any] = {
    "shop": "east",
    "number": 7,
    "name": 'a "b",\nc',
    "price": Decimal("12.50"),
    "weight": -0.25,
    "added": date(2026, 1, 31),
    "seen": NOON,
    "open": True,
    "ref": REF,
    "raw": b"\xff\xfe",
    "tags": ["x", "y"],
    "kind": "book",
    "code": "978",
}
TEXT = (
    b'east,7,"a ""b"",\nc",12.50,-0.25,2026-01-31,2026-01-31T13:00:00+01:00,TRUE,'
    b'12345678-1234-5678-1234-567812345678,\xff\xfe,"[""x"", ""y""]",book,978\n'
)
HEADER = ",".join(NAMES).encode() + b"\n"


@pytest.fixture
def typed(url: str, tmp_path: Path) -> Iterator[Loading]:
    with connect(url, uuid4().hex) as db:
        db.create_table(Item)
        yield Loading(db, url, tmp_path / "aside")


@pytest.fixture
def pages(url: str, tmp_path: Path) -> Iterator[Loading]:
    with connect(url, uuid4().hex) as db:
        db.create_table(Page)
        yield Loading(db, url, tmp_path / "aside")


def items(db: Database) -> list[dict[str, Any]]:
    return list(db.snapshot().select("documents"))


def write(path: Path, contents: bytes) -> Path:
    path.write_bytes(contents)
    return path


def key(number: int) -> str:
    return f"shop='east', number={number}"


def put_aside(report_aside: Path | None) -> list[dict[str, Any]]:
    assert report_aside is not None
    return [json.loads(line) for line in report_aside.read_text().splitlines()]


def test_csv_becomes_rows_and_the_same_load_again_writes_nothing(typed: Loading, tmp_path: Path) -> None:
    lines = HEADER + TEXT + b"west,-3,empty, 3 ,,,,,,,,,\n"
    path = write(tmp_path / "in.csv", lines)
    report = typed(open_source(path))
    assert (report.read, report.new, report.bad) == (2, 2, 0)
    empty = dict.fromkeys(NAMES) | {"shop": "west", "number": -3, "name": "empty", "price": Decimal("3.00")}
    assert items(typed.db) == [WHOLE, empty]

    again = typed(open_source(path, key=None))
    assert (again.unchanged, again.new, again.changed) == (2, 0, 0)
    with typed.db.transaction() as t:  # another column is another's business
        t.update(Item, shop="west", number=-3, weight=1.5)
    before = typed.db.timestamp()
    path.write_bytes(b"shop,number,name,price\neast,7,new,12.5\nwest,-3,empty,3\n")
    third = typed(open_source(path))
    assert (third.unchanged, third.changed) == (1, 1)
    assert items(typed.db) == [WHOLE | {"name": "new"}, empty | {"weight": 1.5}]
    assert items(typed.db)[0]["tags"] == ["x", "y"]
    row = next(iter(typed.rows()))
    written = {name: typed.db.history("documents", row, name)[0].commit_ts > before for name in NAMES[2:]}
    assert [name for name in written if written[name]] == ["name"]
    found = typed.db.snapshot().select("documents", Item.kind == "book", ["number"])
    assert list(found) == [{"number": 7}]


def test_what_does_not_fit_is_put_aside_with_row_field_and_reason(typed: Loading, tmp_path: Path) -> None:
    bad = {
        "number": "column 'number': '7x' is no int",
        "price": "column 'price': Decimal('1.234') does not fit",
        "seen": "column 'seen': '2026-01-31 12:00' has no time zone",
        "added": "column 'added': '31.1.2026' is no date",
        "tags": "column 'tags': '[1' is no JSON",
        "name": "column 'name': '\\udcff' cannot be encoded",
    }
    values = {
        "number": b"7x", "price": b"1.234", "seen": b"2026-01-31 12:00", "added": b"31.1.2026",
        "tags": b"[1", "name": b"\xff",
    }  # fmt: skip
    lines = b""
    for number, (name, value) in enumerate(values.items()):
        fields = {"shop": b"east", "number": b"%d" % number, "name": b"n", "price": b"1"} | {name: value}
        lines += b",".join(fields.get(one, b"") for one in NAMES) + b"\n"
    path = write(
        tmp_path / "in.csv", HEADER + lines + b"east,,n,1,,,,,,,,,\n" + b"east,9,n,,,,,,,,,,\n" + TEXT
    )
    report = typed(open_source(path))
    assert (report.read, report.new, report.bad) == (9, 1, 8)
    assert items(typed.db) == [WHOLE]
    aside = put_aside(report.aside)
    for number, (found, reason) in enumerate(zip(aside, bad.values(), strict=False)):
        assert reason in found["reason"]
        assert found.get("key") == (
            None if reason.startswith("column 'number'") else f"shop='east', number={number}"
        )
        assert found["line"] == number + 2
    assert [one["reason"] for one in aside[6:]] == [
        "column 'number': the value cannot be null",
        "column 'price': the value cannot be null",
    ]


def test_json_lines_may_have_some_of_the_columns(typed: Loading, tmp_path: Path) -> None:
    whole = json.loads(json.dumps(WHOLE | {"raw": "é", "price": 12.5}, default=str))
    path = write(tmp_path / "in.jsonl", json.dumps(whole).encode())
    assert typed(open_source(path)).new == 1
    loaded = WHOLE | {"raw": "é".encode()}
    assert items(typed.db) == [loaded]
    lines: list[dict[str, Any]] = [
        {"number": 7, "price": 99, "tags": None},
        {"number": 8, "name": "no price"},
        {"number": 9, "name": "x", "price": "1.10", "code": "978"},
        {"number": 10, "name": "x", "price": "1.10", "colour": "red"},
        {"number": 11, "name": "x", "price": True},
    ]
    path.write_text("".join(json.dumps({"shop": "east"} | line) + "\n" for line in lines))
    report = typed(open_source(path))
    assert (report.read, report.changed, report.bad) == (5, 1, 4)
    assert items(typed.db) == [loaded | {"price": Decimal(99), "tags": None}]
    aside = sorted(put_aside(report.aside), key=lambda one: one["byte"])
    assert aside[0]["reason"] == "documents, row shop='east', number=8: price: the value is missing"
    assert "already has a row with code='978'" in aside[1]["reason"]
    assert "'colour', and documents no such column" in aside[2]["reason"]
    assert "column 'price': True is no" in aside[3]["reason"]
    assert [one.get("key") for one in aside] == [key(8), key(9), None, key(11)]


def test_parquet_has_types_of_its_own(typed: Loading, tmp_path: Path) -> None:
    def table(**others: Any) -> pa.Table:
        return pa.Table.from_pylist([WHOLE | {"ref": str(REF), "tags": '["x","y"]'} | others])

    pq.write_table(table(), tmp_path / "a.parquet")
    assert typed(open_source(tmp_path)).new == 1
    assert items(typed.db) == [WHOLE]
    other = timezone(timedelta(hours=5))
    same = table(ref=REF.bytes, tags=["x", "y"], seen=NOON.astimezone(other), name=WHOLE["name"].encode())
    pq.write_table(same, tmp_path / "a.parquet")
    assert typed(open_source(tmp_path)).unchanged == 1
    pq.write_table(table(seen=NOON.replace(tzinfo=None)), tmp_path / "b.parquet")
    pq.write_table(table(colour="red"), tmp_path / "c.parquet")
    report = typed(open_source(tmp_path))
    assert (report.unchanged, report.bad) == (1, 2)
    aside = put_aside(report.aside)
    assert "has no time zone" in aside[0]["reason"]
    assert aside[0]["key"] == "shop='east', number=7"
    assert "'colour', and documents no such column" in aside[1]["reason"]


def test_fields_are_mapped_and_rows_of_pages_are_removed(pages: Loading, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", b"id;body;x\nhttp://a/1;one;\nhttp://a/2;\xff;\nhttp://b/;;\n")
    source = open_source(path, key="id", columns={"body": "contents"})
    assert typed_rows(pages, source) == {"http://a/1": b"one", "http://a/2": b"\xff", "http://b/": b""}
    path.write_bytes(b"id;body;x\nhttp://a/1;one;\n")
    report = pages(source, delete_missing="http://a/")
    assert (report.deleted, report.unchanged) == (1, 1)
    assert {row["url"] for row in items(pages.db)} == {"http://a/1", "http://b/"}

    site = tmp_path / "site"
    site.mkdir()
    (site / "1.html").write_bytes(b"<p>caf\xe9")
    report = pages(open_source(site, base_url="http://a/"), delete_missing=b"http://a/")
    assert (report.new, report.deleted) == (1, 1)
    page = pages.db.snapshot().find(Page, url="http://a/1.html")
    assert page is not None
    assert (page.contents, page.content_type) == (b"<p>caf\xe9", "text/html")


def typed_rows(pages: Loading, source: Any) -> dict[str, bytes]:
    assert pages(source).bad == 0
    return {row.url: row.contents for row in pages.db.snapshot().select(Page)}


@pytest.mark.spark
def test_spark_has_the_same_result(spark: SparkContext, url: str, tmp_path: Path) -> None:
    """The same rows, counts and put-aside records; and the other way has nothing left to write."""
    lines = b"".join(b"east,%d,n,%d.5,,,,,,,,,\n" % (number, number) for number in range(1000))
    bad = b"east,9x,n,1,,,,,,,,,\neast,1,n\neast,2,,,,,,,,,,,\n"
    path = write(tmp_path / "in.csv", HEADER + lines + bad)
    contexts = None, spark
    found = []
    for first in (0, 1):
        with connect(url, uuid4().hex) as db:
            db.create_table(Item)
            report = Loading(db, url, tmp_path / "aside", contexts[first])(open_source(path))
            again = Loading(db, url, tmp_path / "aside", contexts[1 - first])(open_source(path))
            counts = [getattr(report, name) for name in ("read", "new", "changed", "repeated", "bad")]
            assert (again.unchanged, again.new, again.changed) == (report.new, 0, 0)
            found.append((counts, put_aside(report.aside), put_aside(again.aside), items(db)))
    assert found[0] == found[1]
    assert found[0][0] == [1003, 1000, 0, 0, 3]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            "shop,number,name,price,colour\n",
            {},
            r"the field 'colour', and documents no such column",
        ),
        (
            "shop,name\n",
            {},
            r"no field 'number', which is part of the key of documents: it has shop, name",
        ),
        (
            "shop,number\n",
            {"key": "shop"},
            r"is not the key of documents, \(shop, number\)",
        ),
        ("shop,number\n", {"columns": {"shop": "shopp"}}, "documents has no column 'shopp': it has shop"),
        ("shop,number,x\n", {"columns": {"x": "name", "shop": "name"}}, "have the same column 'name'"),
        ("shop,x\n", {"columns": {"x": "name"}}, "has no field 'number'"),
        (
            "shop,number\n",
            {"delete_missing": "e"},
            r"a key of one text column, and the key of documents is \(shop str, number int\)",
        ),
        ("shop,number\n", {"format": "html"}, "load html into a table with a key of one text column"),
    ],
)
def test_what_does_not_agree_is_said_before_anything_is_read(
    typed: Loading, tmp_path: Path, text: str, arguments: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "in.csv", text.encode())
    prefix = arguments.pop("delete_missing", None)
    with pytest.raises(ConfigurationError, match=message):
        typed(open_source(path, **arguments), delete_missing=prefix)


def test_a_file_of_other_fields_is_put_aside_as_a_whole(typed: Loading, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", HEADER + TEXT)
    write(tmp_path / "b.csv", b"shop,name,price\neast,n,1\nwest,n,1\n")
    write(tmp_path / "c.csv", b"shop,number,name,price,colour\neast,1,n,1,red\n")
    report = typed(open_source(tmp_path))
    assert (report.new, report.bad) == (1, 2)
    reasons = [one["reason"] for one in put_aside(report.aside)]
    assert "no field 'number'" in reasons[0]
    assert "the field 'colour'" in reasons[1]
    assert all(reason.endswith("so the file was not read") for reason in reasons)


def test_a_line_of_json_with_an_unknown_field_is_told_at_once(typed: Loading, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b'\n{"shop": "a", "nmber": 1}\n'))
    with pytest.raises(ConfigurationError, match="has the field 'nmber', and documents no such column"):
        typed(open_source(tmp_path))


def test_tables_are_asked_for_what_they_need(url: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", b"url\na\n")
    with connect(url, uuid4().hex) as db:
        db.create_table("documents")
        loading = Loading(db, url, tmp_path / "aside")
        with pytest.raises(ConfigurationError, match="needs the field of the row key"):
            loading(open_source(path))

    class Bare(Table, name="documents"):
        url: PrimaryKey[str]
        text: str | None = None

    with connect(url, uuid4().hex) as db:
        db.create_table(Bare)
        loading = Loading(db, url, tmp_path / "aside")
        with pytest.raises(ConfigurationError, match="no column 'contents' for the fields of html"):
            loading(open_source(path, "html"))
        assert loading(open_source(path, "html", base_url="x:", columns={"contents": "text"})).new == 1
        assert items(db) == [{"url": "x:in.csv", "text": "url\na\n"}]


def test_a_table_that_was_changed_meanwhile_is_not_written(typed: Loading) -> None:
    handle = typed.db.catalog.table("documents")
    records = TypedRecords(handle.definition, handle.version, "text")
    record = pickle.loads(pickle.dumps(records)).build(
        None, {"shop": "a", "number": "1", "name": "n", "price": "1"}
    )
    groups = in_groups(records.definition, [record] * 200, attrgetter("size"))
    assert [len(group) for group in groups] == [83, 83, 34]
    assert merge_group(typed.db, records, [record]) == ["new"]
    assert merge_group(typed.db, records, [record]) == ["unchanged"]
    typed.db.drop_column("documents", "weight")
    with pytest.raises(ConfigurationError, match="has changed since the load began: load again"):
        merge_group(typed.db, records, [record])


def test_a_group_is_not_committed_when_the_load_has_ended(typed: Loading) -> None:
    handle = typed.db.catalog.table("documents")
    records = TypedRecords(handle.definition, handle.version, "json")
    fields = {"shop": "a", "name": "n", "price": 1}
    group = [records.build(ORIGIN, fields | {"number": number}) for number in (1, 2)]

    def refuse() -> None:
        raise PercolatorError("over")

    with pytest.raises(PercolatorError, match="over"):
        merge_group(typed.db, records, [one for one in group if isinstance(one, Record)], refuse)
    assert items(typed.db) == []


def test_of_two_rows_with_one_unique_value_the_second_is_refused(typed: Loading) -> None:
    handle = typed.db.catalog.table("documents")
    records = TypedRecords(handle.definition, handle.version, "json")
    fields = {"shop": "a", "name": "n", "price": 1, "code": "x"}
    group = [records.build(ORIGIN, fields | {"number": number}) for number in (1, 2)]
    first, second = merge_group(typed.db, records, [one for one in group if isinstance(one, Record)])
    assert first == "new"
    assert isinstance(second, BadRecord)
    assert second.shown == "shop='a', number=2"
    assert "code is unique" in second.reason
    assert len(items(typed.db)) == 1


NO = object()


@pytest.mark.parametrize(
    ("kind", "dialect", "value", "expected"),
    [
        ("int", "text", " +7 ", 7),
        ("int", "text", "12.0", 12),
        ("int", "text", "12.5", NO),
        ("int", "text", "1_000", NO),
        ("int", "text", "٣", NO),
        ("int", "text", "9223372036854775808", NO),
        ("int", "text", "1e999999999", NO),
        ("int", "json", JsonNumber("9007199254740993.0"), 9007199254740993),
        ("int", "json", "7", NO),
        ("int", "json", True, NO),
        ("float", "text", "1e999", NO),
        ("float", "text", "-Inf", float("-inf")),
        ("float", "json", 3, 3.0),
        ("float", "json", "1.5", NO),
        ("decimal(20,10)", "json", JsonNumber("1234567890.0123456789"), Decimal("1234567890.0123456789")),
        ("decimal(20,10)", "python", 0.5, NO),
        ("decimal(4,2)", "text", "1e-999999999", NO),
        ("decimal(4,2)", "text", "-.5", Decimal("-0.50")),
        ("bool", "text", "1", NO),
        ("str", "json", 7, NO),
        ("str", "python", b"\xff", NO),
        ("bytes", "json", "é", "é".encode()),
        ("datetime", "text", "2026-01-31T12:00:00.123456789Z", NO),
        ("datetime", "text", "2026-01-31T12:00:00.123456000Z", NOON.replace(microsecond=123456)),
        ("date", "python", NOON, NO),
        ("uuid", "text", "{12345678-1234-5678-1234-567812345678}", NO),
        ("uuid", "text", "12345678123456781234567812345678", REF),
        ("uuid", "python", b"short", NO),
        ("json", "json", "text", "text"),
        ("json", "text", "null", None),
        ("json", "text", "NaN", NO),
        ("json", "python", {"a": [1, None]}, {"a": [1, None]}),
    ],
)
def test_values_are_taken_as_they_are_or_refused(kind: str, dialect: Any, value: Any, expected: Any) -> None:
    convert = converter(column_type(kind), dialect)
    if expected is NO:
        with pytest.raises((TypeError, ValueError)):
            convert(value)
    else:
        cell = convert(value)
        assert (None if cell is None else column_type(kind).decode(cell)) == expected
