"""Loads in either way, and their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from percolator_core import Database, loading
from percolator_core.loading import LoadReport, Source

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass
class Loading:
    """Loads into the table ``documents`` of one namespace: with Spark if there is a context, else here."""

    db: Database
    url: str
    aside: Path
    context: SparkContext | None = None

    def __call__(self, source: Source, table: str = "documents", **arguments: Any) -> LoadReport:
        settings = {"aside": self.aside} | arguments
        if self.context is None:
            return loading.load(self.db, table, source, **settings)
        from percolator_core.spark import load

        return load(self.url, self.db.namespace, table, source, context=self.context, **settings)

    def rows(self) -> dict[bytes, dict[str, bytes]]:
        return dict(self.db.snapshot().scan("documents"))

    def versions(self) -> dict[tuple[bytes, str], list[int]]:
        """The commit timestamps of every cell."""
        cells = [(row, column) for row, columns in self.rows().items() for column in columns]
        with self.db.concurrency() as executor:
            histories = executor.map(lambda cell: self.db.history("documents", *cell), cells)
            return {
                cell: [version.commit_ts for version in history]
                for cell, history in zip(cells, histories, strict=True)
            }


def site(folder: Path, pages: dict[str, str]) -> Path:
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def json_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
