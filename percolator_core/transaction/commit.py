"""The two phases of a commit (paper, figure 6), one method each, so that tests can stop between them.

A call covers what one script may touch atomically: on a single server any cells, on a cluster those of one
tablet. A write set that fits into one call is prewritten and committed by it, and nobody ever sees a lock.
Any other goes through prewrite, commit of the primary (the commit point) and commit of the secondaries,
which the caller does not wait for.
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
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Committed, Fate, Prewritten, Role
from percolator_core.store import OutcomeOpenError
from percolator_core.store.packing import NUMBERS
from percolator_core.transaction.client import Client
from percolator_core.transaction.lock_resolver import Resolver, settling

T = TypeVar("T")
D = TypeVar("D", Prewritten, Committed, Fate)

CELLS_PER_CALL: Final = 1000
BYTES_PER_CALL: Final = 4 << 20
"""Bounds of one prewrite call: a script holds up everybody else while it runs."""

CALLS_PER_BATCH: Final = 64
CELLS_PER_BATCH: Final = 16_000
BYTES_PER_BATCH: Final = 32 << 20
"""Bounds of the prewrites that are sent together: the client holds them twice while it sends them.

Between two batches it looks at the clock, so that a long commit refreshes its primary lock in time.
"""

assert len(NUMBERS) > CELLS_PER_CALL  # where `_cells` looks up the positions of tags, counted from 1

_LOCK_ROUNDS: Final = 8
"""Dead transactions whose locks one commit clears out of its way before it gives up."""


class Mutation(NamedTuple):
    """One write, with the tablet it goes to, and the version of the table by which it was made."""

    tag: bytes
    table: str
    row: bytes
    column: bytes
    kind: int
    value: bytes
    version: bytes = b""


class _Refused(Exception):
    """A prewrite met something in its way: which mutation, why, and the lock if it was one."""

    def __init__(self, mutation: Mutation, reason: str, lock: bytes | None) -> None:
        self.mutation = mutation
        self.reason = reason
        self.lock = lock


class Commit:
    """Commits one write set. ``mutations[0]`` is the primary, and no notification."""

    def __init__(
        self, client: Client, start_ts: int, mutations: Sequence[Mutation], *, restock: bool = False
    ) -> None:
        """``restock`` has a commit in one call bring a start timestamp for another transaction."""
        self._client = client
        self._restock = restock and not client.one_call_a_tablet
        self._start_ts = start_ts
        self._primary = mutations[0]
        self._local_oracle = () if client.one_call_a_tablet else (client.store.keyspace.oracle,)
        """The oracle's key for scripts that can reach it: it knows where the last failover was."""
        self._calls = list(bounded_calls(mutations, client.one_call_a_tablet))
        self._fresh_at = 0.0

    @property
    def in_one_call(self) -> bool:
        """Whether one call prewrites and commits everything; else there are two phases."""
        return len(self._calls) == 1 and not self._client.one_call_a_tablet

    def run(self) -> int:
        """Commit and return the commit timestamp.

        Raises:
            TransactionConflict: somebody else wrote or is writing one of the cells; nothing was written.
            TransactionAborted: somebody took us for dead and rolled us back, or the server where we began was
            replaced and may have lost what we read; nothing was written.
            CommitUndetermined: the store went silent at the decisive moment, or the commit is not as safe as
            the durability asks.
            SnapshotTooOld: the transaction began below the safe point.
            StoreUnavailable: the store does not answer, and nothing was committed.
        """
        try:
            if self.in_one_call:
                return self.one_phase()
            commit_ts = self.commit_primary(self.prewrite())
        except TransactionConflict as conflict:
            if conflict.reason == CHANGED:
                _catch_up(self._client, itertools.chain.from_iterable(self._calls))
            raise
        self.commit_secondaries(commit_ts)
        return commit_ts

    def one_phase(self) -> int:
        """Prewrite and commit in one call, for a write set that fits into it."""
        call = self._calls[0]

        def attempt() -> int:
            reply, repeated = self._decisively(self._prewrite_call(call, "both"))
            if repeated and reply.outcome != "committed":
                # The first copy may still lie in a connection that the server has not read to its end. Once
                # the primary says that we are rolled back, a copy that arrives late is refused.
                return self._noted(self._fence(reply))
            return self._noted(self._check(call, reply))

        return self._clearing_locks(attempt)

    def prewrite(self) -> int:
        """First phase: lock every cell. Returns the commit timestamp.

        It is asked for behind the last prewrite on the same connection, so it lies above the start of every
        snapshot that did not see the locks.
        """
        try:
            return self._clearing_locks(self._prewrite_all)
        except BaseException:
            # Locks left behind would only make others wait for our time to live.
            self.roll_back()
            raise

    def commit_primary(self, commit_ts: int) -> int:
        """Second phase, the commit point. Returns the commit timestamp that counts."""
        reply, repeated = self._decisively(self._commit_call(self._calls[0], commit_ts, "primary"))
        if reply.outcome == "too old" and repeated:
            raise CommitUndetermined(self._start_ts)  # garbage collection took the traces, if there were any
        if reply.outcome != "committed":
            self.roll_back()
            raise self._aborted("failed over" if reply.outcome == "failed over" else "rolled back")
        return self._noted(reply.commit_ts)

    def commit_secondaries(self, commit_ts: int) -> None:
        """Make the other writes visible. Nobody waits: whoever meets a lock left behind rolls it forward."""
        store = self._client.store
        store.defer(
            *[store.command(self._commit_call(call, commit_ts, "secondaries")) for call in self._calls[1:]]
        )

    def roll_back(self) -> None:
        """Remove our locks. Without a tombstone: nobody but us could commit them, and we have given up."""
        store = self._client.store
        commands = []
        for call in self._calls:
            tags, cells = _cells(call, values=False)
            commands.append(store.command(calls.rollback(tags, self._start_ts, cells)))
        try:
            store.defer(*commands)
        except StoreUnavailable:
            pass  # the locks outlive us, and their time to live ends

    # Inside.

    def _noted(self, commit_ts: int) -> int:
        self._client.oracle.note(commit_ts)
        return commit_ts

    def _aborted(self, reason: str = "rolled back") -> TransactionAborted:
        primary = self._primary
        return TransactionAborted(primary.table, primary.row, decode_column(primary.column), reason)

    def _fence(self, refusal: Prewritten) -> int:
        """Roll back a one-phase commit that was refused, unless an earlier copy of it has committed."""
        if refusal.outcome == "too old":
            raise CommitUndetermined(self._start_ts)  # garbage collection took the traces, if there were any
        primary = self._primary
        cell = primary.tag, self._start_ts, primary.row, primary.column
        fate, _ = self._decisively(calls.resolve_primary(*cell, "dead", 0, 0), repeated=True)
        if fate.state == "committed":
            return fate.commit_ts
        if refusal.outcome == "changed":
            raise CommitUndetermined(self._start_ts)  # the traces are gone, if the table was dropped
        self._check(self._calls[0], refusal)
        raise self._aborted()

    def _clearing_locks(self, attempt: Callable[[], int]) -> int:
        """Run ``attempt``; where a finished transaction's lock is in the way, settle it and try again."""
        resolver: Resolver | None = None
        for remaining in range(_LOCK_ROUNDS - 1, -1, -1):
            try:
                return attempt()
            except _Refused as refused:
                resolver = resolver or Resolver(self._client)
                self._clear_away(refused, resolver, last=not remaining)
        raise AssertionError("unreachable")

    def _clear_away(self, refused: _Refused, resolver: Resolver, *, last: bool) -> None:
        """Settle the lock that stood in the way; raise the conflict when that cannot be done."""
        mutation, reason, packed = refused.mutation, refused.reason, refused.lock
        if reason == "rolled back":
            raise self._aborted()
        if packed is not None and not last:
            fate = resolver.resolve(mutation.tag, mutation.row, mutation.column, packed)
            if fate.state != "live":
                # The same transaction may have left locks on more of our cells.
                start_ts = unpack_lock(packed).start_ts
                ours = [
                    _cells([one for one in call if one.kind != NOTIFY], values=False) for call in self._calls
                ]
                settle = [
                    settling(self._client, fate, start_ts, tags, cells) for tags, cells in ours if cells
                ]
                self._client.store.call_many(settle, CALLS_PER_BATCH)
                return
        raise TransactionConflict(mutation.table, mutation.row, decode_column(mutation.column), reason)

    def _prewrite_all(self) -> int:
        client = self._client
        timestamp = 0
        for batch in _batches(self._calls):
            self._stay_fresh()
            prewrites = [
                self._prewrite_call(call, "primary" if call is self._calls[0] else "secondaries")
                for call in batch
            ]
            replies, timestamp = client.oracle.then_timestamp(prewrites)
            for call, reply in zip(batch, replies, strict=True):
                self._check(call, reply)
        return timestamp

    def _stay_fresh(self) -> None:
        """Refresh the primary lock when a third of its time to live has passed."""
        now = time.monotonic()
        if not self._fresh_at:
            self._fresh_at = now
        elif now - self._fresh_at > self._client.timeouts.lock_ttl / 3:
            store, primary = self._client.store, self._primary
            store.run(calls.refresh(primary.tag, self._start_ts, primary.row, primary.column))
            self._fresh_at = now

    def _prewrite_call(self, call: Sequence[Mutation], role: Role) -> Call[Prewritten]:
        client, primary = self._client, self._primary
        tags, cells = _cells(call, values=True)
        versions = _versions(call)
        if role == "both":
            oracle = (client.store.keyspace.oracle,)
            return calls.prewrite(tags, oracle, role, self._start_ts, cells, (), versions)
        address = encode_primary(CellAddress(primary.tag, primary.row, primary.column))
        lock = int(client.timeouts.lock_ttl * 1000), client.owner(), address
        return calls.prewrite(tags, self._local_oracle, role, self._start_ts, cells, lock, versions)

    def _commit_call(
        self, call: Sequence[Mutation], commit_ts: int, role: Literal["primary", "secondaries"]
    ) -> Call[Committed]:
        tags, cells = _cells(call, values=False)
        oracle = self._local_oracle if role == "primary" else ()
        return calls.commit(tags, oracle, role, self._start_ts, commit_ts, cells)

    def _decisively(self, call: Call[D], *, repeated: bool = False) -> tuple[D, bool]:
        """Send a call that may be the commit point; returns the reply, and whether it was repeated.

        Sending it again is harmless, so only a store that stays silent leaves the outcome open. ``repeated``
        is True when an earlier request has left it open already.
        """
        oracle, store = self._client.oracle, self._client.store
        seen = oracle.seen
        try:
            decision = store.decide(store.command(call), then_timestamp=self._restock)
        except OutcomeOpenError as error:
            raise CommitUndetermined(self._start_ts) from error.__cause__
        except PercolatorError as error:
            if repeated:
                raise CommitUndetermined(self._start_ts) from error
            raise
        if decision.timestamp > seen:
            oracle.put_aside(decision.timestamp)
        reply = call.decode(decision.reply)
        if reply.commit_ts and not decision.durable:
            raise CommitUndetermined(self._start_ts)  # a failover may undo what is not safe yet
        return reply, decision.repeated

    def _check(self, call: Sequence[Mutation], reply: Prewritten) -> int:
        """What a prewrite call answered; returns the commit timestamp of a one-phase commit, else 0."""
        outcome = reply.outcome
        if outcome in {"prewritten", "committed"}:
            return reply.commit_ts
        if outcome == "too old":
            raise SnapshotTooOld(
                f"the transaction begun at {self._start_ts} lies below the safe point of garbage collection: "
                "run it again"
            )
        if outcome == "failed over":
            raise self._aborted("failed over")
        if outcome == "changed":
            raise _changed(call[0])
        raise _Refused(call[reply.cell], outcome, reply.lock)


def notify(client: Client, mutations: Sequence[Mutation]) -> int:
    """Commit a write set of nothing but notifications; returns the commit timestamp.

    Raises:
        TransactionConflict: a table was changed or dropped meanwhile. Notifying again does no harm.
        StoreUnavailable: the store does not answer. Notifying again does no harm.
    """
    notifications = []
    for call in bounded_calls(mutations, client.one_call_a_tablet):
        tags, cells = _cells(call, values=False)
        notifications.append(calls.notify(tags, cells, _versions(call)))
    notified, timestamp = client.oracle.then_timestamp(notifications)
    if not all(notified):
        _catch_up(client, mutations)
        raise _changed(mutations[0])
    return timestamp


def _changed(mutation: Mutation) -> TransactionConflict:
    return TransactionConflict(mutation.table, mutation.row, decode_column(mutation.column), CHANGED)


def _catch_up(client: Client, mutations: Iterable[Mutation]) -> None:
    """Take in the tables as they are now, and finish changes of those in ``mutations`` that others began."""
    client.catalog.expire()
    for name, version in {(one.table, one.version) for one in mutations}:
        try:
            client.finish_schema_change(name, version)
        except LockTimeout:
            pass  # the caller's next attempt comes here again


def bounded_calls(mutations: Sequence[Mutation], one_a_tablet: bool) -> Iterator[list[Mutation]]:
    """The write set cut into calls of bounded size, the primary's first."""
    groups: Iterable[Sequence[Mutation]] = (mutations,)
    if one_a_tablet:
        by_tag: dict[bytes, list[Mutation]] = {}
        for mutation in mutations:
            by_tag.setdefault(mutation.tag, []).append(mutation)
        groups = by_tag.values()
    for group in groups:
        yield from in_calls(group, _weight, CELLS_PER_CALL)


def in_calls(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in groups that one call takes: at most so many, and of `BYTES_PER_CALL` unless it is one."""
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


def _cells(call: Sequence[Mutation], *, values: bool) -> tuple[list[bytes], list[bytes]]:
    """The tags of a call, and its cells as the scripts take them: each with the position of its tag."""
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
    """The versions of the tables by which a call was made, one a tag, in the order of `_cells`."""
    if len(call) == 1:
        return call[0].version
    return b",".join({mutation.tag: mutation.version for mutation in call}.values())


def _batches(calls: Iterable[list[Mutation]]) -> Iterator[list[list[Mutation]]]:
    """The calls, as many together as a batch may have."""
    batch: list[list[Mutation]] = []
    cells = size = 0
    for call in calls:
        weight = sum(map(_weight, call))
        if batch and (
            len(batch) >= CALLS_PER_BATCH
            or cells + len(call) > CELLS_PER_BATCH
            or size + weight > BYTES_PER_BATCH
        ):
            yield batch
            batch, cells, size = [], 0, 0
        batch.append(call)
        cells += len(call)
        size += weight
    yield batch


def _weight(mutation: Mutation) -> int:
    return len(mutation.value) + len(mutation.row) + len(mutation.column)


def primary_first(mutations: Sequence[Mutation]) -> list[Mutation]:
    """The same mutations, one that can be the primary in front: a notification leaves no version."""
    if mutations[0].kind != NOTIFY:
        return list(mutations)
    for position, mutation in enumerate(mutations):
        if mutation.kind != NOTIFY:
            return [mutation, *mutations[:position], *mutations[position + 1 :]]
    return list(mutations)
