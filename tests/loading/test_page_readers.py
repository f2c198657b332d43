"""Folders of pages and WARC files: what is read, what is put aside and why."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from functools import partial
from pathlib import Path

import brotli  # type: ignore[import-untyped]
import pytest
from fastwarc.warc import WarcRecord, WarcRecordType

from percolator_core.loading import records, splits
from percolator_core.loading.formats import pages
from percolator_core.loading.formats.http_response import HttpError, parse_response
from percolator_core.loading.formats.warc import digest_matches
from percolator_core.loading.records import BadRecord, Record
from percolator_core.loading.source import Source, open_source

zipped = partial(gzip.compress, mtime=0)  # the same in each process: names of tests hold it
PAGE = b"<html><body>hello</body></html>" * 20


def read(source: Source) -> tuple[list[Record], list[BadRecord]]:
    reader = source.reader()
    items = [item for task in source.tasks(2) for split in task for item in reader.read(split)]
    return [i for i in items if isinstance(i, Record)], [i for i in items if isinstance(i, BadRecord)]


# A folder of pages


def test_pages_their_urls_and_types(tmp_path: Path) -> None:
    site = tmp_path / "my site"
    (site / "sub dir").mkdir(parents=True)
    (site / ".git").mkdir()
    (site / "index.html").write_bytes(PAGE)
    (site / "sub dir" / "é?.md").write_text("# hi")
    (site / "sub dir" / "a.TXT").write_text("")
    (site / ".git" / "x.html").write_text("hidden")
    (site / "logo.png").write_text("no page")
    good, bad = read(open_source(site))
    assert not bad
    assert {record.key: record.cells for record in good} == {
        b"doc://my%20site/index.html": {"contents": PAGE, "content_type": b"text/html"},
        b"doc://my%20site/sub%20dir/%C3%A9%3F.md": {"contents": b"# hi", "content_type": b"text/markdown"},
        b"doc://my%20site/sub%20dir/a.TXT": {"contents": b"", "content_type": b"text/plain"},
    }
    chosen = {"contents": "body", "path": "file"}
    good, _ = read(open_source(site, base_url="https://example.org/", columns=chosen))
    assert good[0].key == b"https://example.org/index.html"
    assert good[0].cells == {"body": PAGE, "file": b"index.html"}


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.html")).write_bytes(PAGE)
    except OSError:
        pytest.skip("this file system takes no such name")
    good, _ = read(open_source(tmp_path, base_url="x://"))
    assert good[0].key == b"x://%FF.html"


def test_pages_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_LOADED_VALUE", 100)
    (tmp_path / "gone.html").symlink_to(tmp_path / "nowhere")
    (tmp_path / "big.html").write_bytes(PAGE)
    (tmp_path / "good.html").write_bytes(b"x")
    good, bad = read(open_source(tmp_path, base_url="x://"))
    assert [record.key for record in good] == [b"x://good.html"]
    assert [(item.key, item.reason) for item in bad] == [
        (b"x://big.html", f"the value has 620 bytes, more than {records.MAX_LOADED_VALUE}"),
        (b"x://gone.html", "unreadable: No such file or directory"),
    ]


def test_many_small_files_share_tasks(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number:03}.html").write_bytes(PAGE)
    tasks = open_source(tmp_path).tasks(cores=2)
    assert len(tasks) <= 2 * 4 + 1
    assert sum(len(task) for task in tasks) == 500


def test_large_splits_stand_alone() -> None:
    large, small = 1000, 10
    given = [splits.Split("f", "f", 0, size, size) for size in (small, large, large, small, small)]
    assert [[split.size for split in task] for task in splits.group_splits(given, 52_000)] == [
        [small, large, large],
        [small, small],
    ]
    assert [[split.size for split in task] for task in splits.group_splits(given, 100)] == [
        [split.size] for split in given
    ]
    assert splits.group_splits([], 100) == []


def test_the_size_of_tasks() -> None:
    mega = 1 << 20
    assert splits.task_size([100], 2) == mega
    assert splits.task_size([80 * mega], 2) // mega == 10
    assert splits.task_size([10_000 * mega], 2) == splits.MAX_SPLIT


# HTTP


def response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes, size: int = 7) -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("encoding", "encoded"),
    [
        ("gzip", zipped(PAGE)),
        ("deflate", zlib.compress(PAGE)),
        ("deflate", zlib.compressobj(wbits=-15).compress(b"") + zlib.compress(PAGE)[2:-4]),
        ("br", brotli.compress(PAGE)),
        ("identity", PAGE),
        ("deflate, gzip", zipped(zlib.compress(PAGE))),
        *[(name, PAGE) for name in ("gzip", "deflate", "br")],  # stored decoded
        *[(name, b"") for name in ("gzip", "deflate", "br")],
    ],
)
@pytest.mark.parametrize("transfer", ["chunked", "stored without chunks", ""])
def test_http_encodings(encoding: str, encoded: bytes, transfer: str) -> None:
    body = chunked(encoded) if transfer == "chunked" else encoded
    headers = {"Content_Encoding": encoding} | ({"Transfer_Encoding": "chunked"} if transfer else {})
    assert parse_response(response(body, **headers), 10_000).body == (PAGE if encoded else b"")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"", "its header has no end"),
        (b"SSH-2.0\r\n\r\n", "its first line is 'SSH-2.0'"),
        (b"HTTP/1.1 abc\r\n\r\n", "its first line"),
        (response(zipped(PAGE)[:-9], Content_Encoding="gzip"), "damaged: it is incomplete"),
        (response(zipped(PAGE)[:20] + b"xxxxxxxxxxx", Content_Encoding="gzip"), "its body is damaged"),
        (response(chunked(PAGE)[:-20], Transfer_Encoding="chunked"), "its last chunk is incomplete"),
        (response(zipped(bytes(10**7)), Content_Encoding="gzip"), "more than 10000 bytes"),
        (response(brotli.compress(bytes(10**7)), Content_Encoding="br"), "more than 10000 bytes"),
        (response(bytes(10_001)), "more than 10000 bytes"),
    ],
)
def test_http_responses_that_are_none(block: bytes, reason: str) -> None:
    with pytest.raises(HttpError, match=reason):
        parse_response(block, 10_000)


def test_http_headers() -> None:
    block = b"HTTP/1.1 301\nLOCATION:  /\xc3\xa9\x85 \nlocation: second\nno colon\n\nbody"
    parsed = parse_response(block, 100)
    assert (parsed.status, parsed.headers["location"], parsed.body) == (301, b"/\xc3\xa9\x85", b"body")


# WARC


def warc(url: str, block: bytes, kind: WarcRecordType = WarcRecordType.response) -> bytes:
    record = WarcRecord()
    record.init_headers(kind)
    record.headers.append("WARC-Target-URI", url)
    record.set_bytes_content(block)
    out = io.BytesIO()
    record.write(out, checksum_data=True)
    return out.getvalue()


def crawl() -> list[bytes]:
    html = "text/html; charset=utf-8"
    return [
        warc("urn:info", b"software: test\r\n", WarcRecordType.warcinfo),
        warc("http://e.org/0", b"GET / HTTP/1.1\r\n\r\n", WarcRecordType.request),
        warc("http://e.org/0", response(PAGE, Content_Type=html)),
        warc("<http://e.org/1>", response(b"", "301 Moved", Location="/0")),
        warc(
            "http://e.org/2",
            response(chunked(zipped(PAGE)), Content_Encoding="gzip", Transfer_Encoding="chunked"),
        ),
        warc("http://e.org/3", response(PAGE, "404 Not Found", Content_Type=html)),
    ]


def stored(parts: list[bytes], how: str) -> bytes:
    if how == "member each":
        return b"".join(zipped(part) for part in parts)
    return zipped(b"".join(parts)) if how == "one member" else b"".join(parts)


@pytest.mark.parametrize("how", ["plain", "member each", "one member"])
def test_warc(tmp_path: Path, how: str) -> None:
    name = "crawl.warc" if how == "plain" else "crawl.warc.gz"
    (tmp_path / name).write_bytes(stored(crawl(), how))
    good, bad = read(open_source(tmp_path))
    assert not bad
    assert {record.key: record.cells for record in good} == {
        b"http://e.org/0": {
            "contents": PAGE,
            "status": b"200",
            "location": None,
            "content_type": b"text/html; charset=utf-8",
        },
        b"http://e.org/1": {"contents": b"", "status": b"301", "location": b"/0", "content_type": None},
        b"http://e.org/2": {"contents": PAGE, "status": b"200", "location": None, "content_type": None},
        b"http://e.org/3": {
            "contents": PAGE,
            "status": b"404",
            "location": None,
            "content_type": b"text/html; charset=utf-8",
        },
    }


def test_warc_responses_that_are_none(tmp_path: Path) -> None:
    parts = [
        warc("http://e.org/bad", b"nothing of HTTP"),
        warc("", response(PAGE)),
        warc("http://e.org/good", response(PAGE)),
    ]
    (tmp_path / "x.warc").write_bytes(b"".join(parts))
    good, bad = read(open_source(tmp_path, columns={"contents": "contents", "date": "fetched"}))
    assert [record.key for record in good] == [b"http://e.org/good"]
    assert (good[0].cells["fetched"] or b"").startswith(b"20")
    assert [(item.origin.position, item.reason) for item in bad] == [
        (0, "not an HTTP response: its header has no end"),
        (len(parts[0]), "the row key is missing"),
    ]


@pytest.mark.parametrize("how", ["plain", "member each", "one member"])
def test_warc_truncated_anywhere(tmp_path: Path, how: str) -> None:
    """Wherever the file is cut: what is whole is read, and a loss is never silent."""
    parts = crawl()
    whole = stored(parts, how)
    ends = (
        {len(stored(parts[:count], how)) for count in range(len(parts) + 1)}
        if how != "one member"
        else {len(whole)}
    )
    path = tmp_path / ("x.warc" if how == "plain" else "x.warc.gz")
    for cut in range(1, len(whole), 11):
        path.write_bytes(whole[:cut])
        good, bad = read(open_source(path))
        if cut in ends or (
            how == "plain" and any(0 <= end - cut <= 4 for end in ends)
        ):  # only the blank lines are gone
            continue
        assert len(bad) == 1, (cut, bad)
        assert len(good) <= 4
        if how != "one member":
            whole_parts = sum(len(stored(parts[:count], how)) <= cut for count in range(1, 7))
            assert len(good) - max(0, whole_parts - 2) in {
                0,
                1,
            }  # of a last one only the check sum may be gone


@pytest.mark.parametrize("how", ["plain", "member each"])
@pytest.mark.parametrize("garbage", [bytes(30), b"\xff" * 30], ids=["zeros", "ones"])
def test_warc_damaged_in_the_middle(tmp_path: Path, how: str, garbage: bytes) -> None:
    """A damaged record costs that record, not the rest of the file, and its place alone is reported.

    Records have random ids, so each crawl compresses to other bytes. One crawl in a hundred made FastWARC end
    at the damaged record, as it does at the end of the file.
    """
    path = tmp_path / ("x.warc" if how == "plain" else "x.warc.gz")
    for _ in range(200):
        parts = crawl()
        whole = stored(parts, how)
        start = len(stored(parts[:3], how))
        for offset in (0, len(stored(parts[3:4], how)) - 35):
            damaged = start + offset
            path.write_bytes(whole[:damaged] + garbage + whole[damaged + 30 :])
            good, bad = read(open_source(path))
            assert {record.key for record in good} == {
                b"http://e.org/0",
                b"http://e.org/2",
                b"http://e.org/3",
            }
            assert len({item.origin.position for item in bad}) == 1


@pytest.mark.parametrize("length", [b"5x", b"abc", b"-500", b"9" * 20])
def test_warc_whose_length_is_damaged(tmp_path: Path, length: bytes) -> None:
    """It costs the record, not the load, and not the records behind it."""
    parts = crawl()
    parts[3] = re.sub(rb"Content-Length: [0-9]+", b"Content-Length: " + length, parts[3], count=1)
    path = tmp_path / "x.warc"
    path.write_bytes(b"".join(parts))
    good, bad = read(open_source(path))
    assert {b"http://e.org/0", b"http://e.org/2", b"http://e.org/3"} <= {record.key for record in good}
    assert bad


def test_warc_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text.warc").write_bytes(b"hello this is not a warc\r\n\r\nfoo" * 100)
    (tmp_path / "text.warc.gz").write_bytes(b"hello")
    (tmp_path / "empty.warc").write_bytes(b"")
    good, bad = read(open_source(tmp_path))
    assert not good
    assert [Path(item.origin.file).name for item in bad] == ["text.warc", "text.warc.gz"]


def test_digests() -> None:
    assert digest_matches(None, b"x")
    assert digest_matches("sha1:CH5SVWUSFHXMBW6Z6PSUXLRV7SPMA3IN"[:5] + "x", b"") is False
    assert digest_matches("sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", b"")
    assert digest_matches("sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709", b"")
    assert digest_matches("blake9:ABC", b"x")
