"""CSV with a header line: any usual delimiter and encoding, newlines in quoted fields, also gzip-compressed.

Bytes that are not UTF-8 stay unchanged. A field with the text ``null_text``, by default the empty text, means
no cell.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections import deque
from collections.abc import Iterator
from typing import Final, TextIO

from percolator_core.loading.formats.compressed import UNREADABLE, open_bytes
from percolator_core.loading.records import HEAD, MAX_LOADED_VALUE, BadRecord, Origin, Record
from percolator_core.loading.splits import Split, SplitReader
from percolator_core.loading.values import bytes_of

_DELIMITERS: Final = ",;\t|"
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class CsvReader(SplitReader):
    """Reads a file as one split, because only a read from the start shows which newlines are quoted."""

    suffixes = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
    dialect = "text"

    def read(self, split: Split) -> Iterator[Record | BadRecord]:
        """Read the rows of the file; positions are line numbers."""
        csv.field_size_limit(MAX_LOADED_VALUE + 1)
        number = 1
        try:
            with open_text(split.path, self.options.encoding) as file:
                lines = _Lines(file)
                for item in self._rows(split.path, lines):
                    number = lines.number + 1
                    yield item
        except (*UNREADABLE, UnicodeError, LookupError) as error:
            yield BadRecord(Origin(split.path, "line", number), f"unreadable from here on: {error}")

    def _rows(self, path: str, lines: _Lines) -> Iterator[Record | BadRecord]:
        delimiter = self.options.delimiter or guess_delimiter(lines.peek())
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        while True:
            origin = Origin(path, "line", lines.begin())
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # After a stray quote, all lines up to the next quote are in this row: read them again,
                # except the first.
                yield BadRecord(origin, f"not CSV: {error}", lines.head())
                lines.give_back()
                continue
            if not row:
                continue
            if header is None:
                header = row
                reason = self._check_header(header)
                if reason is not None:
                    yield BadRecord(origin, reason, lines.head())
                    return
            elif len(row) != len(header):
                yield BadRecord(origin, f"{len(row)} fields, but the header has {len(header)}", lines.head())
            else:
                yield self._record(origin, header, row, lines.head())

    def _check_header(self, header: list[str]) -> str | None:
        typed = self.options.typed
        problem = None if typed is None else typed.problem(header)
        if problem is not None:
            return f"the header {problem}, so the file was not read"
        if typed is None and self.options.key not in header:
            return f"the header has no field {self.options.key!r}, so the file was not read"
        repeated = sorted({name for name in header if header.count(name) > 1})
        if repeated:
            return f"the header has the field {repeated[0]!r} more than once, so the file was not read"
        return None

    def _record(self, origin: Origin, header: list[str], row: list[str], head: bytes) -> Record | BadRecord:
        fields: dict[str, object] = dict(zip(header, row, strict=True))
        if self.options.typed is None:
            null = self.options.null_text
            cells = (None if text == null else bytes_of(text) for text in row)
            fields = dict(zip(header, cells, strict=True))
        return self.keyed_record(origin, fields, head)


class _Lines:
    """The lines of a file. The lines of a malformed record can be read a second time."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._pending: deque[str] = deque()
        self._taken: list[str] = []
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._pending.popleft() if self._pending else self._file.readline(4 * MAX_LOADED_VALUE)
        if not line:
            raise StopIteration
        self._taken.append(line)
        self.number += 1
        return line

    def peek(self) -> str:
        """Return the next line without consuming it."""
        line = next(self, "")
        self._taken.clear()
        if line:
            self._pending.appendleft(line)
            self.number -= 1
        return line

    def begin(self) -> int:
        """Begin a record; return the number of its first line."""
        self._taken.clear()
        return self.number + 1

    def head(self) -> bytes:
        """Return the first bytes of the record."""
        return bytes_of("".join(self._taken[:2])[:HEAD])

    def give_back(self) -> None:
        """Give back all lines of the record except the first, so that they are read again."""
        self._pending.extendleft(reversed(self._taken[1:]))
        self.number -= max(0, len(self._taken) - 1)
        self._taken.clear()


def open_text(path: str, encoding: str | None) -> TextIO:
    """Open a file as text, in the encoding of its byte order mark, else ``encoding``, else UTF-8.

    In UTF-8, other bytes become surrogates. Raises an error of `UNREADABLE`; LookupError: no such encoding.
    """
    file = open_bytes(path)
    try:
        start = file.read(3)
        file.seek(0)
        for bom, name in _BOMS:
            if start.startswith(bom):
                encoding = name
        errors = "surrogateescape" if encoding in {None, "utf-8", "utf-8-sig"} else "strict"
        return io.TextIOWrapper(file, encoding=encoding or "utf-8", errors=errors, newline="")
    except BaseException:
        file.close()
        raise


def guess_delimiter(header: str) -> str:
    """Return the usual delimiter that the header line has most often outside of quotes; else a comma."""
    bare = "".join(header.split('"')[::2])
    return max(_DELIMITERS, key=bare.count)


def read_header(path: str, delimiter: str | None, encoding: str | None) -> list[str]:
    """Read the field names of a CSV file. Raises the errors of `open_text`, csv.Error and UnicodeError."""
    with open_text(path, encoding) as file:
        lines = _Lines(file)
        reader = csv.reader(lines, delimiter=delimiter or guess_delimiter(lines.peek()), strict=True)
        return next((row for row in reader if row), [])
