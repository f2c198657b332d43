"""The bases that a client reads: one cache for all tablets, and a view of each tablet's newest manifest."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import percolator_core.base.manifest as manifests
from percolator_core.base.cache import ByteCache, NotHeld
from percolator_core.base.location import Location
from percolator_core.base.manifest import Manifest
from percolator_core.base.reader import RowSetReader
from percolator_core.base.row_set import BaseRow
from percolator_core.base.tablet import TabletBase
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import Version
from percolator_core.notation.amounts import parse_size
from percolator_core.notation.error import NotationError
from percolator_core.store.file_threads import file_threads

T = TypeVar("T")

CACHE_VARIABLE: Final = "PERCOLATOR_BASE_CACHE"
_CACHE_SIZE: Final = "256MiB"

_ENTRY_BYTES: Final = 1000
"""Estimated memory of an entry of a manifest, without its checksums."""

_ROWS_AT_ONCE: Final = 500


class Wanted(NamedTuple):
    """Cells of one row to read from a base: the row key, and the stored names of the columns.

    ``where`` has the table, the tag of the tablet, and the reference of its manifest.
    """

    where: tuple[TableHandle, bytes, bytes]
    row: bytes
    columns: Sequence[bytes]


class Bases:
    """Opens the bases of tablets. Threads may share it.

    Raises:
        ConfigurationError: the environment variable ``PERCOLATOR_BASE_CACHE`` is not a size.
    """

    def __init__(self) -> None:
        try:
            size = parse_size(os.environ.get(CACHE_VARIABLE) or _CACHE_SIZE)
        except NotationError as error:
            raise ConfigurationError(f"{CACHE_VARIABLE}: {error}") from None
        self.cache: ByteCache[Any] = ByteCache(size)
        self._locations: dict[str, Location] = {}
        self._open: dict[bytes, tuple[bytes, TabletBase]] = {}

    def location(self, url: str) -> Location:
        """Return the location of a URL. Raises ConfigurationError as `Location`."""
        if url not in self._locations:
            self._locations[url] = Location(url)
        return self._locations[url]

    def values(self, wanted: Sequence[Wanted]) -> list[list[bytes | None]]:
        """Return the values of the wanted cells, row by row. Raises as `tablet`."""
        return self._read(TabletBase.values, wanted)

    def versions(self, wanted: Sequence[Wanted]) -> list[list[Version | None]]:
        """Return the wanted cells, row by row. Raises as `tablet`."""
        return self._read(TabletBase.versions, wanted)

    def row(self, handle: TableHandle, tag: bytes, reference: bytes, key: bytes) -> BaseRow | None:
        """Return a row of a tablet's base. Raises as `tablet`."""
        wanted = Wanted((handle, tag, reference), key, [])
        return self._read(lambda tablet, row, _: tablet.row(row), [wanted])[0]

    def _read(
        self, read: Callable[[TabletBase, bytes, Sequence[bytes]], T], wanted: Sequence[Wanted]
    ) -> list[T]:
        """Read rows of bases. If a task calls this, files are read in another thread."""
        try:
            return [read(self._held(*where), row, columns) for where, row, columns in wanted]
        except NotHeld:
            return file_threads.run(
                lambda: [read(self.tablet(*where), row, columns) for where, row, columns in wanted]
            )

    def _held(self, handle: TableHandle, tag: bytes, reference: bytes) -> TabletBase:
        known = self._known(handle, tag, reference)
        if known is None:
            raise NotHeld
        return known.held_only

    def rows(  # noqa: PLR0917
        self,
        handle: TableHandle,
        tag: bytes,
        reference: bytes,
        low: bytes,
        high: bytes | None,
        columns: Sequence[bytes] | None,
        *,
        reverse: bool,
    ) -> Iterator[BaseRow]:
        """The rows of a tablet's base in a range, as `TabletBase.rows`. Raises as `tablet`."""
        rows = file_threads.run(lambda: self.tablet(handle, tag, reference)).rows(
            low, high, columns, reverse=reverse
        )
        # A step of the iterator may read and decode a row group, so a thread for files does it.
        while some := file_threads.run(lambda: list(islice(rows, _ROWS_AT_ONCE))):
            yield from some

    def about(self, reference: bytes, low: bytes, high: bytes | None) -> int:
        """Return the approximate number of rows from key ``low`` to below ``high``. Raises as `tablet`."""

        def count() -> int:
            location, manifest = self._manifest(reference)
            return sum(RowSetReader(location, one, self.cache).about(low, high) for one in manifest.entries)

        return file_threads.run(count)

    def tablet(self, handle: TableHandle, tag: bytes, reference: bytes) -> TabletBase:
        """Return the base of the tablet ``tag`` of a table.

        ``reference`` is the text in the tablet's meta hash that names its manifest; b"" is an empty base.

        Raises:
            BaseDamaged: the manifest is missing or damaged.
            StoreUnavailable: the manifest cannot be read now.
            ConfigurationError: pyarrow is not installed.
        """
        known = self._known(handle, tag, reference)
        if known is not None:
            return known
        location, manifest = self._manifest(reference)
        found = TabletBase(handle.definition, location, manifest, self.cache)
        self._open[tag] = reference, found
        return found

    def _known(self, handle: TableHandle, tag: bytes, reference: bytes) -> TabletBase | None:
        found = self._open.get(tag)
        if found is None or found[0] != reference or found[1].definition is not handle.definition:
            return None
        return found[1]

    def _manifest(self, reference: bytes) -> tuple[Location, Manifest]:
        if not reference:
            return self.location("."), Manifest(0, 0)  # no file is opened there
        url, name = manifests.split_reference(reference)
        location = self.location(url)
        return location, self.cache.get((name,), lambda: manifests.load(location, name), _size)


def above_base(
    stored: Iterable[tuple[bytes, T]], base: Iterable[BaseRow], *, reverse: bool = False
) -> Iterator[tuple[bytes, T | None, BaseRow | None]]:
    """Merge the store's parts of rows with the rows of a base.

    Both are in ascending order of key, or in descending order with ``reverse``. Yield each key once, with the
    store's part or None, and the base's row or None.
    """
    cold = ((row.key, row) for row in base)
    lines: Iterable[tuple[bytes, Any]] = heapq.merge(stored, cold, key=itemgetter(0), reverse=reverse)
    for key, parts in groupby(lines, itemgetter(0)):
        above, below = None, None
        for _, part in parts:
            if type(part) is BaseRow:
                below = part
            else:
                above = part
        yield key, above, below


def _size(manifest: Manifest) -> int:
    return sum(_ENTRY_BYTES + len(entry.row_set.checksums) for entry in manifest.entries)
