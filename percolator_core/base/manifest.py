"""Manifests: the row sets of one tablet, and up to which time they are complete.

A manifest is an immutable file. Its name has its number and the checksum of its content, so a file that was
torn or damaged is noticed. The tablet's meta hash has the reference of the valid manifest.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Final

from percolator_core.base.location import Location
from percolator_core.base.row_set import RowSet
from percolator_core.errors import BaseDamaged

_FORMAT: Final = 1
_CHECKSUM_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Removed:
    """The rows of a row set that a newer row set has, or that were deleted: the file of their positions."""

    file: str
    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A row set in a manifest, and which of its rows are no longer part of the table."""

    row_set: RowSet
    removed: Removed | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The base of one tablet.

    ``number`` grows with each manifest of the tablet. Everything in the row sets was committed at or before
    ``timestamp``, in microseconds. A row is in one row set at most, apart from those where it is removed.
    """

    number: int
    timestamp: int
    entries: tuple[Entry, ...] = ()

    @property
    def files(self) -> frozenset[str]:
        """The names of all files that this manifest names."""
        return frozenset(
            file
            for entry in self.entries
            for file in (entry.row_set.file, entry.removed.file if entry.removed else None)
            if file is not None
        )

    @property
    def height(self) -> int:
        """The most row sets whose key ranges have a key in common: as many may be looked at for one key."""
        # At equal keys a range begins before another one ends: both bounds are inclusive.
        edges = sorted(
            edge for entry in self.entries for edge in ((entry.row_set.low, 0), (entry.row_set.high, 1))
        )
        height = most = 0
        for _, ends in edges:
            height += -1 if ends else 1
            most = max(most, height)
        return most

    def pack(self) -> bytes:
        """Return the content of the manifest's file."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, default=bytes.hex, sort_keys=True).encode()


def reference(location: Location, name: str) -> bytes:
    """Return what a tablet's meta hash has of its base: the location and the name of the manifest.

    The location is part of it, so that a reader needs no definition of the table, and a base can move.
    """
    return f"{location.url}\n{name}".encode()


def split_reference(packed: bytes) -> tuple[str, str]:
    """Return the URL of the location and the name of the manifest in a reference."""
    url, _, name = packed.decode().rpartition("\n")
    return url, name


def publish(location: Location, folder: str, manifest: Manifest) -> str:
    """Write a manifest, and return its name, by which `load` finds it.

    Its row sets are complete and on disk before, so that no crash leaves a manifest without them.

    Raises StoreUnavailable as `Location.create`.
    """
    content = manifest.pack()
    # With a random part: another maintainer may write the same manifest, and remove its file again.
    name = f"{folder}/manifest-{manifest.number}-{uuid.uuid4().hex}-{_checksum(content)}.json"
    with location.create(name) as file:
        file.write(content)
    return name


def load(location: Location, name: str) -> Manifest:
    """Return the manifest of that name.

    Raises:
        BaseDamaged: the file is missing or damaged.
        StoreUnavailable: as `Location.read_verified`.
    """
    content = location.read_verified(name, lambda found: name.endswith(f"-{_checksum(found)}.json"))
    found = json.loads(content)
    if found.pop("format") != _FORMAT:
        raise BaseDamaged(location.shown, name, "a newer version of percolator-core wrote it: install that")
    return Manifest(found["number"], found["timestamp"], tuple(map(_entry, found["entries"])))


def _entry(found: dict[str, Any]) -> Entry:
    row_set, removed = found["row_set"], found["removed"]
    bounds = {name: bytes.fromhex(row_set[name]) for name in ("low", "high", "checksums")}
    return Entry(RowSet(**row_set | bounds), Removed(**removed) if removed else None)


def _checksum(content: bytes) -> str:
    return blake2b(content, digest_size=_CHECKSUM_BYTES).hexdigest()
