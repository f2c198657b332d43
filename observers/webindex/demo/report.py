"""The demo's results as data; ``show`` formats them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from observers.webindex.demo.changes import Change
    from observers.webindex.search import Result


@dataclass(frozen=True, slots=True)
class Loaded:
    """The load of all documents. ``seconds`` includes ``start_seconds``, the start of Spark."""

    read: int
    new: int
    changed: int
    unchanged: int
    deleted: int
    bad: int
    tasks: int
    start_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Processed:
    """The work of the chain: runs by observer, and the number of searchable pages afterwards."""

    observers: dict[str, int]
    conflicts: int
    quarantined: int
    shown: int
    seconds: float

    @property
    def ran(self) -> int:
        """Runs of all observers."""
        return sum(self.observers.values())


@dataclass(frozen=True, slots=True)
class Found:
    """A search and its results."""

    query: str
    milliseconds: float
    results: list[Result]


@dataclass(frozen=True, slots=True)
class Measured:
    """A change, and the time from its write until a search showed it."""

    change: Change
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Proof:
    """A search after the chain was idle. It confirms ``claim`` if ``holds`` is True.

    ``urls`` are the results that show this.
    """

    claim: str
    query: str
    holds: bool
    urls: list[str]


@dataclass(slots=True)
class Report:
    """The results of a run, filled scene by scene."""

    run: int
    url: str
    index: str
    documents: int = 0
    loaded: Loaded | None = None
    processed: Processed | None = None
    searches: list[Found] = field(default_factory=list)
    changes: list[Measured] = field(default_factory=list)
    updated: Processed | None = None
    first_run: dict[str, int] = field(default_factory=dict)
    """Runs of each observer when the index was built."""
    first_seconds: float = 0.0
    """Seconds that the build took."""
    proofs: list[Proof] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    scenes: dict[str, float] = field(default_factory=dict)
    """Seconds of each scene."""

    @property
    def median(self) -> float:
        """The median of the changes' times in milliseconds; 0 without changes."""
        return median(one.milliseconds for one in self.changes) if self.changes else 0.0

    @property
    def faults(self) -> list[str]:
        """The faults that the run found, one sentence each."""
        found = [
            f"{proof.claim}: that does not hold for {proof.query!r}"
            for proof in self.proofs
            if not proof.holds
        ]
        if self.violations:
            found.append(f"{len(self.violations):,} cells or postings are wrong, first: {self.violations[0]}")
        if self.quarantined:
            found.append(f"{self.quarantined:,} cells are in quarantine: `percolator failed` lists them")
        return found

    @property
    def good(self) -> bool:
        """True if the run found no fault."""
        return not self.faults

    @property
    def quarantined(self) -> int:
        """Cells that went to quarantine."""
        return sum(part.quarantined for part in (self.processed, self.updated) if part is not None)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON types."""
        changes = [
            {
                "kind": one.change.kind,
                "url": one.change.url,
                "query": one.change.query,
                "milliseconds": round(one.milliseconds, 3),
            }
            for one in self.changes
        ]
        return {
            "run": self.run,
            "url": self.url,
            "index": self.index,
            "documents": self.documents,
            "loaded": asdict(self.loaded) if self.loaded else None,
            "processed": asdict(self.processed) if self.processed else None,
            "searches": [asdict(found) for found in self.searches],
            "changes": changes,
            "median_milliseconds": round(self.median, 3),
            "updated": asdict(self.updated) if self.updated else None,
            "first_run": self.first_run,
            "first_seconds": self.first_seconds,
            "proofs": [asdict(proof) for proof in self.proofs],
            "violations": self.violations,
            "good": self.good,
            "faults": self.faults,
            "scenes": {name: round(seconds, 3) for name, seconds in self.scenes.items()},
            "seconds": round(sum(self.scenes.values()), 3),
        }
