"""The dirty index and the acknowledgements (paper, section 2.4).

A write to an observed column leaves a *dirty mark* for each observer of that column, in an index apart from
the data. A worker *leases* marks in batches, runs the observers, and clears each mark afterwards, on the
condition that nothing has happened to the cell that the run did not see. The *acknowledgement* is a cell
beside the observed one, written by the observer's own transaction: two runs for one change collide in it, and
at most one commits.
"""

from __future__ import annotations

import itertools
import json
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from percolator_core.client import Client
from percolator_core.errors import ConfigurationError, UnknownTable
from percolator_core.janitor import Janitor
from percolator_core.keys import acknowledgement, decode_column, decode_mark, encode_column, encode_mark
from percolator_core.model import PUT, Cell, Write
from percolator_core.store.packing import Command
from percolator_core.transaction import Transaction

if TYPE_CHECKING:
    from percolator_core.database import Database

Mode = Literal["strong", "weak"]

LEASE: Final = 5.0
"""Seconds of a lease; a worker renews those of observers that run longer."""


SHARES: Final = 8
"""Into how many parts the room of a claim is cut: a tablet and observer gets one at most."""

_REQUEUED_AT_ONCE: Final = 500

LeasedCell: TypeAlias = tuple[str, bytes, bytes, bytes]
"""Observer, tablet, row and column."""


@dataclass(slots=True)
class Lease:
    """A dirty cell that this worker may work on until ``deadline`` (µs, the server's time).

    ``before`` is the deadline before the last renewal, which still holds when that renewal got lost. ``due``
    is when the mark was set, or was to be tried again. ``renewed`` is in monotonic seconds.
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


_Place: TypeAlias = tuple[str, bytes, tuple[str, ...]]
"""A tablet where observers watch: table, tag, observers."""


class DirtyIndex:
    """Leases, clears and puts aside the dirty cells of some observers."""

    def __init__(
        self,
        client: Client,
        observed: Mapping[tuple[str, str], Sequence[str]],
        longest_delay: float = 60.0,
    ) -> None:
        """``longest_delay`` is for how many seconds a retry may be put off.

        A mark further ahead than that, and some, is from before the server's clock was set back.
        """
        self._client = client
        self._horizon = int((2 * longest_delay + LEASE) * 1000)
        self._places: list[_Place] = []
        by_table: dict[str, set[str]] = {}
        for (table, _), observers in observed.items():
            by_table.setdefault(table, set()).update(observers)
        for table, names in sorted(by_table.items()):
            handle = client.catalog.table(table)
            self._places.extend((table, tag, tuple(sorted(names))) for tag in handle.tags)

    def claim(self, room: int, lease: float = LEASE) -> tuple[list[Lease], float | None]:
        """Lease up to ``room`` cells, and say in how many seconds the next one is due, None if none is.

        The tablets and observers whose marks are oldest come first. An observer has no more than a share of
        the room from each tablet, so that a long backlog in one tablet does not starve the others; one that
        spreads over many tablets and is older than the rest goes first.
        """
        leases: list[Lease] = []
        next_due: float | None = None
        share = max(4, room // SHARES)
        now = time.monotonic()
        for places in self._rounds():
            reply = self._client.store.one(self._claim_call(places, room - len(leases), share, lease))
            deadline, wait = reply[0], reply[1]
            for position in range(2, len(reply), 5):
                place, observer, mark, due, tries = reply[position : position + 5]
                column, row = decode_mark(mark)
                table, tag, observers = places[place]
                leases.append(
                    Lease(observers[observer], table, tag, row, column, due, tries, deadline, deadline, now)
                )
            if wait >= 0:
                next_due = wait / 1e6 if next_due is None else min(next_due, wait / 1e6)
            if len(leases) >= room:
                break
        return leases, next_due

    def _claim_call(self, places: Sequence[_Place], room: int, share: int, lease: float) -> Command:
        groups: list[str | int] = []
        for names, group in itertools.groupby(places, key=itemgetter(2)):
            groups += (sum(1 for _ in group), len(names), *names)
        tags = [tag for _, tag, _ in places]
        return self._client.store.script(
            "claim", tags, room, share, int(lease * 1000), self._horizon, *groups
        )

    def _rounds(self) -> Iterator[list[_Place]]:
        if not self._places:
            return
        start = random.randrange(len(self._places))
        rotated = self._places[start:] + self._places[:start]
        if self._client.one_call_a_tablet:
            yield from ([place] for place in rotated)
        else:
            yield rotated

    def renew(self, leases: Sequence[Lease]) -> None:
        """Prolong leases; one that was lost meanwhile stays lost, and the acknowledgement sorts it out."""
        by_tag: dict[bytes, list[bytes | str | int]] = {}
        for held in leases:
            so_far, new = held.prolong()
            by_tag.setdefault(held.tag, []).extend((held.observer, held.row, held.column, so_far, new))
        if by_tag:
            self._client.store.call(
                *[self._client.store.script("renew", [tag], *args) for tag, args in by_tag.items()]
            )

    def clear(self, lease: Lease, mode: Mode, start_ts: int) -> Command:
        """The command that removes the mark after a run that began at ``start_ts``, if it saw everything."""
        return self._client.store.script("clear", [lease.tag], *_settling(lease, mode, start_ts))

    def drop(self, lease: Lease) -> Command:
        """The command that removes a mark nobody wants any more."""
        # As a weak mark: whatever the cell holds, unless the mark is leased to somebody else by now.
        return self.clear(lease, "weak", 0)

    def postpone(self, lease: Lease, seconds: float, *, failed: bool) -> Command:
        """The command that gives the cell back for later; ``failed`` counts an attempt."""
        word = "failed" if failed else "unharmed"
        return self._client.store.script(
            "postpone", [lease.tag], lease.observer, lease.row, lease.column, int(seconds * 1000), word
        )

    def quarantine(self, lease: Lease, mode: Mode, start_ts: int, record: Mapping[str, Any]) -> Command:
        """The command that puts the cell aside, unless it changed since ``start_ts``."""
        return self._client.store.script(
            "quarantine", [lease.tag], *_settling(lease, mode, start_ts), json.dumps(record)
        )

    def backlog(self) -> dict[str, int]:
        """Dirty cells by observer, those that wait for a retry and those being worked on included."""
        return self._sums(b"ZCARD", b"dirty:")

    def failed(self) -> Iterator[FailedCell]:
        """The cells in quarantine."""
        for table, tag, names in self._places:
            for name in names:
                yield from self._failed_of(table, tag, name)

    def count_failed(self) -> dict[str, int]:
        """Cells in quarantine by observer."""
        return self._sums(b"HLEN", b"failed:")

    def _sums(self, command: bytes, key: bytes) -> dict[str, int]:
        """What the command says of a key of each tablet and observer, added up by observer."""
        asked = [(name, tag) for _, tag, names in self._places for name in names]
        counts = dict.fromkeys((name for name, _ in asked), 0)
        replies = self._client.store.call(*[(command, tag + key + name.encode()) for name, tag in asked])
        for (name, _), count in zip(asked, replies, strict=True):
            counts[name] += count
        return counts

    def retry(self, cells: Sequence[FailedCell] | None = None) -> int:
        """Make quarantined cells dirty again: those given, or all. Returns how many."""
        if cells is None:
            return sum(self._requeue_all(tag, name) for _, tag, names in self._places for name in names)
        known = {(table, tag, name) for table, tag, names in self._places for name in names}
        marks: dict[tuple[bytes, str], list[bytes]] = {}
        for cell in cells:
            tag = self._client.catalog.table(cell.table).tag(cell.row)
            if (cell.table, tag, cell.observer) in known:
                mark = encode_mark(encode_column(cell.column), cell.row)
                marks.setdefault((tag, cell.observer), []).append(mark)
        count = 0
        for (tag, name), those in marks.items():
            for start in range(0, len(those), _REQUEUED_AT_ONCE):
                count += self._requeue(tag, name, b"0", *those[start : start + _REQUEUED_AT_ONCE])[1]
        return count

    def _requeue_all(self, tag: bytes, observer: str) -> int:
        cursor, count = self._requeue(tag, observer, b"0")
        while cursor != b"0":
            cursor, put_back = self._requeue(tag, observer, cursor)
            count += put_back
        return count

    def _requeue(self, tag: bytes, observer: str, cursor: bytes, *marks: bytes) -> tuple[bytes, int]:
        store = self._client.store
        cursor, put_back = store.one(
            store.script("requeue", [tag], observer, cursor, _REQUEUED_AT_ONCE, *marks)
        )
        return cursor, put_back

    def _failed_of(self, table: str, tag: bytes, observer: str) -> Iterator[FailedCell]:
        cursor: Any = 0
        while True:
            cursor, flat = self._client.store.one(
                (b"HSCAN", tag + b"failed:" + observer.encode(), cursor, b"COUNT", 200)
            )
            for position in range(0, len(flat), 2):
                column, row = decode_mark(flat[position])
                yield FailedCell(
                    observer, table, row, decode_column(column), **json.loads(flat[position + 1])
                )
            if cursor == b"0":
                return


def _settling(lease: Lease, mode: Mode, start_ts: int) -> tuple[bytes | str | int, ...]:
    return lease.observer, mode, lease.row, lease.column, lease.deadline, lease.before, start_ts


def acknowledge(transaction: Transaction, lease: Lease, mode: Mode) -> Cell | None:
    """Begin a run: fix the snapshot, and write the acknowledgement, the transaction's first cell and primary.

    Returns the cell to observe, or None when the change was acknowledged by an earlier run (or never
    committed): then only the mark has to go.
    """
    acked = acknowledgement(lease.observer, lease.column)
    if mode == "weak":
        transaction.versions(lease.table, lease.row, [acked])
        timestamp = lease.due
    else:
        observed, done = transaction.versions(lease.table, lease.row, [lease.column, acked])
        if observed is None or (done is not None and observed.commit_ts <= done.start_ts):
            return None
        timestamp = observed.commit_ts
    transaction.write(lease.table, lease.row, acked, Write(PUT, b""))
    return Cell(lease.table, lease.row, lease.column.decode(), timestamp)


def activate(db: Database, observed: Mapping[tuple[str, str], Sequence[str]], digest: str) -> None:
    """Register a chain's observers in every tablet, so that writers leave marks for them.

    Raises:
        ConfigurationError: workers of another chain version are alive; an observer's name cannot be.
    """
    store = db.store
    for worker in live_workers(db):
        if worker.digest != digest:
            raise ConfigurationError(
                f"a worker with another set of observers is running ({worker.where}): stop it first, "
                "or use another namespace"
            )
    names = sorted({name for observers in observed.values() for name in observers})
    retired = sorted(db.active_observers() - set(names))
    commands: list[Command] = []
    for definition in db.tables():
        handle = db.catalog.table(definition.name)
        pairs: list[bytes | str] = []
        for (table, column), observers in sorted(observed.items()):
            if table == definition.name:
                pairs += (encode_column(column), ",".join(observers))
        commands.extend(store.script("observe", [tag], len(retired), *retired, *pairs) for tag in handle.tags)
    # The chain's record goes last: an activation that breaks off is repeated by the next worker.
    store.call(*commands)
    store.one((b"HSET", store.keyspace.chain, b"digest", digest, b"observers", ",".join(names)))


class Stranded:
    """Weak notifications of transactions that committed, but whose client died before it passed them on.

    A strong mark is set before the commit and cannot get stranded; a weak one waits in the lock of its cell.
    """

    def __init__(self, db: Database, observed: Mapping[tuple[str, str], Sequence[str]]) -> None:
        self._client = db.client
        handles = {table: db.catalog.table(table) for table, _ in observed}
        weak = {table for table, column in observed if column in handles[table].definition.notify_only}
        self._tags = [tag for table in sorted(weak) for tag in handles[table].tags]

    def roll_forward(self, older_than: float) -> int:
        """Settle the locks that nobody touched for that many seconds; returns how many were committed."""
        if not self._tags:
            return 0
        counts = self._client.store.call(*[(b"ZCARD", tag + b"locks") for tag in self._tags])
        if not any(counts):
            return 0
        try:
            return Janitor(self._client).resolve(older_than).committed
        except UnknownTable:
            return 0  # it was dropped meanwhile, with its locks


def active_digest(db: Database) -> str:
    """The digest of the chain that was activated last, or nothing."""
    found = db.store.one((b"HGET", db.store.keyspace.chain, b"digest"))
    return "" if found is None else str(found, "ascii")


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that is registered and whose liveness token stands. ``since`` is in microseconds."""

    owner: str
    digest: str
    where: str
    since: int


def live_workers(db: Database) -> list[LiveWorker]:
    """The workers of this namespace that are alive; forgets the others."""
    store = db.store
    key = _workers_key(db)
    flat = store.one((b"HGETALL", key))
    names = flat[0::2]
    alive = store.call(*[(b"EXISTS", db.client.token_of(_owner_of(name))) for name in names]) if names else []
    dead = [name for name, lives in zip(names, alive, strict=True) if not lives]
    if dead:
        store.one((b"HDEL", key, *dead))
    found = zip(names, flat[1::2], alive, strict=True)
    return [
        LiveWorker(_owner_of(name).decode(), **json.loads(record)) for name, record, lives in found if lives
    ]


class Registration:
    """The announcement of one worker: its own for each, also where several share a database connection."""

    def __init__(self, db: Database, digest: str, where: str) -> None:
        self._db = db
        self._name = db.client.owner() + b":" + uuid.uuid4().hex[:8].encode()
        self._record = json.dumps({"digest": digest, "where": where, "since": db.timestamp()})
        self.refresh()

    def refresh(self) -> None:
        """Announce it again: a worker that was suspended for long may have been taken for dead."""
        self._db.store.one((b"HSET", _workers_key(self._db), self._name, self._record))

    def withdraw(self) -> None:
        """Take the announcement back."""
        self._db.store.one((b"HDEL", _workers_key(self._db), self._name))


def _workers_key(db: Database) -> bytes:
    return db.store.keyspace.prefix + b"workers"


def _owner_of(name: bytes) -> bytes:
    return name.partition(b":")[0]
