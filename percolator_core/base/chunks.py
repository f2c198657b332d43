"""Column chunks: a chunk is the part of a Parquet file with one column of one row group.

A read fetches only some of the chunks.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Final

_GAP: Final = 1 << 16
"""Chunks are read in one request if at most this many bytes are between them."""


def together(chunks: Iterable[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield groups of chunks that are close together, since each request to an object store takes time.

    A chunk is given as its number, position and size. The chunks are in the order of the file.
    """
    some: list[tuple[int, int, int]] = []
    for chunk in chunks:
        if some and chunk[1] - sum(some[-1][1:]) > _GAP:
            yield some
            some = []
        some.append(chunk)
    if some:
        yield some


class Chunks(io.RawIOBase):
    """A file of ``size`` bytes of which only some parts were read. All other bytes are 0."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0
        self._parts: list[tuple[int, bytes]] = []

    def add(self, start: int, content: bytes) -> None:
        """Add a part that begins at ``start``."""
        self._parts.append((start, content))

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, fewer at the end."""
        begin, end = self._at, min(self._at + size, self._size)
        self._at = end
        for start, content in self._parts:
            if start <= begin and end <= start + len(content):
                return content[begin - start : end - start]
        # pyarrow joins the reads of two columns into one. It does not use the bytes between the columns.
        found = bytearray(end - begin)
        for start, content in self._parts:
            first, last = max(begin, start), min(end, start + len(content))
            if first < last:
                found[first - begin : last - begin] = content[first - start : last - start]
        return bytes(found)
