"""Malformed records, put aside in JSON-lines files.

Each task writes one part. Another attempt at the task, repeated or speculative, replaces the whole part. The
driver joins the parts. All executors need access to the folder, as to the input.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO
from uuid import uuid4

from percolator_core.spark.loading.records import BadRecord


@dataclass(frozen=True, slots=True)
class PutAside:
    """The file for the malformed records of one load. ``folder`` is created with the first record."""

    folder: Path
    name: str

    @classmethod
    def for_load(cls, folder: str | os.PathLike[str], table: str) -> PutAside:
        """Name the file by the table and the current time."""
        started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in table)
        return cls(Path(folder).absolute(), f"{safe}-{started}")

    @property
    def parts(self) -> Path:
        """The folder of the parts."""
        return self.folder / f".{self.name}"

    def part(self, number: int) -> Part:
        """Return the part of task ``number``."""
        return Part(self.parts, f"{number:06}.jsonl")

    def write(self, number: int, records: Iterable[BadRecord]) -> None:
        """Write a whole part."""
        with self.part(number) as part:
            for record in records:
                part.add(record)

    def join(self) -> Path | None:
        """Join the parts to one file; return None if no record was put aside."""
        if not self.parts.exists():
            return None
        parts = sorted(self.parts.glob("*.jsonl"))
        target = self.folder / f"{self.name}.jsonl"
        if parts:
            with target.open("wb") as joined:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, joined)
        shutil.rmtree(self.parts, ignore_errors=True)
        return target if parts else None


class Part:
    """The malformed records of one attempt at a task. They are removed if the attempt fails."""

    def __init__(self, folder: Path, name: str) -> None:
        self._target = folder / name
        self._draft = folder / f"{name}.{uuid4().hex}"
        self._file: TextIO | None = None

    def add(self, record: BadRecord) -> None:
        """Write a record."""
        if self._file is None:
            self._draft.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._draft.open("w", encoding="ascii")
        self._file.write(record.to_json() + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        self._file.close()
        if kind is None:
            self._draft.replace(self._target)
        else:
            self._draft.unlink(missing_ok=True)
