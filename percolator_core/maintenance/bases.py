"""The maintainer of columnar bases: it flushes cold rows, compacts row sets, and removes files.

A maintainer may stop at any point, and several may run at once. A lease keeps two of them from working on the
same tablet. If both do so nevertheless, the store accepts the manifest of one and refuses that of the other.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from percolator_core.base import compaction
from percolator_core.base.changes import GRACE, BaseChanges, folder_of, is_in, reference_of
from percolator_core.base.cleanup import remove_unneeded
from percolator_core.base.manifest import Manifest, TabletFolder
from percolator_core.base.pace import ALL, Pace
from percolator_core.base.tablet import TabletBase
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import BASE, meta_key, rows_key
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.maintenance.locks import Part
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.schema.definitions import BaseRule
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Weighed
from percolator_core.transaction.client import Client

if TYPE_CHECKING:
    from percolator_core.base.flush import TabletFlush

LEASE: Final = 30.0
"""The lease of a maintainer that has died ends after this many seconds."""

SHORTEST_KEEP: Final = 10.0
"""A flush because of `BaseRule.memory` moves no row that was changed within this many seconds.

So the flush does not make the store refuse transactions that began within that time.
"""

_AT_ONCE: Final = 100
"""Tablets in one request."""

_SAMPLE: Final = 32
"""Rows of a tablet that an estimate reads."""

_ENOUGH: Final = 0.9
"""If a table exceeds `BaseRule.memory`, a flush moves rows until the rest takes this share of the limit."""


@dataclass(frozen=True, slots=True)
class TableFlushed(ShownInNotebook):
    """The result of a flush: the ``rows`` that left the store, and the ``bytes`` of the row sets written."""

    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TableCompacted(ShownInNotebook):
    """The result of a compaction: the ``bytes`` of the row sets written, and the number of ``files`` removed.

    The files of the merged row sets remain for an hour, because a reader may still use them. After that, a
    `flush` or `compact` removes them.
    """

    bytes: int
    files: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TableBase(ShownInNotebook):
    """The base of a table.

    ``location`` is its URL. ``rows_in_store`` counts the rows of which the store has cells.
    ``rows_in_base`` counts the rows in the base, or the cells of a raw table. ``bytes`` is the size of the
    row sets. ``height`` is the largest number of row sets that a read of one key may look at. ``deltas``
    estimates the number of rows that are in the base and have newer cells in the store. Everything in the
    base was committed at or before ``base_timestamp`` (microseconds), which is 0 before the first flush.
    """

    location: str
    rows_in_store: int
    rows_in_base: int
    bytes: int
    height: int
    deltas: int
    base_timestamp: int


class _LeaseLost(Exception):
    """Another maintainer has the lease."""


class BaseMaintainer:
    """Maintains the bases of one namespace; ``rate`` and ``share`` are as for `Pace`.

    Replaced files stay for ``grace`` seconds, and longer while an older snapshot is pinned.
    """

    def __init__(
        self,
        client: Client,
        changes: SchemaChanges,
        rate: float | None = None,
        share: float = ALL,
        grace: float = GRACE,
    ) -> None:
        self._client = client
        self._store = client.store
        self._schema_changes = changes
        self._changes = BaseChanges(client)
        self._rate = rate
        self._share = share
        self._grace = grace

    def tables(self) -> list[str]:
        """Return the names of the tables that have a base, or whose base is being removed."""
        entries = self._client.catalog.entries()
        return [one.definition.name for one in entries if one.definition.base is not None or one.left]

    def flush(self, table: str, *, everything: bool = False, part: Part | None = None) -> TableFlushed:
        """Move cold rows of a table to its base, merge row sets, and remove unneeded files.

        ``everything`` moves all rows that may move. ``part`` names the tablets; None means all.

        Raises as `percolator_core.Database.flush`.
        """
        begun = time.monotonic()
        handle, rule, numbers = self._begin(table, part)
        if rule is None:
            return TableFlushed(0, 0, time.monotonic() - begun)
        weights = dict(zip(numbers, self._weigh([handle.tags[number] for number in numbers]), strict=True))
        now = self._client.oracle.timestamp()
        # `memory` is the limit for the whole table: give these tablets their share of it.
        memory = rule.memory and rule.memory * len(numbers) // handle.tablets
        before = now if everything else _cold_before(rule, memory, list(weights.values()), now)
        rows = size = 0
        if before:
            safe = GarbageCollector(self._client).settle((now - before) / 1e6).timestamp
            for number in sorted(numbers, key=lambda one: -_cold_bytes(weights[one], before)):
                with self._lease(handle.tags[number]) as pace:
                    if pace is None:
                        continue
                    observers = sorted(self._client.active_observers())
                    flush = self._flush(handle, rule, number, pace, observers)
                    if flush is not None:
                        flushed = flush.run(safe, before)
                        rows += flushed.rows
                        size += flushed.bytes
        size += self._compact(handle, rule, numbers, everything=False)
        self._remove_files(handle, rule, numbers)
        return TableFlushed(rows, size, time.monotonic() - begun)

    def compact(self, table: str, *, part: Part | None = None) -> TableCompacted:
        """Merge the row sets of a table as far as possible, and remove unneeded files.

        Raises as `percolator_core.Database.compact`.
        """
        begun = time.monotonic()
        handle, rule, numbers = self._begin(table, part)
        if rule is None:
            return TableCompacted(0, 0, time.monotonic() - begun)
        size = self._compact(handle, rule, numbers, everything=True)
        files = self._remove_files(handle, rule, numbers)
        return TableCompacted(size, files, time.monotonic() - begun)

    def figures(self, table: str, *, deltas: bool = True) -> TableBase | None:
        """Return the figures of a table's base, or None if it has none. Raises as `Database.base`.

        Without ``deltas`` no row is read, and `TableBase.deltas` is 0.
        """
        self._client.catalog.look()
        handle = self._client.catalog.table(table)
        rule = handle.definition.base
        if rule is None:
            return None
        valid, overlaid = [], 0.0
        rows = self._store.call_many([(b"ZCARD", rows_key(tag)) for tag in handle.tags], _AT_ONCE)
        for tag, count, reference in zip(handle.tags, rows, self._references(handle.tags), strict=True):
            base = self._client.bases.tablet(handle, tag, reference)
            valid.append(base.manifest)
            if deltas and count and base.manifest.entries:
                [weighed] = self._weigh([tag])
                sample = {one.row for one in weighed.sample}
                held = sum(base.find(row) is not None for row in sample)
                overlaid += count * held / max(1, len(sample))
        return TableBase(
            rule.location,
            sum(rows),
            sum(one.rows for one in valid),
            sum(one.size for one in valid),
            max(one.height for one in valid),
            round(overlaid),
            max(one.timestamp for one in valid),
        )

    def _begin(self, table: str, part: Part | None) -> tuple[TableHandle, BaseRule | None, list[int]]:
        """Finish earlier changes of the table's base; return the table, its base, and the part's tablets."""
        self._changes.remove_abandoned(self._oldest_pin())
        had_left = self._schema_changes.settle_bases(table)
        self._client.catalog.look()
        handle = self._client.catalog.table(table)
        if part is None:
            numbers = list(range(handle.tablets))
        else:
            wanted = {tag for _, tag in GarbageCollector(self._client).locks.tablets_of(part)}
            numbers = [number for number, tag in enumerate(handle.tags) if tag in wanted]
        rule = handle.definition.base
        if rule is None and not had_left:
            raise ConfigurationError(f"table {table!r} has no base: give it one with set_base")
        return handle, rule, numbers

    @contextmanager
    def _lease(self, tag: bytes) -> Iterator[Pace | None]:
        """Hold the lease of a tablet in the ``with`` statement; None if another maintainer has it.

        If the lease is lost, the statement ends early and without an exception.
        """
        owner, milliseconds = uuid.uuid4().hex, int(LEASE * 1000)
        if not self._store.run(calls.lease_base(tag, owner, milliseconds)):
            yield None
            return
        due = time.monotonic() + LEASE / 3

        def renew() -> None:
            nonlocal due
            if time.monotonic() < due:
                return
            due = time.monotonic() + LEASE / 3
            if not self._store.run(calls.lease_base(tag, owner, milliseconds)):
                raise _LeaseLost

        try:
            yield Pace(self._store, self._rate, self._share, renew)
        except _LeaseLost:
            pass  # the new owner continues
        finally:
            self._store.run(calls.lease_base(tag, owner, 0))

    def _oldest_pin(self) -> float:
        return min(GarbageCollector(self._client).pins(), default=math.inf)

    def _weigh(self, tags: Sequence[bytes]) -> list[Weighed]:
        places = sorted(random.sample(range(1_000_000), _SAMPLE))
        observers = sorted(self._client.active_observers())
        return self._store.run_all([calls.weigh(tag, observers, places) for tag in tags], together=_AT_ONCE)

    def _references(self, tags: Sequence[bytes]) -> list[bytes]:
        found = self._store.call_many([(b"HGET", meta_key(tag), BASE) for tag in tags], _AT_ONCE)
        return [one or b"" for one in found]

    def _folder(self, handle: TableHandle, rule: BaseRule, number: int) -> TabletFolder:
        location = self._client.bases.location(rule.location)
        return TabletFolder(handle.tags[number], handle.version, location, folder_of(rule, number))

    def _flush(
        self, handle: TableHandle, rule: BaseRule, number: int, pace: Pace, observers: Sequence[str]
    ) -> TabletFlush | None:
        """Return the flush of a tablet; None if the table has changed."""
        folder, bases = self._folder(handle, rule, number), self._client.bases
        from percolator_core.base.flush import TabletFlush  # it needs pyarrow

        if not self._changes.settle_tablet(handle, number):
            return None
        reference = reference_of(self._store, folder.tag)
        if reference:
            base = bases.tablet(handle, folder.tag, reference)
        else:
            base = TabletBase(handle.definition, folder.location, Manifest(0, 0), bases.cache)
        return TabletFlush(self._store, folder, base, reference, observers, pace)

    def _compact(
        self, handle: TableHandle, rule: BaseRule, numbers: Sequence[int], *, everything: bool
    ) -> int:
        """Compact tablets, those that gain most first; return the bytes written."""
        gains, written = {}, 0
        tags = [handle.tags[number] for number in numbers]
        for number, tag, reference in zip(numbers, tags, self._references(tags), strict=True):
            if is_in(reference, rule):
                manifest = self._client.bases.tablet(handle, tag, reference).manifest
                found = compaction.plan(manifest, everything=everything)
                if found:
                    gains[number] = found.gain
        for number in sorted(gains, key=lambda one: -gains[one]):
            folder = self._folder(handle, rule, number)
            with self._lease(folder.tag) as pace:
                reference = reference_of(self._store, folder.tag)
                if pace and is_in(reference, rule):
                    for size in compaction.compact(
                        self._store, handle.definition, folder, reference, pace, everything=everything
                    ):
                        written += size
        return written

    def _remove_files(self, handle: TableHandle, rule: BaseRule, numbers: Sequence[int]) -> int:
        removed = 0
        since = min(time.time(), self._oldest_pin() / 1e6) - self._grace
        for number in numbers:
            folder = self._folder(handle, rule, number)
            with self._lease(folder.tag) as pace:
                reference = reference_of(self._store, folder.tag)
                if pace and is_in(reference, rule):
                    removed += remove_unneeded(self._store, folder, reference, since)
        return removed


def _cold_before(rule: BaseRule, memory: int | None, weights: Sequence[Weighed], now: int) -> int:
    """Return a timestamp: rows that were not changed after it are cold. Return 0 if no row is cold."""
    cold = 0 if rule.cold_after is None else now - rule.cold_after
    if memory is None:
        return cold
    rows = sorted(
        (one.newest, one.size * weight.rows / len(weight.sample))
        for weight in weights
        for one in weight.sample
    )
    total = sum(size for _, size in rows)
    if total <= memory:
        return cold
    # The youngest rows that fit stay; the next older row is the youngest that moves.
    kept = accumulate(reversed([size for _, size in rows]))
    count = sum(size <= memory * _ENOUGH for size in kept)
    return max(cold, min(rows[len(rows) - count - 1][0], now - int(SHORTEST_KEEP * 1e6)))


def _cold_bytes(weight: Weighed, before: int) -> float:
    """Return an estimate of the bytes of a tablet's rows that were not changed after ``before``."""
    cold = sum(one.size for one in weight.sample if one.newest <= before)
    return weight.rows * cold / max(1, len(weight.sample))
