"""Load a folder of HTML files into ``pages`` and ``resources``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from observers.pagedeps.addresses import path_address
from observers.pagedeps.embedding import media_type_of
from percolator_core import ConfigurationError

if TYPE_CHECKING:
    from percolator_core import Database, Transaction

MAX_FILE: Final = 32 << 20
"""The largest file that is loaded, in bytes; larger files are skipped."""

_PAGES: Final = frozenset({".html", ".htm", ".xhtml"})
_FILES: Final = 32
"""One transaction loads at most this many files."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a folder by their paths in it; ``resources`` are style sheets, images and fonts."""

    pages: Mapping[str, Path]
    resources: Mapping[str, Path]

    @classmethod
    def read(cls, folder: Path, limit: int | None = None) -> Folder:
        """List the files of a folder, but only the first ``limit`` pages, in the order of their paths.

        Raises:
            ConfigurationError: the folder has no pages.
        """
        pages: dict[str, Path] = {}
        resources: dict[str, Path] = {}
        for path, file in sorted(_files(folder)):
            if file.suffix.lower() in _PAGES:
                pages[path] = file
            elif media_type_of(path_address(path)).startswith(("text/css", "image/", "font/")):
                resources[path] = file
        if not pages:
            raise ConfigurationError(f"{folder} has no HTML files: name another folder")
        return cls(dict(islice(pages.items(), limit)), resources)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, _, names in os.walk(folder):
        for name in names:
            file = Path(place, name)
            path = file.relative_to(folder).as_posix()
            if path.isprintable() and file.is_file() and file.stat().st_size <= MAX_FILE:
                yield path, file


def load(db: Database, folder: Folder) -> None:
    """Load new, changed and deleted files of a folder; unchanged files wake no observer."""
    for table, column, files in (("resources", "content", folder.resources), ("pages", "html", folder.pages)):
        rows = {path_address(path): file for path, file in files.items()}
        gone = [row for row, _ in db.snapshot().scan(table, columns=[column]) if row.decode() not in rows]
        names = iter(rows)
        while batch := list(islice(names, _FILES)):
            contents = {row: rows[row].read_bytes() for row in batch}
            db.run(partial(_write, table=table, column=column, contents=contents))
        while gone:
            some, gone = gone[:_FILES], gone[_FILES:]
            with db.transaction() as t:
                for row in some:
                    t.delete(table, row, column)


def _write(t: Transaction, *, table: str, column: str, contents: Mapping[str, bytes]) -> None:
    before = t.get_many([(table, row, column) for row in contents])
    for (row, content), old in zip(contents.items(), before, strict=True):
        if content != old:
            t.set(table, row, column, content)
