"""WARC: the HTTP responses of a crawl, plain or gzip-compressed; a file is one split.

Fields: ``contents`` (the decoded body), ``status``, ``location``, ``content_type``, ``url``, ``date`` (of the
capture). By default all but ``url`` and ``date`` are loaded; ``columns`` names other fields. Records of other
kinds are skipped.

FastWARC returns a truncated record like a complete one. So this module checks the length of each record, the
digest if there is one, and the end of the file.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Iterator
from os import SEEK_END
from typing import TYPE_CHECKING, BinaryIO, Final

from percolator_core.loading.formats.compressed import open_file
from percolator_core.loading.formats.http_response import HttpError, parse_response
from percolator_core.loading.records import HEAD, MAX_LOADED_VALUE, BadRecord, Origin, Record
from percolator_core.loading.splits import Split, SplitReader

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

_MAX_BLOCK: Final = MAX_LOADED_VALUE + 64 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_WARC_MAGIC: Final = b"WARC/1."
_CHUNK: Final = 1 << 20
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")


class WarcReader(SplitReader):
    """Reads responses. After damage it continues at the next gzip member, or in a plain file at a record."""

    suffixes = (".warc", ".warc.gz")
    page_fields = ("contents", "status", "location", "content_type")

    def read(self, split: Split) -> Iterator[Record | BadRecord]:
        """Read the responses; positions are bytes of the stored file."""
        try:
            with open_file(split.path) as file:
                yield from self._read_all(split.path, file)
        except OSError as error:
            yield BadRecord(Origin(split.path, "file", 0), f"unreadable: {error}")

    def _read_all(self, path: str, file: BinaryIO) -> Iterator[Record | BadRecord]:
        """Read all records, and continue after each damaged part."""
        compressed = file.read(3) == _GZIP_MAGIC
        start: int | None = 0
        damaged = False
        while start is not None:
            last: int | None = None
            item: Record | BadRecord | None = None
            try:
                for last, item in self._records(path, file, start):  # noqa: B007 - used below
                    damaged = False
                    if item is not None:
                        yield item
            except (OSError, ValueError, RuntimeError) as error:
                reason: str | None = f"damaged after this place: {error}"
            else:
                # FastWARC may end at a damaged record as it does at the end of the file.
                lost = damaged or isinstance(item, BadRecord)
                reason = None if lost else _check_end(file, last or start, compressed)
                if not lost and reason is None:
                    return
            if reason is not None and not damaged:
                yield BadRecord(Origin(path, "byte", last or start), reason)
            damaged = True
            start = _next_start(file, start, last, compressed)

    def _records(
        self, path: str, file: BinaryIO, start: int
    ) -> Iterator[tuple[int, Record | BadRecord | None]]:
        """Yield ``(position, record)`` from ``start`` on; the record is None unless it is a response."""
        from fastwarc.warc import ArchiveIterator, WarcRecordType

        file.seek(start)
        for record in ArchiveIterator(file, parse_http=False):
            position = record.stream_pos
            if record.headers.get("WARC-Type") is None:
                yield position, BadRecord(Origin(path, "byte", position), "the record has no WARC-Type")
            elif record.record_type != WarcRecordType.response:
                yield position, None
            else:
                yield position, self._response(Origin(path, "byte", position), record)

    def _response(self, origin: Origin, record: WarcRecord) -> Record | BadRecord:
        url = (record.headers.get("WARC-Target-URI") or "").strip("<> ")
        key = url.encode("utf-8", "surrogateescape") or None
        size = record.content_length
        if size > _MAX_BLOCK:
            return BadRecord(origin, f"the record has {size} bytes, more than {_MAX_BLOCK}", b"", key)
        block = record.reader.read()
        if len(block) < size:
            reason = f"truncated: {len(block)} of {size} bytes"
            return BadRecord(origin, reason, block[:HEAD], key)
        if not digest_matches(record.headers.get("WARC-Block-Digest"), block):
            return BadRecord(origin, "damaged: the digest differs", block[:HEAD], key)
        try:
            response = parse_response(block, MAX_LOADED_VALUE)
        except HttpError as error:
            return BadRecord(origin, f"not an HTTP response: {error}", block[:HEAD], key)
        fields = {
            "contents": response.body,
            "status": response.status,
            "location": response.headers.get("location"),
            "content_type": response.headers.get("content-type"),
            "url": url,
            "date": record.headers.get("WARC-Date"),
        }
        return self.page_record(origin, key, fields, block[:HEAD])


def digest_matches(digest: str | None, block: bytes) -> bool:
    """Return False if ``block`` has another digest than ``digest`` (such as ``sha1:BASE32``, or hex).

    If there is no digest, or its algorithm is unknown, return True.
    """
    algorithm, _, expected = (digest or "").partition(":")
    algorithm = algorithm.lower().replace("-", "")
    if algorithm not in {"md5", "sha1", "sha256", "sha512"} or not expected:
        return True
    actual = hashlib.new(algorithm, block, usedforsecurity=False).digest()
    spellings = {actual.hex(), base64.b32encode(actual).decode().rstrip("=").lower()}
    return expected.rstrip("=").lower() in spellings


def _next_start(file: BinaryIO, start: int, last: int | None, compressed: bool) -> int | None:
    """Find the next record after the one at ``last``; if ``last`` is None, after the position ``start``."""
    after = (start if last is None else last) + 1
    if compressed:
        return _find(file, _GZIP_MAGIC, after)
    end = None if last is None else _record_end(file, last)
    return _find(file, _WARC_MAGIC, after if end is None else end)


def _find(file: BinaryIO, magic: bytes, start: int) -> int | None:
    """Find the next position of ``magic``, from ``start`` on."""
    file.seek(start)
    kept = b""
    while chunk := file.read(_CHUNK):
        window = kept + chunk
        found = window.find(magic)
        if found >= 0:
            return start - len(kept) + found
        start += len(chunk)
        kept = window[-len(magic) + 1 :]
    return None


def _record_end(file: BinaryIO, start: int) -> int | None:
    """Find the end of the record at ``start`` of a plain file; None if its header is cut or damaged."""
    file.seek(start)
    head, found, _ = file.read(_CHUNK).partition(b"\r\n\r\n")
    if not found:
        return None
    lengths = [line[15:].strip() for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"]
    if not lengths:
        return start + len(head) + 4
    return start + len(head) + 4 + int(lengths[0]) if _LENGTH.fullmatch(lengths[0]) else None


def _check_end(file: BinaryIO, last: int, compressed: bool) -> str | None:
    """If the file ends too early after the record at ``last``, return the reason. FastWARC ignores this."""
    file.seek(last)
    if compressed:
        is_member = file.read(3) == _GZIP_MAGIC  # else the file is one member, and ``last`` is its end
        file.seek(last if is_member else 0)
        return _check_gzip(file)
    end = _record_end(file, last)
    if end is None:
        file.seek(last)
        return "truncated within the header of a record" if file.read(_CHUNK).strip() else None
    if end > file.seek(0, SEEK_END):
        return "truncated within this record"
    file.seek(end)
    return "the bytes after this record are no record" if file.read(_CHUNK).strip() else None


def _check_gzip(file: BinaryIO) -> str | None:
    """If one of the following gzip members is damaged or incomplete, return the reason."""
    member = zlib.decompressobj(wbits=31)
    pending = b""
    fresh = True
    while True:
        data = pending or file.read(_CHUNK)
        if not data:
            return None if fresh else "truncated within a gzip member"
        try:
            member.decompress(data, _CHUNK)
            pending = member.unconsumed_tail
        except zlib.error as error:
            return f"damaged: {error}"
        fresh = False
        if member.eof:
            pending = member.unused_data.lstrip(b"\0")
            member = zlib.decompressobj(wbits=31)
            fresh = True
