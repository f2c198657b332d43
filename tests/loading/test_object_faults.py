"""Object stores that fail or change during a load."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from percolator_core import ConfigurationError, StoreUnavailable
from percolator_core.loading import LoadProgress, TooManyBadRecords, open_source
from tests.base.conftest import object_store
from tests.loading.loads import Loading
from tests.loading.store_faults import Proxy, proxy_of
from tests.loading.test_objects import Bucket, bucket

__all__ = ["bucket", "object_store"]


@pytest.fixture
def proxy(object_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with proxy_of(object_store) as proxy:
        yield proxy


@pytest.fixture
def prefix(bucket: Bucket, proxy: Proxy) -> str:
    """Three objects with a record each, below a prefix, through the proxy."""
    for name in "abc":
        bucket.put(f"{name}.jsonl", b'{"id": "%s", "n": 1}%s\n' % (name.encode(), b" " * 1000))
    return f"s3://{bucket.prefix}?scheme=http&endpoint_override={quote(proxy.address)}&region=us-east-1"


def put_aside(loading: Loading) -> str:
    return "".join(path.read_text() for path in loading.aside.rglob("*.jsonl"))


@pytest.mark.parametrize("fault", ["drop", (503, "SlowDown"), (400, "ExpiredToken"), (403, "AccessDenied")])
def test_a_store_that_fails_in_the_middle_ends_the_load(
    here: Loading, proxy: Proxy, prefix: str, fault: tuple[int, str]
) -> None:
    source = open_source(prefix, key="id")
    # All requests for this object fail, and all that do not name an object.
    proxy.fault = lambda _, path: None if "/a.jsonl" in path else fault
    with pytest.raises(StoreUnavailable, match=r"b\.jsonl.* cannot be read .*then load again"):
        here(source)
    proxy.fault = lambda _method, _path: None
    report = here(open_source(prefix, key="id"))
    assert (report.read, report.bad, len(here.rows())) == (3, 0, 3)


def test_parquet_in_a_store_that_fails_in_the_middle_ends_the_load(
    here: Loading, bucket: Bucket, proxy: Proxy, prefix: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": ["x", "y"] * 50_000}), tmp_path / "a.parquet")
    bucket.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    source = open_source(prefix.replace("?", "/a.parquet?"), key="id").into(
        here.db.catalog.table("documents")
    )
    [[split]] = source.tasks(1)
    proxy.fault = lambda method, _: "drop" if method == "GET" else None
    with pytest.raises(StoreUnavailable):
        list(source.reader().read(split))


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidObjectState"])
def test_an_object_that_alone_is_refused_is_put_aside(
    here: Loading, proxy: Proxy, prefix: str, code: str
) -> None:
    proxy.fault = lambda method, path: (403, code) if method == "GET" and "/b.jsonl" in path else None
    report = here(open_source(prefix, key="id"))
    assert (report.new, report.bad) == (2, 1)
    assert "b.jsonl" in put_aside(here)


def test_an_object_that_was_replaced_during_the_load_is_put_aside(
    here: Loading, bucket: Bucket, prefix: str
) -> None:
    bucket.put("d.jsonl", b'{"id": "d", "n": 1}\n')
    here(open_source(prefix, key="id"))
    source = open_source(prefix, key="id")

    def replace(now: LoadProgress) -> None:
        if now.read == 4:
            bucket.put("a.jsonl", b'{"id": "a", "n": 2}\n{"id": "e", "n": 2}\n')

    report = here(source, delete_missing=b"", progress=replace)
    assert (report.bad, report.deleted) == (1, 0)
    assert "replaced during the load: load again" in put_aside(here)
    with pytest.raises(TooManyBadRecords):
        here(source, max_bad=0)
    assert here(open_source(prefix, key="id"), max_bad=0).bad == 0


def test_an_object_that_shrinks_before_it_is_read_is_put_aside(
    here: Loading, bucket: Bucket, proxy: Proxy, prefix: str
) -> None:
    source = open_source(prefix, key="id")

    def shrink(method: str, path: str) -> None:
        if method == "GET" and "/a.jsonl" in path:
            bucket.put("a.jsonl", b'{"id": "')

    proxy.fault = shrink
    assert here(source).bad == 2  # unreadable, and replaced
    assert "replaced while it was read: load again" in put_aside(here)


def test_nothing_is_deleted_if_objects_were_added_during_the_load(
    here: Loading, bucket: Bucket, prefix: str
) -> None:
    here(open_source(prefix, key="id"))
    source = open_source(prefix, key="id")
    bucket.store.move(f"{bucket.prefix}/a.jsonl", f"{bucket.prefix}/z.jsonl")
    bucket.put("notes.bin", b"of another format")
    report = here(source, delete_missing=b"")
    assert (report.bad, report.deleted, len(here.rows())) == (1, 0, 3)
    assert report.kept_back is not None
    assert "z.jsonl" in report.kept_back
    bucket.store.delete_file(f"{bucket.prefix}/z.jsonl")
    report = here(open_source(prefix, key="id"), delete_missing=b"")
    assert (report.kept_back, report.deleted) == (None, 1)


@pytest.mark.parametrize("name", ["large.jsonl", "large.jsonl.gz", "large.csv"])
def test_an_object_is_read_with_few_requests(
    here: Loading, bucket: Bucket, proxy: Proxy, prefix: str, name: str
) -> None:
    lines = b"".join(b'{"id": "r%d", "text": "%s"}\n' % (number, b"x" * 5000) for number in range(200))
    if name.endswith(".csv"):
        lines = b"id,text\n" + b"".join(b"r%d,%s\n" % (number, b"x" * 5000) for number in range(200))
    bucket.put(name, gzip.compress(lines, 0) if name.endswith(".gz") else lines)
    source = open_source(prefix.replace("?", f"/{name}?"), key="id")
    proxy.seen.clear()
    assert here(source).new == 200
    assert [method for method, path in proxy.seen if f"/{name}" in path].count("GET") == 1


def test_parquet_is_read_with_few_requests(
    here: Loading, bucket: Bucket, proxy: Proxy, prefix: str, tmp_path: Path
) -> None:
    columns = {f"c{number}": [float(row) for row in range(400)] for number in range(20)}
    table = pa.table({"id": [str(row) for row in range(400)], **columns})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    bucket.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    source = open_source(prefix.replace("?", "/a.parquet?"), key="id")
    proxy.seen.clear()
    assert here(source).new == 400
    assert [method for method, path in proxy.seen if "/a.parquet" in path].count("GET") <= 6


def test_urls_with_parts_that_would_be_ignored_or_secret() -> None:
    for url in ("s3://user:sec/ret@bucket/x", "s3://user:sec?ret@bucket/x"):
        with pytest.raises(ConfigurationError, match="has a user or a password") as raised:
            open_source(url)
        assert "sec" not in str(raised.value)
    for url in ("abfs://store.blob.core.windows.net/c/x?sig=hidden", "s3://b/x?secret_key=hidden"):
        with pytest.raises(
            ConfigurationError, match="may be a secret: put it into the environment"
        ) as raised:
            open_source(url)
        assert "hidden" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="write %23"):
        open_source("s3://bucket/a#1.jsonl?region=us-east-1")
