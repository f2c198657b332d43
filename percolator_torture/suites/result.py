"""The result of a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

TOLD: Final = 20
"""A report has at most this many sentences of a suite; further sentences are only counted."""


@dataclass(slots=True)
class Table:
    """A table of figures: a title, headings, and rows with one text for each heading."""

    title: str
    headings: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON."""
        return {
            "title": self.title,
            "rows": [dict(zip(self.headings, row, strict=True)) for row in self.rows],
        }


@dataclass(slots=True)
class Result:
    """The result of a suite.

    ``run`` describes its work and ``found`` its outcome, each in a few words; ``wrong`` has a sentence for
    each violation, ``figures`` the numbers, ``tables`` measurements that no check judges. ``seconds`` is its
    duration. If there is a violation, the histories are in ``folder``, and, on a server of the user, the data
    in ``namespace``.
    """

    suite: str
    seed: int
    run: str = ""
    found: str = ""
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    folder: str | None = None
    namespace: str | None = None

    @property
    def ok(self) -> bool:
        """True if there are no violations."""
        return not self.wrong

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "suite": self.suite,
            "ok": self.ok,
            "seed": self.seed,
            "run": self.run,
            "found": self.found,
            "wrong": self.wrong[:TOLD],
            "wrong_count": len(self.wrong),
            "figures": self.figures,
            "tables": [table.as_dict() for table in self.tables],
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "folder": self.folder,
            "namespace": self.namespace,
        }
