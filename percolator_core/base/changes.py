"""Changes of a table's base: its rows move back into the store, or its files move to another location.

Every step may be repeated, also by several clients at the same time. Each step checks the tablet's manifest
and the table's version, so that a client with an old definition changes nothing.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

import percolator_core.base.manifest as manifests
from percolator_core.base.bases import Bases
from percolator_core.base.left_behind import acknowledgements
from percolator_core.base.location import Location
from percolator_core.base.manifest import Entry as ManifestEntry
from percolator_core.base.manifest import Manifest, TabletFolder, publish
from percolator_core.base.row_set import BaseRow, RowSet
from percolator_core.catalog import schema_change_steps
from percolator_core.catalog.catalog import Entry
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import StoreUnavailable
from percolator_core.layout.keys import BASE, MARKER, meta_key
from percolator_core.schema.definitions import BaseRule, TableDefinition
from percolator_core.schema.partitions import Partition
from percolator_core.scripts import calls
from percolator_core.store import Store

GRACE: Final = 3600.0
"""Files that no manifest names any more stay for this many seconds: a reader may use an earlier manifest."""

_STEP_CELLS: Final = 1000
_STEP_BYTES: Final = 1 << 20
"""Limits of one step that puts rows back into the store: its script blocks all other clients."""


class Client(schema_change_steps.Client, Protocol):
    """The part of `percolator_core.transaction.client.Client` that a change of a base uses."""

    @property
    def bases(self) -> Bases:
        """The bases of tablets."""


class BaseChanges:
    """Changes the bases of the tables of one namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store = client.store

    def settle(self, entry: Entry) -> bool:
        """Move the bases of all tablets to the definition's location, or without one back into the store.

        Return False if another client has changed the table.

        Raises:
            BaseDamaged: a file is missing or damaged.
            StoreUnavailable: the store or a location does not answer.
        """
        handle = TableHandle(entry.definition, self._store, entry.writers_version)
        return all(self.settle_tablet(handle, number) for number in range(handle.tablets))

    def settle_tablet(self, handle: TableHandle, number: int) -> bool:
        """Do for one tablet what `settle` does for all."""
        tag, rule = handle.tags[number], handle.definition.base
        reference = reference_of(self._store, tag)
        if not reference or is_in(reference, rule):
            return True
        if rule is None:
            return self._restore(handle, tag, reference)
        return self._move(handle, tag, reference, rule, number)

    def _restore(self, handle: TableHandle, tag: bytes, reference: bytes) -> bool:
        """Put the rows of a tablet back into the store, then remove its base."""
        base = self._client.bases.tablet(handle, tag, reference)
        for rows in _steps(handle, base.rows(b"", None), self._client.observed_columns()):
            if self._store.run(calls.restore(tag, reference, handle.version, rows)) == "changed":
                return False
        # Refuse snapshots below this timestamp. A scan of such a snapshot may have passed a row's position in
        # the store before the row was restored. It would find the row neither in the store nor in the base.
        safe = self._client.oracle.timestamp()
        call = calls.leave_base(tag, reference, handle.version, safe)
        [left] = self._store.run_all([call], durably=True)
        return left == "left"

    def _move(self, handle: TableHandle, tag: bytes, reference: bytes, rule: BaseRule, number: int) -> bool:
        """Copy the files of a tablet to the rule's location, and publish the copy of its manifest."""
        url, name = manifests.split_reference(reference)
        old, new = self._client.bases.location(url), self._client.bases.location(rule.location)
        manifest = manifests.load(old, name)
        folder = folder_of(rule, number)
        entries = tuple(_copied(old, new, folder, entry) for entry in manifest.entries)
        copied = Manifest(manifest.number + 1, manifest.timestamp, entries)
        publish(self._store, TabletFolder(tag, handle.version, new, folder), reference, copied)
        # True also if another client has moved the tablet. If False, the tablet's old files must stay.
        return is_in(reference_of(self._store, tag), rule)

    def rows_on_each_side(
        self, definition: TableDefinition, tag: bytes, value: bytes
    ) -> tuple[bytes | None, bytes | None]:
        """Return the keys of two rows of the base: one below a value of the range column, one at or above it.

        None means that there is no such row. Raises as `settle`.
        """
        reference = reference_of(self._store, tag)
        if not reference:
            return None, None
        base = self._client.bases.tablet(TableHandle(definition, self._store), tag, reference)

        def rows(low: bytes, high: bytes | None) -> Iterator[bytes]:
            return (row.key for row in base.rows(low, high, ()))

        return Partition(definition).row_on_each_side(value, rows)

    def abandon(self, places: Sequence[tuple[str, str]], *, at_once: bool = False) -> None:
        """Record folders that no table has any more, so that their files are removed after `GRACE`.

        Each place is a location and a folder. Set ``at_once`` only if no reader can still use the files: the
        next `remove_abandoned` then removes them. Files stay while the catalog names their folder.
        """
        due = b"%d" % (0 if at_once else int((time.time() + GRACE) * 1e6))
        for location, folder in places:
            field = f"{location}\n{folder}"
            self._store.call_durably((b"HSET", self._store.keyspace.folders, field, due))

    def remove_abandoned(self, oldest_pin: float = math.inf) -> int:
        """Remove the files of recorded folders that are due; return how many folders had files.

        ``oldest_pin`` is the timestamp of the oldest pinned snapshot, whose readers may still need files. If
        a location does not answer, a later call removes its files.
        """
        key, removed = self._store.keyspace.folders, 0
        now = min(time.time() * 1e6, oldest_pin)
        flat = self._store.one((b"HGETALL", key))
        due = [field for field, when in zip(flat[::2], flat[1::2], strict=True) if int(when) <= now]
        named = {place for entry in self._client.catalog.entries() for place in _places(entry)} if due else ()
        for field in due:
            location, _, folder = field.decode().rpartition("\n")
            if (location, folder) in named:
                continue
            with suppress(StoreUnavailable):
                files = self._client.bases.location(location)
                if files.files(folder):
                    files.remove_folder(folder)
                    # A slow maintainer may write more files there, so a later call looks again.
                    self.abandon([(location, folder)])
                    removed += 1
                else:
                    self._store.one((b"HDEL", key, field))
        return removed


def reference_of(store: Store, tag: bytes) -> bytes:
    """Return the reference of a tablet's manifest, b"" without one."""
    return store.one((b"HGET", meta_key(tag), BASE)) or b""


def folder_of(rule: BaseRule, number: int) -> str:
    """Return the folder of a tablet in the location of the rule."""
    return f"{rule.folder}/{number}"


def is_in(reference: bytes, rule: BaseRule | None) -> bool:
    """Return True if the manifest is in the location and folder of the rule."""
    if rule is None:
        return False
    location, name = manifests.split_reference(reference)
    return location == rule.location and name.startswith(f"{rule.folder}/")


def _places(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the location and folder of each base that the table has, had, or is about to get."""
    yield from entry.left
    pending = (entry.pending or {}).get("definition", {}).get("base")
    if pending:
        yield pending["location"], pending["folder"]
    if entry.definition.base is not None:
        yield entry.definition.base.place


def _copied(old: Location, new: Location, folder: str, entry: ManifestEntry) -> ManifestEntry:
    """Copy the files of an entry into a folder of another location; return the entry of the copies."""

    def is_right(content: bytes) -> bool:
        row_set = entry.row_set
        return len(content) == row_set.size and crc32(content[row_set.tail :]) == row_set.checksum

    row_set: RowSet = replace(entry.row_set, file=_copy(old, new, folder, entry.row_set.file, is_right))
    removed = entry.removed
    if removed is not None:
        checksum = removed.checksum
        name = _copy(old, new, folder, removed.file, lambda content: crc32(content) == checksum)
        removed = replace(removed, file=name)
    return ManifestEntry(row_set, removed)


def _copy(old: Location, new: Location, folder: str, name: str, is_right: Callable[[bytes], bool]) -> str:
    content = old.read_verified(name, is_right)
    # Another client may copy the same file: each copy has a name of its own, and is written once.
    kind, suffix = name.rpartition("/")[2].partition("-")[0], Path(name).suffix
    copy = f"{folder}/{kind}-{uuid.uuid4().hex}{suffix}"
    with new.create(copy) as file:
        file.write(content)
    return copy


def _steps(
    handle: TableHandle, rows: Iterator[BaseRow], observed: Mapping[str, Mapping[str, Sequence[str]]]
) -> Iterator[list[bytes | int]]:
    """Yield the rows of a base as arguments of `calls.restore`, in bounded steps.

    ``observed`` has the active observers by table and column.
    """
    step: list[bytes | int] = []
    size = 0
    for row in rows:
        cells = [(column, row.times.get(column, row.time), value) for column, value in row.cells.items()]
        if handle.is_typed:
            cells.append((MARKER, row.time, b""))
        acks = acknowledgements(handle, observed, row)
        cells += [(column, row.time, value) for column, value in acks.items()]
        step += [row.key, len(cells)]
        size += len(row.key)
        for cell in cells:
            step += cell
            size += len(cell[0]) + len(cell[2])
        if size >= _STEP_BYTES or len(step) >= _STEP_CELLS * 3:
            yield step
            step, size = [], 0
    if step:
        yield step
