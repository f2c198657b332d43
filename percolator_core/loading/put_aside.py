"""Malformed records, put aside in JSON-lines files.

Each task writes one part. Another attempt at the task replaces the whole part. The driver joins the parts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from percolator_core.loading.records import BadRecord


@dataclass(frozen=True, slots=True)
class PutAside:
    """The file for the malformed records of one load. ``folder`` is created with the first record."""

    folder: Path
    name: str

    @classmethod
    def for_load(cls, folder: str | os.PathLike[str], table: str) -> PutAside:
        """Make the file's name from the table's name and the current time."""
        started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in table)
        return cls(Path(folder).absolute(), f"{safe}-{started}")

    @property
    def parts(self) -> Path:
        """The folder of the parts."""
        return self.folder / f".{self.name}"

    @contextmanager
    def part(self, number: int) -> Iterator[Callable[[BadRecord], object]]:
        """Yield a function that writes a record into the part of the task with this number.

        At the end of the block the part replaces an earlier one. If the block raises, the part is removed.
        """
        name = f"{number:06}.jsonl"
        draft = self.parts / f"{name}.{uuid4().hex}"
        file: TextIO | None = None

        def write(record: BadRecord) -> None:
            nonlocal file
            if file is None:
                self.parts.mkdir(parents=True, exist_ok=True)
                file = draft.open("w", encoding="ascii")
            file.write(record.to_json() + "\n")

        try:
            yield write
        except BaseException:
            if file is not None:
                file.close()
                draft.unlink(missing_ok=True)
            raise
        if file is not None:
            file.close()
            draft.replace(self.parts / name)

    def join(self) -> Path | None:
        """Join the parts to one file; return None if no record was put aside."""
        parts = sorted(self.parts.glob("*.jsonl"))
        target = self.folder / f"{self.name}.jsonl"
        if parts:
            with target.open("wb") as joined:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, joined)
        shutil.rmtree(self.parts, ignore_errors=True)
        return target if parts else None
