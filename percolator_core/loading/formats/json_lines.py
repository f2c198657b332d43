"""JSON lines: one object per line, in UTF-8, also gzip-compressed. Plain files are split into byte ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO, Final

from percolator_core.loading.formats.compressed import UNREADABLE, is_compressed, open_bytes
from percolator_core.loading.records import HEAD, MAX_LOADED_VALUE, BadRecord, Origin, Record
from percolator_core.loading.splits import Split, SplitReader
from percolator_core.loading.values import JsonNumber

_MAX_LINE: Final = 4 * MAX_LOADED_VALUE
_CHUNK: Final = 1 << 20
_BOM: Final = b"\xef\xbb\xbf"


class JsonLinesReader(SplitReader):
    """Reads the lines that start in a split. The last line may end after the split."""

    suffixes = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
    dialect = "json"

    def cut(self, path: str, name: str, size: int, target: int) -> Iterator[Split]:
        """Divide a file into byte ranges. A small or compressed file is one split."""
        if is_compressed(path) or size <= target:
            yield from super().cut(path, name, size, target)
            return
        for start in range(0, size, target):
            stop = min(start + target, size)
            yield Split(path, name, start, stop, stop - start)

    def read(self, split: Split) -> Iterator[Record | BadRecord]:
        """Read the records; positions are bytes of the uncompressed file."""
        position = split.start
        try:
            compressed = is_compressed(split.path)
            with open_bytes(split.path) as file:
                if split.start > 0:
                    file.seek(split.start - 1)
                    _skip_line(file)
                    position = file.tell()
                while compressed or position < split.stop:
                    line = file.readline(_MAX_LINE)
                    if not line:
                        return
                    origin = Origin(split.path, "byte", position)
                    position += len(line)
                    if len(line) == _MAX_LINE and not line.endswith(b"\n"):
                        position += _skip_line(file)
                        yield BadRecord(origin, f"the line has more than {_MAX_LINE} bytes", line[:HEAD])
                        continue
                    if origin.position == 0:
                        line = line.removeprefix(_BOM)
                    if not line.isspace():
                        yield self._record(origin, line)
        except UNREADABLE as error:
            yield BadRecord(Origin(split.path, "byte", position), f"unreadable from here on: {error}")

    def _record(self, origin: Origin, line: bytes) -> Record | BadRecord:
        try:
            fields = parse_object(line, is_typed=self.options.typed is not None)
        except ValueError as error:
            return BadRecord(origin, str(error), line[:HEAD])
        return self.keyed_record(origin, fields, line[:HEAD])


def parse_object(text: bytes, *, is_typed: bool) -> dict[str, object]:
    """Parse a JSON object. Numbers of a typed table's record keep their digits. Raises ValueError."""
    try:
        found = json.loads(text.decode(), parse_float=JsonNumber if is_typed else None)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object, but a {type(found).__name__}")
    return found


def first_fields(path: str) -> list[str]:
    """Return the fields of the first line that is not blank; none if it is no JSON object.

    Raises an error of `UNREADABLE`.
    """
    with open_bytes(path) as file:
        line = file.readline(_MAX_LINE).removeprefix(_BOM)
        while line.isspace():
            line = file.readline(_MAX_LINE)
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return list(fields) if isinstance(fields, dict) else []


def _skip_line(file: BinaryIO) -> int:
    """Read the rest of the line; return its number of bytes."""
    skipped = 0
    while chunk := file.readline(_CHUNK):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
