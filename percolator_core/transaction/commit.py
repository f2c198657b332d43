"""The two phases of a commit (paper, figure 6), one method each, so that a test can stop between the two.

A call is one run of a script, on the cells that the script may change atomically: any cells on a single
server, the cells of one tablet on a cluster. A write set that fits into one call is prewritten and committed
by this call, and no client ever sees a lock. Any other write set has three steps: prewrite, commit of the
primary (the commit point), and commit of the secondaries, for which the caller does not wait.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from percolator_core.catalog.catalog import CHANGED
from percolator_core.errors import (
    CommitUndetermined,
    LockTimeout,
    PercolatorError,
    SnapshotTooOld,
    StoreUnavailable,
    TransactionAborted,
    TransactionConflict,
)
from percolator_core.layout.keys import CellAddress, decode_column, encode_primary
from percolator_core.layout.records import NOTIFY, unpack_lock
from percolator_core.runtime import process
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Role
from percolator_core.scripts.replies import Committed, Fate, Prewritten
from percolator_core.store import OutcomeOpenError
from percolator_core.store.packing import NUMBERS
from percolator_core.transaction.client import Client
from percolator_core.transaction.lock_resolver import Resolver, settling

T = TypeVar("T")
D = TypeVar("D", Prewritten, Committed, Fate)

CELLS_PER_CALL: Final = 1000
BYTES_PER_CALL: Final = 4 << 20
"""Bounds of one prewrite call: all other clients wait while a script runs."""

CALLS_PER_BATCH: Final = 64
CELLS_PER_BATCH: Final = 16_000
BYTES_PER_BATCH: Final = 32 << 20
"""Bounds of the prewrites that are sent together: the client has two copies of them while it sends.

A long commit refreshes its primary lock between two batches.
"""

assert len(NUMBERS) > CELLS_PER_CALL  # `tags_and_cells` looks up the positions of tags there, counted from 1

_LOCK_ROUNDS: Final = 8
"""Most dead transactions whose locks one commit resolves before it gives up."""


class Mutation(NamedTuple):
    """One write, with the tag of its tablet, and the version of the table definition at the time of `set`."""

    tag: bytes
    table: str
    row: bytes
    column: bytes
    kind: int
    value: bytes
    version: bytes = b""


class _Refused(Exception):
    """A prewrite was refused because of one mutation; ``lock`` is the packed lock in its way, if any."""

    def __init__(self, mutation: Mutation, reason: str, lock: bytes | None) -> None:
        self.mutation = mutation
        self.reason = reason
        self.lock = lock


class Commit:
    """Commits one write set. ``mutations[0]`` is the primary and must not be a notification."""

    def __init__(
        self, client: Client, start_ts: int, mutations: list[Mutation], *, restock: bool = False
    ) -> None:
        """If ``restock``, a commit in one call also fetches a spare timestamp for another transaction."""
        self._client = client
        self._restock = restock and not client.one_call_a_tablet
        self.start_ts = start_ts
        self.primary = mutations[0]
        self._local_oracle = () if client.one_call_a_tablet else (client.store.keyspace.oracle,)
        """The oracle's key, for scripts that can reach it: it has the timestamp of the last failover."""
        self.calls = bounded_calls(mutations, client.one_call_a_tablet)
        """The mutations of each call, the primary's call first."""
        self.in_one_call = len(self.calls) == 1 and not client.one_call_a_tablet
        """True if one call prewrites and commits everything; else there are two phases."""
        self._fresh_at = 0.0

    def run(self) -> int:
        """Commit and return the commit timestamp. Raises as `Transaction.commit`."""
        try:
            if self.in_one_call:
                return self.one_phase()
            commit_ts = self.commit_primary(self.prewrite())
        except TransactionConflict as conflict:
            if conflict.reason == CHANGED:
                _catch_up(self._client, itertools.chain.from_iterable(self.calls))
            raise
        self.commit_secondaries(commit_ts)
        return commit_ts

    def one_phase(self) -> int:
        """Prewrite and commit in one call, for a write set that fits into it."""
        call = self.calls[0]

        def attempt() -> int:
            reply, repeated = self._decisively(self.prewrite_call(call, "both"))
            if repeated and reply[0] != "committed":
                # The server may not have read the first copy yet. After a rollback at the primary it refuses
                # a copy that arrives late.
                return self._fence(reply)
            return self._check(call, reply)

        return self._clearing_locks(attempt)

    def prewrite(self) -> int:
        """First phase: lock every cell. Returns the commit timestamp.

        The timestamp is requested after the last prewrite on the same connection. So it is above the start of
        every snapshot that did not see the locks.
        """
        try:
            return self._clearing_locks(self._prewrite_all)
        except BaseException:
            # Other clients would wait for the locks until their time to live is over.
            self.roll_back()
            raise

    def commit_primary(self, commit_ts: int) -> int:
        """Second phase, the commit point. Returns the commit timestamp that the primary has."""
        reply, repeated = self._decisively(self.commit_call(self.calls[0], commit_ts, "primary"))
        if reply.outcome == "too old" and repeated:
            raise CommitUndetermined(self.start_ts)  # garbage collection may have removed the traces
        if reply.outcome != "committed":
            self.roll_back()
            raise self._aborted("failed over" if reply.outcome == "failed over" else "rolled back")
        return reply.commit_ts

    def commit_secondaries(self, commit_ts: int) -> None:
        """Make the other writes visible, without waiting: other clients may roll the locks forward, too."""
        commits = [self.commit_call(call, commit_ts, "secondaries") for call in self.calls[1:]]
        self._client.store.defer(*map(self._client.store.command, commits))

    def roll_back(self) -> None:
        """Remove our locks, without a tombstone: no other client could commit them."""
        store = self._client.store
        ours = (tags_and_cells(call, values=False) for call in self.calls)
        try:
            store.defer(*[store.command(calls.rollback(tags, self.start_ts, cells)) for tags, cells in ours])
        except StoreUnavailable:
            pass  # other clients resolve the locks after their time to live

    def _aborted(self, reason: str = "rolled back") -> TransactionAborted:
        primary = self.primary
        return TransactionAborted(primary.table, primary.row, decode_column(primary.column), reason)

    def _fence(self, refusal: Prewritten) -> int:
        """Roll back a one-phase commit that was refused, unless an earlier copy of it has committed."""
        if refusal[0] == "too old":
            raise CommitUndetermined(self.start_ts)  # garbage collection may have removed the traces
        primary = self.primary
        cell = primary.tag, self.start_ts, primary.row, primary.column
        fate, _ = self._decisively(calls.resolve_primary(*cell, "dead", 0, 0), repeated=True)
        if fate.state == "committed":
            return fate.commit_ts
        if refusal[0] == "changed":
            raise CommitUndetermined(self.start_ts)  # the table may have been dropped with the traces
        self._check(self.calls[0], refusal)
        raise self._aborted()

    def _clearing_locks(self, attempt: Callable[[], int]) -> int:
        """Run ``attempt``; after a refusal by the lock of a dead transaction, resolve the lock and repeat."""
        resolver: Resolver | None = None
        for remaining in range(_LOCK_ROUNDS - 1, -1, -1):
            try:
                return attempt()
            except _Refused as refused:
                resolver = resolver or Resolver(self._client)
                self._clear_away(refused, resolver, last=not remaining)
        raise AssertionError("unreachable")

    def _clear_away(self, refused: _Refused, resolver: Resolver, *, last: bool) -> None:
        """Resolve the lock that refused a prewrite; raise the conflict if the lock's transaction is live."""
        mutation, reason, packed = refused.mutation, refused.reason, refused.lock
        if reason == "rolled back":
            raise self._aborted()
        if packed is not None and not last:
            fate = resolver.resolve(mutation.tag, mutation.row, mutation.column, packed)
            if fate.state != "live":
                # The same transaction may have left locks on more of our cells.
                start_ts = unpack_lock(packed).start_ts
                writes = ([one for one in call if one.kind != NOTIFY] for call in self.calls)
                ours = [tags_and_cells(call, values=False) for call in writes if call]
                settle = [settling(self._client, fate, start_ts, *one) for one in ours]
                self._client.store.call_many(settle, CALLS_PER_BATCH)
                return
        raise TransactionConflict(mutation.table, mutation.row, decode_column(mutation.column), reason)

    def _prewrite_all(self) -> int:
        client = self._client
        timestamp = 0
        for batch in in_batches(self.calls):
            self._stay_fresh()
            prewrites = [
                self.prewrite_call(call, "primary" if call is self.calls[0] else "secondaries")
                for call in batch
            ]
            replies, timestamp = client.oracle.then_timestamp(prewrites)
            for call, reply in zip(batch, replies, strict=True):
                self._check(call, reply)
        return timestamp

    def _stay_fresh(self) -> None:
        """Refresh the primary lock after a third of its time to live."""
        now = time.monotonic()
        if not self._fresh_at:
            self._fresh_at = now
        elif now - self._fresh_at > self._client.timeouts.lock_ttl / 3:
            store, primary = self._client.store, self.primary
            store.run(calls.refresh(primary.tag, self.start_ts, primary.row, primary.column))
            self._fresh_at = now

    def prewrite_call(self, call: Sequence[Mutation], role: Role) -> Call[Prewritten]:
        """The prewrite of one of ``calls``; the role ``both`` also commits it."""
        client, primary = self._client, self.primary
        tags, cells = tags_and_cells(call, values=True)
        versions = _versions(call)
        if role == "both":
            oracle = (client.store.keyspace.oracle,)
            return calls.prewrite(tags, oracle, role, self.start_ts, cells, (), versions)
        address = encode_primary(CellAddress(primary.tag, primary.row, primary.column))
        lock = int(client.timeouts.lock_ttl * 1000), client.owner(), address
        return calls.prewrite(tags, self._local_oracle, role, self.start_ts, cells, lock, versions)

    def commit_call(
        self, call: Sequence[Mutation], commit_ts: int, role: Literal["primary", "secondaries"]
    ) -> Call[Committed]:
        """The commit of one of ``calls``, which was prewritten."""
        tags, cells = tags_and_cells(call, values=False)
        oracle = self._local_oracle if role == "primary" else ()
        return calls.commit(tags, oracle, role, self.start_ts, commit_ts, cells)

    def _decisively(self, call: Call[D], *, repeated: bool = False) -> tuple[D, bool]:
        """Send a call that may be the commit point; returns the reply, and True if it was sent again.

        A second copy of the call is harmless, so the outcome stays open only if the store does not answer at
        all. ``repeated`` is True if an earlier request has already left the outcome open.
        """
        oracle, store = self._client.oracle, self._client.store
        seen = oracle.seen
        try:
            decision = store.decide(store.command(call), then_timestamp=self._restock)
        except OutcomeOpenError as error:
            raise CommitUndetermined(self.start_ts) from error.__cause__
        except PercolatorError as error:
            if repeated:
                raise CommitUndetermined(self.start_ts) from error
            raise
        answer, is_repeated, timestamp, is_durable = decision
        if timestamp > seen:
            oracle.spares.append((timestamp, time.monotonic(), process.pid))
        reply = call[-1](answer)
        if commit_ts := reply[1]:
            if not is_durable:
                raise CommitUndetermined(self.start_ts)  # a failover may undo the commit
            oracle.seen = max(oracle.seen, commit_ts)
        return reply, is_repeated

    def _check(self, call: Sequence[Mutation], reply: Prewritten) -> int:
        """Raise if a prewrite call was refused; returns the commit timestamp in one phase, else 0."""
        outcome, commit_ts, cell, lock = reply
        if outcome in {"prewritten", "committed"}:
            return commit_ts
        if outcome == "too old":
            raise SnapshotTooOld(
                f"the transaction begun at {self.start_ts} lies below the safe point of garbage collection: "
                "run it again"
            )
        if outcome == "failed over":
            raise self._aborted("failed over")
        if outcome == "changed":
            raise _changed(call[0])
        raise _Refused(call[cell], outcome, lock)


def notify(client: Client, mutations: list[Mutation]) -> int:
    """Commit a write set that has only notifications; returns the commit timestamp.

    Raises:
        TransactionConflict: a table was changed or dropped since. Notifying again does no harm.
        StoreUnavailable: the store does not answer. Notifying again does no harm.
    """
    notifications = []
    for call in bounded_calls(mutations, client.one_call_a_tablet):
        tags, cells = tags_and_cells(call, values=False)
        notifications.append(calls.notify(tags, cells, _versions(call)))
    notified, timestamp = client.oracle.then_timestamp(notifications)
    if not all(notified):
        _catch_up(client, mutations)
        raise _changed(mutations[0])
    return timestamp


def _changed(mutation: Mutation) -> TransactionConflict:
    return TransactionConflict(mutation.table, mutation.row, decode_column(mutation.column), CHANGED)


def _catch_up(client: Client, mutations: Iterable[Mutation]) -> None:
    """Have the next transaction load the catalog, and finish schema changes of the mutations' tables."""
    client.catalog.expire()
    for name, version in {(one.table, one.version) for one in mutations}:
        try:
            client.finish_schema_change(name, version)
        except LockTimeout:
            pass  # the caller's next attempt tries again


def bounded_calls(mutations: list[Mutation], one_a_tablet: bool) -> list[list[Mutation]]:
    """The write set in calls of bounded size, the primary's call first."""
    if len(mutations) == 1:
        return [mutations]
    groups: Iterable[Sequence[Mutation]] = (mutations,)
    if one_a_tablet:
        by_tag: dict[bytes, list[Mutation]] = {}
        for mutation in mutations:
            by_tag.setdefault(mutation.tag, []).append(mutation)
        groups = by_tag.values()
    return [call for group in groups for call in in_calls(group, _weight, CELLS_PER_CALL)]


def in_calls(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in groups of at most ``most`` items and `BYTES_PER_CALL` bytes; a larger item is alone."""
    call: list[T] = []
    size = 0
    for item in items:
        one = weight(item)
        if call and (len(call) >= most or size + one > BYTES_PER_CALL):
            yield call
            call, size = [], 0
        call.append(item)
        size += one
    if call:
        yield call


def tags_and_cells(call: Sequence[Mutation], *, values: bool) -> tuple[list[bytes], list[bytes]]:
    """The tags of a call, and its cells as arguments of a script, each with the position of its tag."""
    tags: dict[bytes, bytes] = {}
    cells: list[bytes] = []
    for tag, _, row, column, kind, value, _ in call:
        position = tags.setdefault(tag, NUMBERS[len(tags) + 1])
        if values:
            cells += (position, row, column, NUMBERS[kind], value)
        else:
            cells += (position, row, column, NUMBERS[kind])
    return list(tags), cells


def _versions(call: Sequence[Mutation]) -> bytes:
    """The versions of the table definitions of a call, one a tag, in the order of `tags_and_cells`."""
    if len(call) == 1:
        return call[0].version
    return b",".join({mutation.tag: mutation.version for mutation in call}.values())


def in_batches(calls: Iterable[list[Mutation]]) -> Iterator[list[list[Mutation]]]:
    """The calls in batches of bounded size."""
    batch: list[list[Mutation]] = []
    cells = size = 0
    for call in calls:
        weight = sum(map(_weight, call))
        is_over = cells + len(call) > CELLS_PER_BATCH or size + weight > BYTES_PER_BATCH
        if batch and (is_over or len(batch) >= CALLS_PER_BATCH):
            yield batch
            batch, cells, size = [], 0, 0
        batch.append(call)
        cells += len(call)
        size += weight
    yield batch


def _weight(mutation: Mutation) -> int:
    return len(mutation.value) + len(mutation.row) + len(mutation.column)


def primary_first(mutations: list[Mutation]) -> list[Mutation]:
    """The mutations with a possible primary in front: not a notification, which leaves no version."""
    for position, mutation in enumerate(mutations):
        if mutation.kind != NOTIFY:
            return [mutation, *mutations[:position], *mutations[position + 1 :]] if position else mutations
    return mutations
