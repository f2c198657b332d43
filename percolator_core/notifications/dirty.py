"""The dirty index: the changed cells of each observer (paper, section 2.4).

A write to an observed column sets a *dirty mark* for each observer of that column, in an index apart from the
data. A worker *claims* marks in batches: each claimed cell has a *lease*. After the run the worker clears the
mark, unless the cell has a newer change. The acknowledgement lets at most one run commit for a change
(`percolator_core.notifications.ack`).
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from percolator_core.catalog.catalog import LOOKED_AT_EVERY
from percolator_core.errors import UnknownTable
from percolator_core.layout.keys import decode_mark, dirty_key, tablet_number
from percolator_core.runtime.batches import batched
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Mode
from percolator_core.scripts.replies import Claimed
from percolator_core.transaction.client import Client

if TYPE_CHECKING:
    from percolator_core.catalog.catalog import Catalog
    from percolator_core.catalog.table_handle import TableHandle

LEASE: Final = 5.0
"""Seconds of a lease; a worker renews the leases of runs that take longer."""

_LOOKED_AT: Final = 1024
"""One call of the claim script, which blocks all other clients, examines at most about this many pairs of
tablet and observer."""

LeasedCell: TypeAlias = tuple[str, bytes, bytes, bytes]
"""Observer, tablet, row and column."""


@dataclass(slots=True)
class Lease:
    """A dirty cell that this worker may run until ``deadline`` (µs, the server's time).

    ``before`` is the deadline before the newest renewal; it is valid if that renewal was lost. ``due`` is the
    time of the mark or, after a failure, of its retry. ``renewed`` is the time of the claim or of the newest
    renewal, in monotonic seconds. ``version`` is the version of the table at the time of the claim.
    ``begun`` is the time at which the run began, in monotonic seconds.
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
    begun: float = 0.0

    @property
    def cell(self) -> LeasedCell:
        """The leased cell: observer, tablet, row and column."""
        return self.observer, self.tag, self.row, self.column

    def prolong(self) -> tuple[int, int]:
        """Extend the deadline by the time since the last extension. Return the old and the new deadline.

        The client computes them, so that a run that ends during the renewal has both.
        """
        now = time.monotonic()
        self.before = self.deadline
        # The addition is even, so that the deadline stays odd (_dirty.lua).
        self.deadline += 2 * int((now - self.renewed) * 500_000)
        self.renewed = now
        return self.before, self.deadline


def horizon(longest_delay: float) -> int:
    """Return how many milliseconds a mark may be in the future, if a retry waits ``longest_delay`` s at most.

    A mark further in the future is due: the server's clock was set back after the mark was set.
    """
    # A renewal extends a lease by the time since the client requested the lease. If the server granted the
    # lease much later, the new deadline is more than `LEASE` in the future. So twice `LEASE` is allowed.
    return int((2 * longest_delay + 2 * LEASE) * 1000)


Place: TypeAlias = tuple[str, bytes, tuple[str, ...]]
"""A tablet with observed columns: table, tag, observers."""


def known_table(catalog: Catalog, table: str) -> TableHandle | None:
    """Return the table, or None if it does not exist."""
    # This repeats `Catalog.table` in line, because each run takes this path.
    if time.monotonic() >= catalog.due:
        catalog.keep_fresh()
    try:
        return catalog.handles[table]
    except UnknownTable:
        return None


def _number(place: Place) -> int:
    return tablet_number(place[1])


class DirtyIndex:
    """Claims, clears, postpones and quarantines the dirty cells of some observers."""

    def __init__(
        self,
        client: Client,
        observed: Mapping[tuple[str, str], Sequence[str]],
        longest_delay: float = 60.0,
    ) -> None:
        """``longest_delay`` is the longest delay of a retry, in seconds: see `horizon`."""
        self._client = client
        self._horizon = horizon(longest_delay)
        by_table: dict[str, set[str]] = {}
        for (table, _), observers in observed.items():
            by_table.setdefault(table, set()).update(observers)
        self._observers_of = {table: tuple(sorted(names)) for table, names in sorted(by_table.items())}
        self._observers = {name for names in by_table.values() for name in names}
        self._handles: dict[str, TableHandle | None] = {}
        self._places: list[Place] = []
        self._missing_until = 0.0
        self._find_places()

    def _find_places(self) -> None:
        catalog = self._client.catalog
        self._handles = {table: known_table(catalog, table) for table in self._observers_of}
        self._missing_until = time.monotonic() + LOOKED_AT_EVERY
        self._places = [
            (handle.name, tag, self._observers_of[handle.name])
            for handle in self._handles.values()
            if handle is not None
            for tag in handle.tags
        ]

    def places(self) -> list[Place]:
        """Return the tablets that may have marks. The catalog is asked for missing tables once a second."""
        catalog = self._client.catalog
        catalog.keep_fresh()
        known = self._handles
        is_missing = None in known.values() and time.monotonic() >= self._missing_until
        if is_missing or any(catalog.handles.get(name) is not handle for name, handle in known.items()):
            self._find_places()
        return self._places

    @property
    def tablets(self) -> int:
        """The greatest number of tablets that one of the observed tables has; 0 if there is no such table."""
        return max((_number(place) + 1 for place in self.places()), default=0)

    def claim(
        self,
        most: int,
        lease: float = LEASE,
        *,
        limits: Mapping[str, int] | None = None,
        waits: Mapping[str, float] = MappingProxyType({}),
        own: Collection[int] = (),
        only: Collection[bytes] | None = None,
    ) -> tuple[list[Lease], float | None]:
        """Lease up to ``most`` cells. Return the leases, and the seconds until the next cell is due, or None.

        Each observer with due cells gets an equal share, and each tablet an equal part of that share. Unused
        parts go to other tablets and observers, oldest marks first. ``limits`` has the maximum number of
        cells by observer, 0 without an entry. ``waits`` has, for some observers, the seconds by which their
        marks become due later. ``own`` has the numbers of the tablets to examine first; others are examined
        only if these have no due cell. ``only`` has the tags of the tablets to examine; None means all.
        """
        leases: list[Lease] = []
        next_due: float | None = None
        now = time.monotonic()
        left = defaultdict(int, dict.fromkeys(self._observers, most) if limits is None else limits)
        for places, are_own in self._rounds(own, only):
            if leases and own and not are_own:
                break
            claimed = self._client.store.run(self._claim_call(places, most - len(leases), left, waits, lease))
            deadline, wait = claimed.deadline, claimed.next_due
            for place, observer, mark, due, tries, version in claimed.cells:
                column, row = decode_mark(mark)
                table, tag, observers = places[place]
                name = observers[observer]
                left[name] -= 1
                held = (deadline, deadline, now, version)
                leases.append(Lease(name, table, tag, row, column, due, tries, *held))
            if wait >= 0:
                next_due = wait / 1e6 if next_due is None else min(next_due, wait / 1e6)
            if len(leases) >= most:
                break
        return leases, next_due

    def _claim_call(
        self,
        places: Sequence[Place],
        most: int,
        left: Mapping[str, int],
        waits: Mapping[str, float],
        lease: float,
    ) -> Call[Claimed]:
        groups: list[str | int] = []
        for names, group in itertools.groupby(places, key=itemgetter(2)):
            limits = itertools.chain.from_iterable(
                (name, max(0, left[name]), int(waits.get(name, 0) * 1000)) for name in names
            )
            groups += (sum(1 for _ in group), len(names), *limits)
        tags = [tag for _, tag, _ in places]
        return calls.claim(tags, most, int(lease * 1000), self._horizon, groups)

    def _rounds(
        self, own: Collection[int], only: Collection[bytes] | None
    ) -> Iterator[tuple[list[Place], bool]]:
        """Yield the places in parts, own tablets first. The second value is True if a part has own tablets.

        Both kinds begin at a random place, so that two workers rarely examine the same places (section 2.4).
        """
        every = self.places()
        if only is not None:
            every = [place for place in every if place[1] in only]
        mine = [place for place in every if _number(place) in own] if own else []
        others = [place for place in every if _number(place) not in own] if own else every
        many = max(1, _LOOKED_AT // max(1, len(self._observers)))
        at_once = 1 if self._client.one_call_a_tablet else many
        for places, are_own in ((mine, True), (others, False)):
            start = random.randrange(len(places)) if places else 0
            rotated = places[start:] + places[:start]
            for some in batched(rotated, at_once):
                yield some, are_own

    def renew(self, leases: Sequence[Lease]) -> None:
        """Extend the leases that have not expired. The cell of an expired one may also run elsewhere."""
        by_tag: dict[bytes, list[bytes | str | int]] = {}
        for held in leases:
            so_far, new = held.prolong()
            by_tag.setdefault(held.tag, []).extend((held.observer, held.row, held.column, so_far, new))
        if by_tag:
            self._client.store.run_all([calls.renew(tag, some) for tag, some in by_tag.items()])

    def clear(self, lease: Lease, mode: Mode, start_ts: int) -> Call[int]:
        """Return the call that removes the mark, unless a change after ``start_ts`` was missed by the run."""
        [call] = self.clear_all([lease], mode, start_ts)
        return call

    def clear_all(self, leases: Sequence[Lease], mode: Mode, start_ts: int) -> list[Call[int]]:
        """Return the calls that remove the marks of one observer's runs, as `clear`."""
        by_tag: dict[bytes, list[bytes | int]] = {}
        for one in leases:
            by_tag.setdefault(one.tag, []).extend((one.row, one.column, one.deadline, one.before))
        return [calls.clear(tag, leases[0].observer, mode, start_ts, some) for tag, some in by_tag.items()]

    def postpone(self, lease: Lease, seconds: float, *, failed: bool) -> Call[int]:
        """Return the call that ends the lease and makes the mark due in ``seconds``.

        With ``failed``, it counts a failed attempt. If no active chain has the observer on that column, it
        removes the mark.
        """
        cell = (lease.tag, lease.observer, lease.row, lease.column)
        attempt: Literal["failed", "unharmed"] = "failed" if failed else "unharmed"
        return calls.postpone(*cell, int(seconds * 1000), attempt, lease.deadline, lease.before)

    def quarantine(self, lease: Lease, mode: Mode, start_ts: int, record: Mapping[str, Any]) -> Call[bool]:
        """Return the call that puts the cell into quarantine, unless it has changed since ``start_ts``."""
        return calls.quarantine(lease.tag, *_settling(lease, mode, start_ts), json.dumps(record))

    def backlog(self) -> dict[str, int]:
        """Return the number of dirty cells by observer, including leased cells and cells to retry."""
        asked = [(name, tag) for _, tag, names in self.places() for name in names]
        sizes = self._client.store.call(*[(b"ZCARD", dirty_key(tag, name)) for name, tag in asked])
        counts = dict.fromkeys((name for name, _ in asked), 0)
        for (name, _), size in zip(asked, sizes, strict=True):
            counts[name] += size
        return counts


def _settling(lease: Lease, mode: Mode, start_ts: int) -> tuple[str, Mode, bytes, bytes, int, int, int]:
    return lease.observer, mode, lease.row, lease.column, lease.deadline, lease.before, start_ts
