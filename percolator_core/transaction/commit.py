"""The two phases of a commit (paper, figure 6), one method each, so that a test can stop between the two.

A call is one run of a script, on cells that the script may change atomically. On a single server these are
any cells, on a cluster the cells of one tablet. A write set that fits into one call is prewritten and
committed by this call, and no client ever sees a lock. Any other write set has three steps: prewrite, commit
of the primary (the commit point), and commit of the secondaries, for which the caller does not wait.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, TypeVar
from zlib import crc32

from percolator_core.catalog.catalog import CHANGED
from percolator_core.catalog.table_handle import TableHandle
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
from percolator_core.scripts.calls import Call
from percolator_core.scripts.replies import Committed, Fate, Prewritten
from percolator_core.store import OutcomeOpenError
from percolator_core.store.packing import NUMBERS
from percolator_core.transaction import write_set
from percolator_core.transaction.client import Client
from percolator_core.transaction.lock_resolver import Resolver, settling
from percolator_core.transaction.write_set import (
    Mutation,
    TableWrites,
    bounded_calls,
    in_batches,
    tags_and_cells,
    versions_of,
)

T = TypeVar("T")
D = TypeVar("D", Prewritten, Committed, Fate)

AtOnce: TypeAlias = tuple[Call[Prewritten], Prewritten, bool]
"""A commit in one call: the call, its reply, and True if the call was sent twice."""

_PARTS: Final = 5
"""The number of arguments for each prewritten cell."""

_LOCK_ROUNDS: Final = 8
"""At most this many attempts to commit. Between attempts, a dead transaction's locks are resolved."""


class _Refused(Exception):
    """A prewrite was refused because of one mutation; ``lock`` is the packed lock on that cell, if any."""

    def __init__(self, mutation: Mutation, reason: str, lock: bytes | None) -> None:
        self.mutation = mutation
        self.reason = reason
        self.lock = lock


class Commit:
    """Commits one write set. ``mutations[0]`` is the primary and must not be a notification."""

    def __init__(
        self,
        client: Client,
        start_ts: int,
        mutations: list[Mutation],
        *,
        restock: bool = False,
        owner: int | None = None,
    ) -> None:
        """With ``restock``, a commit in one call also fetches a spare timestamp for another transaction.

        ``owner`` is the id of the process that began the transaction. A forked child does not commit.
        """
        self._client = client
        self._restock = restock and not client.one_call_a_tablet
        self._owner = owner
        self.start_ts = start_ts
        self.primary = mutations[0]
        self._local_oracle = () if client.one_call_a_tablet else (client.store.keyspace.oracle,)
        """The oracle's key, if scripts can reach it: the oracle has the timestamp of the last failover."""
        self.calls = bounded_calls(mutations, client.one_call_a_tablet)
        """The mutations of each call, the primary's call first."""
        self._fresh_at = 0.0

    def run(self, at_once: AtOnce | None = None) -> int:
        """Commit and return the commit timestamp. Raises as `Transaction.commit`.

        ``at_once`` is a refused attempt to commit in one call, which may be sent again; None means no
        attempt.
        """
        try:
            if at_once is not None:
                return self._one_phase(*at_once)
            commit_ts = self.commit_primary(self.prewrite())
        except TransactionConflict as conflict:
            if conflict.reason == CHANGED:
                _catch_up(self._client, itertools.chain.from_iterable(self.calls))
            raise
        self.commit_secondaries(commit_ts)
        return commit_ts

    def _one_phase(self, call: Call[Prewritten], refusal: Prewritten, repeated: bool) -> int:
        answers = [(refusal, repeated)]

        def attempt() -> int:
            reply, repeated = answers.pop() if answers else self._decisively(call)
            if repeated and reply[0] != "committed":
                # The server may not have read the first copy yet. Roll back at the primary, so that the
                # server refuses a copy that arrives late.
                return self._fence(reply)
            return self._check(self.calls[0], reply)

        return self._clearing_locks(attempt)

    def prewrite(self) -> int:
        """First phase: lock every cell. Return the commit timestamp.

        The timestamp is requested after the last prewrite, on the same connection. So the timestamp is above
        the start of every snapshot that did not see the locks.
        """
        try:
            return self._clearing_locks(self._prewrite_all)
        except BaseException:
            # Other clients would wait for the locks until their time to live is over.
            self.roll_back()
            raise

    def commit_primary(self, commit_ts: int) -> int:
        """Second phase, the commit point. Return the commit timestamp that the primary has."""
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
        """Remove our locks. No tombstone is needed, because no other client can commit these locks."""
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
        """Run ``attempt``. If the lock of a dead transaction prevents it, resolve the lock and repeat."""
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
                self._client.store.call_many(settle, write_set.CALLS_PER_BATCH)
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

    def prewrite_call(
        self, call: Sequence[Mutation], role: Literal["primary", "secondaries"]
    ) -> Call[Prewritten]:
        """The prewrite of one of ``calls``."""
        client, primary = self._client, self.primary
        tags, cells = tags_and_cells(call, values=True)
        address = encode_primary(CellAddress(primary.tag, primary.row, primary.column))
        lock = int(client.timeouts.lock_ttl * 1000), client.owner(), address
        return calls.prewrite(tags, self._local_oracle, role, self.start_ts, cells, lock, versions_of(call))

    def commit_call(
        self, call: Sequence[Mutation], commit_ts: int, role: Literal["primary", "secondaries"]
    ) -> Call[Committed]:
        """The commit of one of ``calls``, which was prewritten."""
        tags, cells = tags_and_cells(call, values=False)
        oracle = self._local_oracle if role == "primary" else ()
        return calls.commit(tags, oracle, role, self.start_ts, commit_ts, cells)

    def _decisively(self, call: Call[D], *, repeated: bool = False) -> tuple[D, bool]:
        return decisively(self._client, self.start_ts, call, self._restock, self._owner, repeated)

    def _check(self, call: Sequence[Mutation], reply: Prewritten) -> int:
        """Raise if a prewrite call was refused; return the commit timestamp if it also committed, else 0."""
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


def commit_at_once(  # noqa: PLR0917
    client: Client,
    start_ts: int,
    writes: Mapping[str, TableWrites],
    handles: Mapping[str, TableHandle],
    restock: bool,
    owner: int,
) -> AtOnce | None:
    """Prewrite and commit a write set that fits into one call, without an object for each write.

    ``writes`` and ``handles`` have table names as keys. ``restock`` and ``owner`` are as for `Commit`. After
    a refusal, call `Commit.run`. Return None if the write set needs two phases, or has only notifications.
    The order of the cells is that of `mutations_of`.
    """
    if client.one_call_a_tablet:
        return None
    tags: dict[bytes, bytes] = {}
    versions: list[bytes] = []
    cells: list[bytes] = []
    size, most = 0, _PARTS * write_set.CELLS_PER_CALL
    for table, rows in writes.items():
        handle = handles[table]
        place = handle.place
        for row, columns in rows.items():
            # This repeats `TableHandle.tag` in line, because each commit takes this path.
            tag = handle.tags[crc32(row) % handle.tablets if place is None else place(row)]
            position = tags.get(tag)
            if position is None:
                if len(versions) == write_set.CELLS_PER_CALL:
                    return None
                position = tags[tag] = NUMBERS[len(versions) + 1]
                versions.append(handle.version)
            for column, (kind, value) in columns.items():
                cells += (position, row, column, NUMBERS[kind], value)
                size += len(row) + len(column) + len(value)
            if len(cells) > most or (size > write_set.BYTES_PER_CALL and len(cells) > _PARTS):
                return None
    if cells[3] == NUMBERS[NOTIFY]:
        # The primary is the first cell that is not a notification.
        writes_at = (at for at in range(0, len(cells), _PARTS) if cells[at + 3] != NUMBERS[NOTIFY])
        if (at := next(writes_at, None)) is None:
            return None
        cells = [*cells[at : at + _PARTS], *cells[:at], *cells[at + _PARTS :]]
    oracle = (client.store.keyspace.oracle,)
    call = calls.prewrite([*tags], oracle, "both", start_ts, cells, (), b",".join(versions))
    reply, repeated = decisively(client, start_ts, call, restock, owner)
    return call, reply, repeated


def decisively(  # noqa: PLR0917
    client: Client,
    start_ts: int,
    call: Call[D],
    restock: bool,
    owner: int | None,
    repeated: bool = False,
) -> tuple[D, bool]:
    """Send a call that may be the commit point; return the reply, and True if it was sent again.

    A second copy of the call is harmless, so the outcome stays open only if the store does not answer at all.
    ``restock`` and ``owner`` are as for `Commit`. ``repeated`` is True if an earlier request has already left
    the outcome open.
    """
    oracle, store = client.oracle, client.store
    seen = oracle.seen
    try:
        decision = store.decide(store.command(call), then_timestamp=restock, owner=owner)
    except OutcomeOpenError as error:
        raise CommitUndetermined(start_ts) from error.__cause__
    except PercolatorError as error:
        if repeated:
            raise CommitUndetermined(start_ts) from error
        raise
    answer, is_repeated, timestamp, is_durable = decision
    if timestamp > seen:
        oracle.spares.append((timestamp, time.monotonic(), process.pid))
    reply = call[-1](answer)
    if commit_ts := reply[1]:
        if not is_durable:
            raise CommitUndetermined(start_ts)  # a failover may undo the commit
        if commit_ts > oracle.seen:  # noqa: PLR1730 - `max` takes much longer
            oracle.seen = commit_ts
    return reply, is_repeated


def notify(client: Client, mutations: list[Mutation]) -> int:
    """Commit a write set that has only notifications; return the commit timestamp.

    Raises TransactionConflict if a table was changed or dropped after `Transaction.notify`, or
    StoreUnavailable. Notifying again does no harm.
    """
    notifications = []
    for call in bounded_calls(mutations, client.one_call_a_tablet):
        tags, cells = tags_and_cells(call, values=True)
        notifications.append(calls.notify(tags, cells, versions_of(call)))
    notified, timestamp = client.oracle.then_timestamp(notifications)
    if not all(notified):
        _catch_up(client, mutations)
        raise _changed(mutations[0])
    return timestamp


def _changed(mutation: Mutation) -> TransactionConflict:
    return TransactionConflict(mutation.table, mutation.row, decode_column(mutation.column), CHANGED)


def _catch_up(client: Client, mutations: Iterable[Mutation]) -> None:
    """Make the next transaction load the catalog. Finish schema changes of the mutations' tables."""
    client.catalog.expire()
    for name, version in {(one.table, one.version) for one in mutations}:
        try:
            client.finish_schema_change(name, version)
        except LockTimeout:
            pass  # the caller's next attempt tries again
