"""Manifests: the row sets of one tablet, and the time up to which they are complete.

A manifest is an immutable file. The name of the file has the manifest's number and a checksum of the content,
so a reader detects a torn or damaged file. The tablet's meta hash has the *reference* of the valid manifest:
the URL of the location, and the name of the file. So a reader finds the base without the table's definition,
also after the base has moved to another location.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from percolator_core.base.location import Location
from percolator_core.base.row_set import RowSet
from percolator_core.errors import BaseDamaged
from percolator_core.scripts import calls
from percolator_core.store import Store
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    import numpy as np

    Positions: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]

_FORMAT: Final = 1
_CHECKSUM_BYTES: Final = 8

_POSITION: Final = "<u4"
_CODEC: Final = "zstd"


@dataclass(frozen=True, slots=True)
class Removed:
    """A file with the positions of those rows of a row set that are no longer part of the table.

    A row counts as removed if a newer row set has the row, or if the row was deleted. The positions are
    ascending numbers of 32 bits, compressed.
    """

    file: str
    rows: int
    checksum: int

    @classmethod
    def write(cls, location: Location, folder: str, positions: Sequence[int]) -> Removed:
        """Write positions, which ascend strictly. Raises StoreUnavailable as `Location.create`."""
        import numpy as np

        content = pyarrow().compress(np.array(positions, _POSITION).tobytes(), codec=_CODEC, asbytes=True)
        name = f"{folder}/removed-{uuid.uuid4().hex}"
        with location.create(name) as file:
            file.write(content)
        return cls(name, len(positions), crc32(content))

    def load(self, location: Location) -> Positions:
        """Return the positions. Raises as `Location.read_verified`."""
        import numpy as np

        content = location.read_verified(self.file, lambda found: crc32(found) == self.checksum)
        size = self.rows * np.dtype(_POSITION).itemsize
        return np.frombuffer(pyarrow().decompress(content, size, codec=_CODEC, asbytes=True), _POSITION)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row set in a manifest, and its removed rows."""

    row_set: RowSet
    removed: Removed | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The base of one tablet.

    ``number`` grows with each manifest of the tablet. Everything in the row sets was committed at or before
    ``timestamp`` (microseconds). A row is in at most one row set, apart from row sets in which it is removed.
    """

    number: int
    timestamp: int
    entries: tuple[Entry, ...] = ()

    @property
    def files(self) -> frozenset[str]:
        """The names of the files of all row sets and removed rows."""
        row_sets = [one.row_set.file for one in self.entries]
        return frozenset([*row_sets, *(one.removed.file for one in self.entries if one.removed)])

    @property
    def rows(self) -> int:
        """The number of rows that are not removed; for a raw table, the number of cells."""
        return sum(one.row_set.rows - (one.removed.rows if one.removed else 0) for one in self.entries)

    @property
    def size(self) -> int:
        """The bytes of the row sets."""
        return sum(entry.row_set.size for entry in self.entries)

    @property
    def height(self) -> int:
        """The largest number of row sets whose key ranges contain the same key."""
        # Both bounds are inclusive. So if one range begins at the key at which another ends, the beginning is
        # sorted before the end.
        edges = sorted(
            edge for entry in self.entries for edge in ((entry.row_set.low, 0), (entry.row_set.high, 1))
        )
        height = most = 0
        for _, ends in edges:
            height += -1 if ends else 1
            most = max(most, height)
        return most


class TabletFolder(NamedTuple):
    """The folder ``name`` with the files of one tablet's base; ``version`` is the version of the table."""

    tag: bytes
    version: bytes
    location: Location
    name: str


def publish(store: Store, folder: TabletFolder, expected: bytes, manifest: Manifest) -> bytes | None:
    """Write a manifest, and make it valid if ``expected`` is the reference of the manifest that is valid now.

    Return the new reference, or None if the store has refused it. The row sets of the manifest must be
    complete and on disk. The files are kept after a refusal, because the refused call may be a second copy:
    then the first copy has published the manifest, and a later manifest may name the same row sets.

    Raises:
        StoreUnavailable: the store or the location does not answer.
    """
    new = reference(folder.location, write(folder.location, folder.name, manifest))
    call = calls.publish_base(folder.tag, expected, new, manifest.timestamp, folder.version)
    # Durable, because a failover must not bring back the previous manifest: rows that are evicted from the
    # store after this call would be lost.
    [published] = store.run_all([call], durably=True)
    return new if published == "published" else None


def reference(location: Location, name: str) -> bytes:
    """Return the reference of a manifest."""
    return f"{location.url}\n{name}".encode()


def split_reference(packed: bytes) -> tuple[str, str]:
    """Return the URL of the location, and the name of the manifest."""
    url, _, name = packed.decode().rpartition("\n")
    return url, name


def write(location: Location, folder: str, manifest: Manifest) -> str:
    """Write a manifest into a folder, and return its name. Raises StoreUnavailable as `Location.create`."""
    fields = {"format": _FORMAT, **asdict(manifest)}
    content = json.dumps(fields, default=bytes.hex, sort_keys=True).encode()
    # The name has a random part: another maintainer that writes an equal manifest, and later removes its
    # file, must not remove this file.
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
    removed = found["removed"]
    return Entry(row_set_of(found["row_set"]), Removed(**removed) if removed else None)


def row_set_of(found: dict[str, Any]) -> RowSet:
    """Return the row set of a manifest's JSON, in which bytes are hexadecimal."""
    return RowSet(**found | {name: bytes.fromhex(found[name]) for name in ("low", "high", "checksums")})


def _checksum(content: bytes) -> str:
    return blake2b(content, digest_size=_CHECKSUM_BYTES).hexdigest()
