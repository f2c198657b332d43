"""Decode the HTTP responses in WARC records: their transfer encoding and content encodings."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any


class HttpError(ValueError):
    """The block is no HTTP response, or the body cannot be decoded."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A decoded response. Header names are in lower case; the first of repeated headers counts."""

    status: int
    headers: dict[str, bytes]
    body: bytes


def parse_response(block: bytes, limit: int) -> HttpResponse:
    """Decode a response. Raises HttpError, also if the decoded body has more than ``limit`` bytes.

    A body that does not look encoded stays unchanged: many crawlers decode a body, and keep its headers.
    """
    head, separator, body = block.partition(b"\r\n\r\n")
    if not separator:
        head, separator, body = block.partition(b"\n\n")
    if not separator:
        raise HttpError("its header has no end")
    status_line, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
    headers: dict[str, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            headers.setdefault(name.strip().lower().decode("latin-1"), value.strip())
    if b"chunked" in headers.get("transfer-encoding", b"").lower():
        body = _join_chunks(body)
    for encoding in reversed(headers.get("content-encoding", b"").lower().split(b",")):
        body = _decode(body, encoding.strip(), limit)
    if len(body) > limit:
        raise HttpError(f"its body has more than {limit} bytes")
    return HttpResponse(_status(status_line), headers, body)


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    status = rest.strip()[:3]
    if not version.upper().startswith(b"HTTP") or not status.isdigit():
        raise HttpError(f"its first line is {line[:80].decode('utf-8', 'backslashreplace')!r}")
    return int(status)


def _join_chunks(body: bytes) -> bytes:
    """Remove the chunk sizes; return the body unchanged if it does not start with a chunk size."""
    parts: list[bytes] = []
    position = 0
    while True:
        end = body.find(b"\r\n", position)
        try:
            size = int(body[position:end].partition(b";")[0], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        if size < 0 or end + 2 + size > len(body):
            if not parts:
                return body
            raise HttpError("its last chunk is incomplete")
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2


def _decode(body: bytes, encoding: bytes, limit: int) -> bytes:
    if encoding in {b"gzip", b"x-gzip"} and body.startswith(b"\x1f\x8b"):
        try:
            return _inflate(body, 31, limit)
        except zlib.error as error:
            raise HttpError(f"its body is damaged: {error}") from None
    if encoding == b"deflate" and body:
        try:
            return _inflate(body, 15 if body[0] & 0x0F == 8 else -15, limit)  # with or without zlib's header
        except zlib.error:
            return body
    return _unbrotli(body, limit) if encoding == b"br" else body


def _inflate(body: bytes, wbits: int, limit: int) -> bytes:
    decompressor = zlib.decompressobj(wbits)
    decoded = decompressor.decompress(body, limit + 1)
    if not decompressor.eof and len(decoded) <= limit:
        raise zlib.error("it is incomplete")
    return decoded


def _unbrotli(body: bytes, limit: int) -> bytes:
    import brotli  # type: ignore[import-untyped]

    decompressor: Any = brotli.Decompressor()
    try:
        decoded: bytes = decompressor.process(body, output_buffer_limit=limit + 1)
    except brotli.error:
        return body
    return decoded if len(decoded) > limit or decompressor.is_finished() else body
