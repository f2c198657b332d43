"""A folder of pages: HTML, plain text and Markdown files. Each file is one record.

Fields: ``contents`` (the file's bytes), ``content_type``, ``url``, ``path`` (relative to the folder). By
default ``contents`` and ``content_type`` are loaded; ``columns`` names other fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import SEEK_END, fsencode
from pathlib import PurePath
from typing import Final
from urllib.parse import quote_from_bytes

from percolator_core.loading.formats.compressed import open_file
from percolator_core.loading.records import MAX_LOADED_VALUE, BadRecord, Origin, Record, too_large
from percolator_core.loading.splits import Split, SplitReader

CONTENT_TYPES: Final = {
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
}
"""The suffixes of pages, and their content types."""


class PageReader(SplitReader):
    """Reads one page from one file."""

    suffixes = tuple(CONTENT_TYPES)
    page_fields = ("contents", "content_type")

    def read(self, split: Split) -> Iterator[Record | BadRecord]:
        """Read the record of the file."""
        url = page_url(self.options.base_url, split.name)
        origin = Origin(split.path, "file", 0)
        try:
            with open_file(split.path) as file:
                size = file.seek(0, SEEK_END)
                if size > MAX_LOADED_VALUE:
                    yield BadRecord(origin, too_large(size), key=url.encode())
                    return
                file.seek(0)
                contents = file.read()
        except OSError as error:
            yield BadRecord(origin, f"unreadable: {error.strerror or error}", key=url.encode())
            return
        suffix = PurePath(split.name).suffix.lower()
        fields = {
            "contents": contents,
            "content_type": CONTENT_TYPES.get(suffix, "application/octet-stream"),
            "url": url,
            "path": fsencode(split.name),
        }
        yield self.page_record(origin, url, fields, contents)


def page_url(base_url: str, name: str) -> str:
    """Return the URL of the file with the relative path ``name`` below ``base_url``.

    Characters that a URL cannot contain, and bytes that are no text, are percent-encoded.
    """
    parts = (quote_from_bytes(fsencode(part), safe="!$&'()*+,;=:@~-._") for part in PurePath(name).parts)
    return base_url + "/".join(parts)
