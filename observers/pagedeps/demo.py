"""The demonstration: render a folder of HTML, change resources, and count the pages that are rendered again.

The folder is not changed: all changes are made in the store.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from observers.pagedeps.addresses import path_address
from observers.pagedeps.checker import check, needless
from observers.pagedeps.embedding import media_type_of
from observers.pagedeps.folder import Folder, load
from percolator_core import Chain, ConfigurationError, Worker, connect
from schemas.pagedeps import Made

if TYPE_CHECKING:
    from percolator_core import Database

CHAIN: Final = Path(__file__).resolve().parent
_PICTURE: Final = (
    b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><rect width="8" height="8"/></svg>'
)


@dataclass(frozen=True, slots=True)
class Step:
    """A change and its effects.

    ``depend`` counts the pages that depended on ``address`` before the change. ``rendered`` counts the
    snapshots that were written, and ``others`` counts those for pages that did not depend on ``address``.
    ``woken`` counts the runs of the observer ``render``, also runs that had no work. ``runs`` counts the runs
    of all observers.
    """

    what: str
    address: str
    depend: int
    rendered: int
    others: int
    woken: int
    runs: int
    seconds: float


@dataclass(slots=True)
class Report:
    """The result of the demonstration: sizes, steps, and the checker's violations."""

    pages: int = 0
    resources: int = 0
    dependencies: int = 0
    missing: int = 0
    steps: list[Step] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def run(
    folder: Path, *, state: Path | None = None, out: Path | None = None, limit: int | None = None
) -> Report:
    """Load a folder, render its pages, change some resources, and count the runs.

    ``state`` is the store's folder; the default is a temporary folder. ``out`` is the folder for the
    snapshots as files. ``limit`` is the largest number of pages to load, 1 or more.

    Raises:
        ConfigurationError: the folder has no pages, or ``out`` is inside the folder.
        PercolatorError: the store cannot be used.
    """
    source = Folder.read(folder, limit)
    if out is not None and out.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(f"{out} is inside the folder that is read: name another folder")
    with ExitStack() as stack:
        place = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagedeps-")))
        chain = Chain.load(CHAIN)
        db = stack.enter_context(connect(f"embedded:{place}", chain.name))
        chain.create_tables(db)
        return _Story(db, chain, source).play(out)


class _Story:
    def __init__(self, db: Database, chain: Chain, source: Folder) -> None:
        self._db = db
        self._chain = chain
        self._source = source
        self._report = Report(len(source.pages), len(source.resources))

    def play(self, out: Path | None) -> Report:
        """Run all steps."""
        before = self._made()
        started = time.monotonic()
        load(self._db, self._source)
        self._settle("first time", "", before, started)
        used = self._used()
        for what, address, content in self._changes(used):
            before = self._made()
            started = time.monotonic()
            with self._db.transaction() as t:
                t.set("resources", address, "content", content)
            self._settle(what, address, before, started)
        self._report.violations = [str(found) for found in (*check(self._db.snapshot()), *needless(self._db))]
        if out is not None:
            self._write(out)
        return self._report

    def _settle(self, what: str, address: str, before: dict[bytes, Made], started: float) -> None:
        counts = Worker(self._db, self._chain).run_until_idle()
        seconds = time.monotonic() - started
        after = self._made()
        depend = {page for page, made in before.items() if address in made.resources}
        rendered = {page for page, made in after.items() if made != before.get(page)}
        self._report.steps.append(
            Step(
                what,
                address,
                len(depend),
                len(rendered),
                len(rendered - depend) if address else 0,
                counts.observers["render"].ran,
                counts.ran,
                seconds,
            )
        )

    def _made(self) -> dict[bytes, Made]:
        rows = self._db.snapshot().scan("pages", columns=["made"])
        return {page: Made.decode(cells["made"]) for page, cells in rows}

    def _used(self) -> dict[str, int]:
        """Return the resources that rendered pages use or lack, each with the number of such pages."""
        used: dict[str, int] = {}
        for made in self._made().values():
            for address in made.resources:
                used[address] = used.get(address, 0) + 1
        self._report.dependencies = sum(used.values())
        there = {path_address(path) for path in self._source.resources}
        self._report.missing = len(used.keys() - there)
        return used

    def _changes(self, used: dict[str, int]) -> list[tuple[str, str, bytes]]:
        """Return the changes: the most used style sheet and image, and a missing image that is added."""
        contents = {path_address(path): file for path, file in self._source.resources.items()}
        changes = []
        for kind, addition in (("text/css", b"\n/* changed */\n"), ("image/", b"\n")):
            there = [
                address for address in used if address in contents and media_type_of(address).startswith(kind)
            ]
            # Prefer a resource that not all pages use, to show that the other pages are not rendered again.
            some = [address for address in there if used[address] < self._report.pages] or there
            if some:
                address = max(some, key=lambda address: (used[address], address))
                changed = contents[address].read_bytes() + addition
                changes += [("changes", address, changed), ("is written again", address, changed)]
        for address in sorted(used.keys() - contents.keys(), key=lambda address: (-used[address], address)):
            if media_type_of(address).startswith("image/"):
                changes.append(("was missing, is added", address, _PICTURE))
                break
        return changes

    def _write(self, out: Path) -> None:
        snapshot = self._db.snapshot()
        for path in self._source.pages:
            value = snapshot.get("pages", path_address(path), "snapshot")
            if value is not None:
                (out / path).parent.mkdir(parents=True, exist_ok=True)
                (out / path).write_bytes(value)
