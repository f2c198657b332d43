"""Malformed records, put aside in JSON-lines files.

Each task writes a part of its own, under a name that a repeated or speculative attempt replaces as a
whole. The driver joins the parts. Like the input, the folder has to be one that all executors see.
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

from percolator_core.spark.records import BadRecord


@dataclass(frozen=True, slots=True)
class Aside:
    """Where one load puts its malformed records; ``folder`` is made when there is one."""

    folder: Path
    name: str

    @classmethod
    def for_load(cls, folder: str | os.PathLike[str], table: str) -> Aside:
        """The place for a load into ``table`` that starts now."""
        started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in table)
        return cls(Path(folder).absolute(), f"{safe}-{started}")

    @property
    def parts(self) -> Path:
        """Where the tasks write."""
        return self.folder / f".{self.name}"

    def part(self, number: int) -> AsidePart:
        """What task ``number`` writes to."""
        return AsidePart(self.parts, f"{number:06}.jsonl")

    def write(self, number: int, records: Iterable[BadRecord]) -> None:
        """A whole part."""
        with self.part(number) as part:
            for record in records:
                part.add(record)

    def join(self) -> Path | None:
        """Makes one file of the parts; None when no record was put aside."""
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


class AsidePart:
    """The records put aside by one attempt of a task; kept only if the attempt ends well."""

    def __init__(self, folder: Path, name: str) -> None:
        self._target = folder / name
        self._draft = folder / f"{name}.{uuid4().hex}"
        self._file: TextIO | None = None

    def add(self, record: BadRecord) -> None:
        """Puts a record aside."""
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
