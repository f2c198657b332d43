"""The dirty index and the acknowledgements (paper, section 2.4).

A write to an observed column leaves a *dirty mark* for each observer of that column, in an index apart from
the data. A worker *leases* marks in batches, runs the observers, and clears each mark afterwards, on the
condition that nothing has happened to the cell that the run did not see. That at most one run for a change
commits is the acknowledgement's affair (`percolator_core.notifications.ack`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from percolator_core.catalog.catalog import LOOKED_AT_EVERY
from percolator_core.errors import UnknownTable
from percolator_core.layout.keys import (
    decode_mark,
    dirty_key,
    encode_mark,
    failed_key,
    tablet_number,
)
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Mode
from percolator_core.scripts.replies import Claimed, Requeued
from percolator_core.store.packing import Command
from percolator_core.transaction.client import Client

if TYPE_CHECKING:
    from percolator_core.catalog.catalog import Catalog
    from percolator_core.catalog.table_handle import TableHandle

LEASE: Final = 5.0
"""Seconds of a lease; a worker renews those of observers that run longer."""


_LOOKED_AT: Final = 1024
"""Pairs of a tablet and an observer that one call looks at, about: it holds up the server meanwhile."""

_REQUEUED_AT_ONCE: Final = 500

LeasedCell: TypeAlias = tuple[str, bytes, bytes, bytes]
"""Observer, tablet, row and column."""


@dataclass(slots=True)
class Lease:
    """A dirty cell that this worker may work on until ``deadline`` (µs, the server's time).

    ``before`` is the deadline before the last renewal, which still holds when that renewal got lost. ``due``
    is when the mark was set, or was to be tried again. ``renewed`` is in monotonic seconds. ``version`` is
    the table's at the time of the lease: a table that is made again has another one.
    """

    observer: str
    table: str
    tag: bytes
    row: bytes
    column: bytes
    due: int
    tries: int
    deadline: int
    before: int
    renewed: float
    version: bytes = b""

    @property
    def cell(self) -> LeasedCell:
        """What is leased: observer, tablet, row and column."""
        return self.observer, self.tag, self.row, self.column

    def prolong(self) -> tuple[int, int]:
        """Move the deadline on by the time since it was set; returns the old one and the new one.

        Reckoned here, not by the server, so that a run that ends while the renewal is under way knows both.
        """
        now = time.monotonic()
        self.before = self.deadline
        # Even, so that the deadline stays odd: see _dirty.lua.
        self.deadline += 2 * int((now - self.renewed) * 500_000)
        self.renewed = now
        return self.before, self.deadline


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell in quarantine: its observer failed ``attempts`` times, last at ``time`` (µs)."""

    observer: str
    table: str
    row: bytes
    column: str
    error: str
    traceback: str
    attempts: int
    time: int


def horizon(longest_delay: float) -> int:
    """For how many milliseconds a mark may be put off at most, if a retry is for so many seconds.

    One further ahead is from before the server's clock was set back, and due.
    """
    # A lease is renewed from when it was asked for, which may be long before the server gave it.
    return int((2 * longest_delay + 2 * LEASE) * 1000)


Place: TypeAlias = tuple[str, bytes, tuple[str, ...]]
"""A tablet where observers watch: table, tag, observers."""


_Marked: TypeAlias = list[tuple[bytes, FailedCell]]
"""Cells in quarantine, and in front of each the mark by which it stands there."""


def known_table(catalog: Catalog, table: str) -> TableHandle | None:
    """The table of that name, None if there is none."""
    try:
        return catalog.table(table)
    except UnknownTable:
        return None


def _number(place: Place) -> int:
    return tablet_number(place[1])


class DirtyIndex:
    """Leases, clears and puts aside the dirty cells of some observers."""

    def __init__(
        self,
        client: Client,
        observed: Mapping[tuple[str, str], Sequence[str]],
        longest_delay: float = 60.0,
    ) -> None:
        """``longest_delay`` is for how many seconds a retry may be put off: see `horizon`."""
        self._client = client
        self._horizon = horizon(longest_delay)
        by_table: dict[str, set[str]] = {}
        for (table, _), observers in observed.items():
            by_table.setdefault(table, set()).update(observers)
        self._watched = {table: tuple(sorted(names)) for table, names in sorted(by_table.items())}
        self._observers = {name for names in by_table.values() for name in names}
        self._handles: dict[str, TableHandle | None] = {}
        self._places: list[Place] = []
        self._missing_until = 0.0
        self._find_places()

    def _find_places(self) -> None:
        catalog = self._client.catalog
        self._handles = {table: known_table(catalog, table) for table in self._watched}
        self._missing_until = time.monotonic() + LOOKED_AT_EVERY
        self._places = [
            (handle.name, tag, self._watched[handle.name])
            for handle in self._handles.values()
            if handle is not None
            for tag in handle.tags
        ]

    def places(self) -> list[Place]:
        """Where marks may be, also after a table was given tablets, or was dropped and made again.

        A table that is missing has no marks. It is looked for once a second.
        """
        catalog = self._client.catalog
        catalog.keep_fresh()
        known = self._handles
        is_missing = None in known.values() and time.monotonic() >= self._missing_until
        if is_missing or any(catalog.handles.get(name) is not handle for name, handle in known.items()):
            self._find_places()
        return self._places

    @property
    def tablets(self) -> int:
        """The tablets that its tables have at most: their numbers are below that."""
        return max((_number(place) + 1 for place in self.places()), default=0)

    def claim(
        self,
        room: int,
        lease: float = LEASE,
        *,
        limits: Mapping[str, int] | None = None,
        own: Collection[int] = (),
    ) -> tuple[list[Lease], float | None]:
        """Lease up to ``room`` cells, and say in how many seconds the next one is due, None if none is.

        Each observer with due cells gets an equal share of the room, and each tablet an equal share of that;
        what one does not need goes to the others, the oldest marks first. ``limits`` says how many cells of
        an observer at most, by name; an observer that is not named gets none. Tablets whose numbers are in
        ``own`` come first; the others are looked at only when those have nothing that is due.
        """
        leases: list[Lease] = []
        next_due: float | None = None
        now = time.monotonic()
        most = defaultdict(int, dict.fromkeys(self._observers, room) if limits is None else limits)
        for places, are_own in self._rounds(own):
            if leases and own and not are_own:
                break
            claimed = self._client.store.run(self._claim_call(places, room - len(leases), most, lease))
            deadline, wait = claimed.deadline, claimed.next_due
            for place, observer, mark, due, tries, version in claimed.cells:
                column, row = decode_mark(mark)
                table, tag, observers = places[place]
                name = observers[observer]
                most[name] -= 1
                held = (deadline, deadline, now, version)
                leases.append(Lease(name, table, tag, row, column, due, tries, *held))
            if wait >= 0:
                next_due = wait / 1e6 if next_due is None else min(next_due, wait / 1e6)
            if len(leases) >= room:
                break
        return leases, next_due

    def _claim_call(
        self, places: Sequence[Place], room: int, most: Mapping[str, int], lease: float
    ) -> Call[Claimed]:
        groups: list[str | int] = []
        for names, group in itertools.groupby(places, key=itemgetter(2)):
            limits = itertools.chain.from_iterable((name, max(0, most[name])) for name in names)
            groups += (sum(1 for _ in group), len(names), *limits)
        tags = [tag for _, tag, _ in places]
        return calls.claim(tags, room, int(lease * 1000), self._horizon, groups)

    def _rounds(self, own: Collection[int]) -> Iterator[tuple[list[Place], bool]]:
        """The places, own ones first, in parts, each from a random one on (paper, section 2.4).

        So of many workers no two look at the same places at the same time.
        """
        every = self.places()
        mine = [place for place in every if _number(place) in own] if own else []
        others = [place for place in every if _number(place) not in own] if own else every
        many = max(1, _LOOKED_AT // max(1, len(self._observers)))
        at_once = 1 if self._client.one_call_a_tablet else many
        for places, are_own in ((mine, True), (others, False)):
            start = random.randrange(len(places)) if places else 0
            rotated = places[start:] + places[:start]
            for first in range(0, len(rotated), at_once):
                yield rotated[first : first + at_once], are_own

    def renew(self, leases: Sequence[Lease]) -> None:
        """Prolong leases; one that was lost meanwhile stays lost, and the acknowledgement sorts it out."""
        by_tag: dict[bytes, list[bytes | str | int]] = {}
        for held in leases:
            so_far, new = held.prolong()
            by_tag.setdefault(held.tag, []).extend((held.observer, held.row, held.column, so_far, new))
        if by_tag:
            self._client.store.run_all([calls.renew(tag, some) for tag, some in by_tag.items()])

    def clear(self, lease: Lease, mode: Mode, start_ts: int) -> Command:
        """The command that removes the mark after a run that began at ``start_ts``, if it saw everything."""
        return self._client.store.command(calls.clear(lease.tag, *_settling(lease, mode, start_ts)))

    def postpone(self, lease: Lease, seconds: float, *, failed: bool) -> Command:
        """The command that gives the cell back for later; ``failed`` counts an attempt.

        The mark goes if no active chain has the observer watch that column any more.
        """
        cell = (lease.tag, lease.observer, lease.row, lease.column)
        attempt: Literal["failed", "unharmed"] = "failed" if failed else "unharmed"
        return self._client.store.command(
            calls.postpone(*cell, int(seconds * 1000), attempt, lease.deadline, lease.before)
        )

    def quarantine(self, lease: Lease, mode: Mode, start_ts: int, record: Mapping[str, Any]) -> Command:
        """The command that puts the cell aside, unless it changed since ``start_ts``."""
        settling = _settling(lease, mode, start_ts)
        return self._client.store.command(calls.quarantine(lease.tag, *settling, json.dumps(record)))

    def backlog(self) -> dict[str, int]:
        """Dirty cells by observer, those that wait for a retry and those being worked on included."""
        return self._sums(b"ZCARD", dirty_key)

    def failed(self) -> Iterator[FailedCell]:
        """The cells in quarantine."""
        for table, tag, names in self.places():
            for name in names:
                yield from self._failed_of(table, tag, name)

    def count_failed(self) -> dict[str, int]:
        """Cells in quarantine by observer."""
        return self._sums(b"HLEN", failed_key)

    def _sums(self, command: bytes, key: Callable[[bytes, str], bytes]) -> dict[str, int]:
        """What the command says of a key of each tablet and observer, added up by observer."""
        asked = [(name, tag) for _, tag, names in self.places() for name in names]
        counts = dict.fromkeys((name for name, _ in asked), 0)
        replies = self._client.store.call(*[(command, key(tag, name)) for name, tag in asked])
        for (name, _), count in zip(asked, replies, strict=True):
            counts[name] += count
        return counts

    def retry(self, cells: Sequence[FailedCell] | None = None) -> int:
        """Make quarantined cells dirty again: those given, or all. Returns how many."""
        if cells is None:
            return sum(self._requeue_all(tag, name) for _, tag, names in self.places() for name in names)
        count = 0
        for tag, name, those in self._batches(cells):
            count += self._requeue(tag, name, b"0", *[mark for mark, _ in those])[1]
        return count

    def discard(self, cells: Sequence[FailedCell]) -> int:
        """Forget quarantined cells: they are observed when they change again. Returns how many it forgot.

        One that was tried again since it was looked at, and failed anew, stays; so does the dirty mark of one
        that has changed since it failed.
        """
        store, count = self._client.store, 0
        for tag, name, those in self._batches(cells):
            records = store.one((b"HMGET", failed_key(tag, name), *[mark for mark, _ in those]))
            pairs: list[bytes | str] = []
            for (mark, cell), record in zip(those, records, strict=True):
                # The timestamp of a run: no two records have the same.
                if record is not None and json.loads(record)["time"] == cell.time:
                    pairs += (mark, hashlib.sha1(record, usedforsecurity=False).hexdigest())
            if pairs:
                count += store.run(calls.discard(tag, name, pairs))
        return count

    def _batches(self, cells: Sequence[FailedCell]) -> Iterator[tuple[bytes, str, _Marked]]:
        """The cells with their marks by tablet and observer; not those that none of ours watches."""
        known = {(table, tag, name) for table, tag, names in self.places() for name in names}
        marked: dict[tuple[bytes, str], _Marked] = {}
        for cell in cells:
            handle = self._client.catalog.table(cell.table)
            tag = handle.tag(cell.row)
            if (cell.table, tag, cell.observer) in known:
                mark = encode_mark(handle.encode(cell.column), cell.row)
                marked.setdefault((tag, cell.observer), []).append((mark, cell))
        for (tag, name), those in marked.items():
            for start in range(0, len(those), _REQUEUED_AT_ONCE):
                yield tag, name, those[start : start + _REQUEUED_AT_ONCE]

    def _requeue_all(self, tag: bytes, observer: str) -> int:
        cursor, count = self._requeue(tag, observer, b"0")
        while cursor != b"0":
            cursor, put_back = self._requeue(tag, observer, cursor)
            count += put_back
        return count

    def _requeue(self, tag: bytes, observer: str, cursor: bytes, *marks: bytes) -> Requeued:
        return self._client.store.run(calls.requeue(tag, observer, cursor, _REQUEUED_AT_ONCE, marks))

    def _failed_of(self, table: str, tag: bytes, observer: str) -> Iterator[FailedCell]:
        cursor: Any = 0
        while True:
            cursor, flat = self._client.store.one(
                (b"HSCAN", failed_key(tag, observer), cursor, b"COUNT", 200)
            )
            for position in range(0, len(flat), 2):
                yield self.failed_cell(table, observer, flat[position], flat[position + 1])
            if cursor == b"0":
                return

    def failed_cell(self, table: str, observer: str, mark: bytes, record: bytes) -> FailedCell:
        """A cell in quarantine, from how it stands in the store."""
        column, row = decode_mark(mark)
        name = self._client.catalog.column_name(table, column)
        return FailedCell(observer, table, row, name, **json.loads(record))


def _settling(lease: Lease, mode: Mode, start_ts: int) -> tuple[str, Mode, bytes, bytes, int, int, int]:
    return lease.observer, mode, lease.row, lease.column, lease.deadline, lease.before, start_ts
