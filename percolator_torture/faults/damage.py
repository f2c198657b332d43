"""Damage files of columnar bases for a while, and record the errors with which readers refuse to answer."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from percolator_core.base import manifest as manifests
from percolator_core.base.bases import Bases
from percolator_core.base.changes import reference_of
from percolator_core.base.location import Location
from percolator_core.base.manifest import Manifest
from percolator_core.database import Database
from percolator_core.errors import BaseDamaged, LockTimeout, SnapshotTooOld, StoreUnavailable

Kind = Literal["lost", "torn"]

_ATTEMPTS: Final = 5
_SUFFIX: Final = ".refused"


class TabletFiles(NamedTuple):
    """The base of a tablet: its table and number, its manifest with the reference, and the location."""

    table: str
    number: int
    reference: bytes
    location: Location
    name: str
    manifest: Manifest


def bases_of(db: Database, tables: Iterable[str]) -> Iterator[TabletFiles]:
    """Read the manifests of tables; a tablet without a manifest is left out."""
    for table in tables:
        for number, tag in enumerate(db.catalog.table(table).tags):
            reference = reference_of(db.store, tag)
            if reference:
                url, name = manifests.split_reference(reference)
                location = Location(url)
                yield TabletFiles(table, number, reference, location, name, manifests.load(location, name))


def unnamed_files(db: Database, tables: Iterable[str]) -> Iterator[str]:
    """Compare the files of each tablet with those that its manifest names; yield a sentence if they differ.

    A tablet may keep one manifest besides the one that its reference names.
    """
    for tablet in bases_of(db, tables):
        folder = tablet.name.rpartition("/")[0]
        found = set(tablet.location.files(folder))
        valid = {name for name in found if "/manifest-" in name}
        if found - valid != tablet.manifest.files or tablet.name not in valid or len(valid) > 2:
            yield (
                f"tablet {tablet.number} of {tablet.table} has the files {sorted(found)}, and its manifest "
                f"{tablet.name} names {sorted(tablet.manifest.files)}"
            )


@dataclass(slots=True)
class Damage:
    """A file that is lost or torn from ``began`` until ``ended``, in monotonic nanoseconds."""

    kind: Kind
    file: str
    began: int
    ended: int = 2**63 - 1


class Refusal(NamedTuple):
    """A `BaseDamaged` that a client got between ``began`` and ``ended``, in monotonic nanoseconds."""

    file: str
    began: int
    ended: int


def note_refusal(folder: Path, name: str, error: BaseDamaged, began: int) -> None:
    """Record an error of the process ``name``."""
    with (folder / f"{name}{_SUFFIX}").open("a", encoding="utf-8") as file:
        file.write(json.dumps([error.file, began, time.monotonic_ns()]) + "\n")


def read_refusals(folder: Path) -> list[Refusal]:
    """Read the recorded errors of all processes; a last line may be torn."""
    lines = [line for path in folder.glob(f"*{_SUFFIX}") for line in path.read_text().split("\n")[:-1]]
    return [Refusal(*json.loads(line)) for line in lines]


class Vandal:
    """Damages files that a manifest names, one at a time, and checks that a reader is refused then.

    ``aside`` is a folder in the same file system.
    """

    def __init__(self, db: Database, aside: Path) -> None:
        self._db = db
        self._aside = aside
        self.damages: list[Damage] = []
        self.refused = 0
        """The reads of this object that were refused."""
        self.wrong: list[str] = []

    def damage(self, kind: Kind, dice: random.Random) -> Callable[[], None] | None:
        """Damage a file; return a function that restores it, or None if there was no file to damage."""
        try:
            tablets = [
                one for one in bases_of(self._db, self._db.maintainer().tables()) if one.manifest.files
            ]
        except (BaseDamaged, StoreUnavailable):
            return None  # the manifest was just replaced and removed, or another nemesis has the server
        if not tablets:
            return None
        tablet = dice.choice(tablets)
        name = tablet.name if kind == "torn" else dice.choice(sorted(tablet.manifest.files))
        path, kept = Path(f"{tablet.location.folder}/{name}"), self._aside / uuid.uuid4().hex
        damage = Damage(kind, name, time.monotonic_ns())
        try:
            path.replace(kept)
        except FileNotFoundError:
            return None
        if kind == "torn":
            content = kept.read_bytes()
            path.write_bytes(content[: dice.randrange(len(content))])
        self.damages.append(damage)

        # In a thread, because the run goes on.
        probe = threading.Thread(target=self._probe, args=(tablet, name))
        probe.start()

        def restore() -> None:
            probe.join()
            kept.replace(path)
            damage.ended = time.monotonic_ns()

        return restore

    def _probe(self, tablet: TabletFiles, name: str) -> None:
        """Read the table with an empty cache. This must fail, unless the tablet now has another manifest."""
        self._db.client.bases = Bases()
        for _ in range(_ATTEMPTS):
            try:
                snapshot, handle = self._db.snapshot(), self._db.catalog.table(tablet.table)
                # A scan would not return the rows of an index, which have no cells.
                found = (snapshot.select if handle.is_typed else snapshot.scan)(tablet.table)
                rows = sum(1 for _ in found)
            except BaseDamaged as error:
                self._check(tablet, name, error)
                return
            except (SnapshotTooOld, LockTimeout, StoreUnavailable):
                continue
            except Exception as error:  # noqa: BLE001 - the thread has no other way to report it
                self.wrong.append(f"a read of {tablet.table} without the file {name} raised {error!r}")
                return
            if reference_of(self._db.store, handle.tags[tablet.number]) == tablet.reference:
                self.wrong.append(f"a read of {tablet.table} returned {rows} rows without the file {name}")
            return

    def _check(self, tablet: TabletFiles, name: str, error: BaseDamaged) -> None:
        self.refused += 1
        names_all = tablet.location.shown in str(error) and name in str(error)
        # The folder has the name of the table, and the number of the tablet.
        names_all = (
            names_all and name.startswith(f"{quote(tablet.table, safe='')}-") and f"/{tablet.number}/" in name
        )
        if error.file != name or not names_all:
            self.wrong.append(f"the file {name} of {tablet.table} is damaged, but a read reported: {error}")

    def unjustified(self, refusals: Iterable[Refusal]) -> Iterator[str]:
        """Yield a sentence for each refusal whose file was not damaged at that time."""
        damages = defaultdict(list)
        for damage in self.damages:
            damages[damage.file].append(damage)
        for file, began, ended in refusals:
            if not any(one.began <= ended and began <= one.ended for one in damages[file]):
                yield f"a client was refused for the file {file}, which was not damaged"
