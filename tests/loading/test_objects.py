"""Objects of an object store are loaded as files are, in this process and in Spark's executors."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastwarc.warc import WarcRecordType
from pyarrow import fs

from percolator_core import ConfigurationError, StoreUnavailable
from percolator_core.loading import open_source
from tests.base.conftest import KEYS, make_bucket, object_store
from tests.loading.loads import Loading, json_lines, site
from tests.loading.test_page_readers import warc

__all__ = ["object_store"]


@dataclass(frozen=True)
class Bucket:
    """A prefix of a bucket, and the query of its URLs."""

    store: fs.S3FileSystem
    prefix: str
    query: str
    address: str

    def put(self, name: str, content: bytes) -> None:
        with self.store.open_output_stream(f"{self.prefix}/{name}", compression=None) as stream:
            stream.write(content)

    def put_all(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(str(path.relative_to(folder)), path.read_bytes())

    def url(self, name: str = "") -> str:
        return f"s3://{self.prefix}" + (f"/{quote(name)}" if name else "") + self.query


@pytest.fixture
def bucket(object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    store, query = make_bucket("bucket-of-loads", object_store, monkeypatch)
    return Bucket(store, f"bucket-of-loads/{tmp_path.name}", query, object_store)


def files_of(format_: str, folder: Path) -> Path:
    """Files of a format, in the folder and in a folder below it."""
    rows: list[dict[str, object]] = [{"id": f"r{number}", "text": f"text {number}"} for number in range(40)]
    (folder / "below").mkdir(parents=True)
    if format_ == "html":
        return site(folder, {"a page.html": "<p>a", "below/b?.html": "<p>b", "below/.hidden.html": "<p>c"})
    if format_ == "jsonl":
        json_lines(folder / "a.jsonl", rows[:20])
        packed = json_lines(folder / "b.jsonl", rows[20:])
        (folder / "below" / "b.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
        packed.unlink()
    elif format_ == "csv":
        (folder / "a.csv").write_text("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in rows))
        (folder / "below" / "b.tsv.gz").write_bytes(gzip.compress(b"id\ttext\nz\tlast\n"))
    elif format_ == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "below" / "a.parquet", row_group_size=10)
    else:
        block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>"
        content = b"".join(warc(f"http://e.org/{number}", block + b"%d" % number) for number in range(5))
        (folder / "a.warc").write_bytes(content)
    return folder


@pytest.mark.parametrize("format_", ["html", "jsonl", "csv", "parquet", "warc"])
def test_objects_give_the_rows_that_files_give(
    loading: Loading, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    if loading.context is not None:  # its executors were started without the credentials
        for name, value in KEYS.items():
            monkeypatch.setitem(loading.context.environment, name, value)
    folder = files_of(format_, tmp_path / "files")
    bucket.put_all(folder)
    settings = {"key": "id"} if format_ in {"jsonl", "csv", "parquet"} else {"base_url": "http://e.org/"}
    objects = open_source(bucket.url(), **settings)  # type: ignore[arg-type]
    first = loading(objects)
    assert (first.bad, first.new) == (0, first.read)
    rows = loading.rows()
    again = loading(open_source(folder, **settings))  # type: ignore[arg-type]
    assert (again.read, again.unchanged, again.new, again.changed) == (first.read, first.read, 0, 0)
    assert loading.rows() == rows


def test_a_prefix_is_listed_again_by_each_load(here: Loading, bucket: Bucket) -> None:
    bucket.put("2026/a.jsonl", b'{"id": "a", "n": 1}\n')
    assert here(open_source(bucket.url(), key="id")).new == 1
    bucket.put("2026/b.jsonl", b'{"id": "b", "n": 1}\n')
    bucket.put("2026/a.jsonl", b'{"id": "a", "n": 2}\n')
    report = here(open_source(bucket.url(), key="id"))
    assert (report.new, report.changed, report.files) == (1, 1, 2)
    # Of an object by its own URL, the name may have any suffix.
    bucket.put("other.txt?", b'{"id": "c", "n": 1}\n')
    report = here(open_source(bucket.url("other.txt?"), "jsonl", key="id"))
    assert (report.new, report.files) == (1, 1)


def test_a_large_object_is_divided(here: Loading, bucket: Bucket) -> None:
    lines = b"".join(b'{"id": "r%d", "text": "%s"}\n' % (number, b"x" * 5000) for number in range(600))
    bucket.put("large.jsonl", lines)
    source = open_source(bucket.url("large.jsonl"), key="id")
    assert len(source.tasks(2)) == 3
    assert here(source).new == 600


def test_a_damaged_object_is_put_aside_with_its_url(here: Loading, bucket: Bucket) -> None:
    bucket.put("a.jsonl", b'{"id": "a", "n": 1}\nnothing\n')
    bucket.put("b.jsonl.gz", gzip.compress(b'{"id": "b", "n": 1}\n')[:-4])
    report = here(open_source(bucket.url(), key="id"))
    assert (report.new, report.bad) == (2, 2)
    told = "".join(path.read_text() for path in here.aside.rglob("*.jsonl"))
    assert "not JSON" in told
    assert bucket.url("b.jsonl.gz") in told


def test_the_name_of_the_prefix_is_the_default_base_url(here: Loading, bucket: Bucket) -> None:
    bucket.put("my site/a.html", b"<p>a")
    here(open_source(bucket.url("my site")))
    assert list(here.rows()) == [b"doc://my%20site/a.html"]


def test_urls_that_cannot_be_read(bucket: Bucket, object_store: str) -> None:
    with pytest.raises(ConfigurationError, match="does not exist: name an object, or a prefix"):
        open_source(bucket.url("nothing"))
    with pytest.raises(ConfigurationError, match="has a user or a password: put them into the environment"):
        open_source(f"s3://user:secret@bucket-of-loads/x?endpoint_override={object_store}")
    with pytest.raises(ConfigurationError, match="'floppy://a/b' cannot be listed"):
        open_source("floppy://a/b")
    with pytest.raises(ConfigurationError, match=r"no-such-bucket.*does not exist"):
        open_source("s3://no-such-bucket/x" + bucket.query)
    with pytest.raises(StoreUnavailable, match=r"cannot be listed \(.*Could not connect"):
        open_source("s3://bucket/x?scheme=http&endpoint_override=127.0.0.1:9&region=us-east-1")


def test_warc_objects_are_those_of_responses(here: Loading, bucket: Bucket) -> None:
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>"
    other = warc("http://e.org/r", b"GET / HTTP/1.1\r\n\r\n", WarcRecordType.request)
    bucket.put("a.warc.gz", gzip.compress(other) + gzip.compress(warc("http://e.org/1", block)))
    assert here(open_source(bucket.url())).new == 1


def test_a_slash_at_the_end_means_the_prefix(here: Loading, bucket: Bucket) -> None:
    bucket.put("a", b'{"id": "object"}\n')
    bucket.put("a/b.jsonl", b'{"id": "below"}\n')
    assert [name for _, name in open_source(bucket.url("a"), "jsonl", key="id").files] == ["a"]
    assert [name for _, name in open_source(bucket.url("a/"), "jsonl", key="id").files] == ["b.jsonl"]


def test_an_object_that_pyarrow_cannot_open_is_put_aside(here: Loading, bucket: Bucket) -> None:
    bucket.put("a.jsonl", b'{"id": "a"}\n')
    connection = HTTPConnection(bucket.address)
    connection.request("PUT", f"/{bucket.prefix}//b.jsonl", b'{"id": "b"}\n')
    assert connection.getresponse().status == 200
    connection.close()
    report = here(open_source(bucket.url(), key="id"), delete_missing=b"")
    assert (report.read, report.bad, report.deleted) == (2, 1, 0)
    assert report.kept_back is not None


def test_an_empty_object_is_a_file_without_records(here: Loading, bucket: Bucket) -> None:
    for name in ("a.csv", "b.csv.gz"):
        bucket.put(name, b"")
    bucket.put("c.csv", b"id,text\nr,t\n")
    report = here(open_source(bucket.url(), key="id"))
    assert (report.files, report.read, report.new) == (3, 1, 1)


def test_the_suffix_of_compressed_objects_may_have_capital_letters(here: Loading, bucket: Bucket) -> None:
    bucket.put("A.JSONL.GZ", gzip.compress(b'{"id": "a", "n": 1}\n'))
    assert here(open_source(bucket.url(), key="id")).new == 1


def test_two_pages_cannot_be_the_same_row(bucket: Bucket) -> None:
    bucket.put("2025/a.html", b"<p>1")
    bucket.put("2026/a.html", b"<p>2")
    with pytest.raises(ConfigurationError, match=r"2025/a\.html.* and .*2026/a\.html.* the same row"):
        open_source([bucket.url("2025"), bucket.url("2026")])
    assert len(open_source([bucket.url(), bucket.url("2026/a.html")]).files) == 3
