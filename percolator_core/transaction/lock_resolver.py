"""The lock resolver: finishes or rolls back the transactions of dead clients (paper, section 2.2).

The primary decides the fate of a transaction. If the primary is committed, the other locks are rolled
forward; if it is rolled back, they are removed. The resolver rolls back a primary whose time to live is over
or whose owner has no liveness token, and leaves a tombstone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from percolator_core.layout.keys import decode_primary
from percolator_core.layout.records import Lock, start_of_lock, unpack_lock
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Fate
from percolator_core.store.packing import Command
from percolator_core.transaction.client import Client

LockedCell: TypeAlias = tuple[bytes, bytes, bytes]
"""Row and column of a cell, and its packed lock, with or without the value."""


class Resolver:
    """Decides the fates of transactions that own locks, and rolls the locks forward or back."""

    __slots__ = ("_client", "_decided")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._decided: dict[int, Fate] = {}

    def resolve(self, tag: bytes, row: bytes, column: bytes, packed_lock: bytes) -> Fate:
        """Resolve one lock, unless its transaction is live; return the transaction's fate."""
        (fate,) = self.resolve_all(tag, [(row, column, packed_lock)])
        return fate

    def resolve_all(self, tag: bytes, cells: Sequence[LockedCell]) -> list[Fate]:
        """Resolve locks of one tablet, and return their transactions' fates.

        ``cells`` has at most as many locks as one call may commit. A cell that no longer has its lock is
        skipped.
        """
        starts = [start_of_lock(packed) for _, _, packed in cells]
        one_each = {start: packed for start, (_, _, packed) in zip(starts, cells, strict=True)}
        fates = self.fates(map(unpack_lock, one_each.values()))
        over: dict[int, list[bytes | int]] = {start: [] for start in fates if fates[start].state != "live"}
        for start, (row, column, packed) in zip(starts, cells, strict=True):
            if start in over:
                over[start] += (1, row, column, packed[0])
        client = self._client
        if over:
            client.store.call(
                *[settling(client, fates[start_ts], start_ts, [tag], flat) for start_ts, flat in over.items()]
            )
        return [fates[start] for start in starts]

    def fates(self, locks: Iterable[Lock]) -> dict[int, Fate]:
        """Return a dict from start timestamps to the fates of the locks' transactions.

        Dead transactions are rolled back. All fates are requested together, and each fate only once.
        """
        by_transaction = {lock.start_ts: lock for lock in locks}
        found = {start: fate for start in by_transaction if (fate := self._decided.get(start)) is not None}
        found |= self._ask([lock for start, lock in by_transaction.items() if start not in found], "alive")
        live = [lock for start, lock in by_transaction.items() if found[start].state == "live"]
        owners = sorted({lock.owner for lock in live})
        if owners:
            client = self._client
            tokens = client.store.call(*[client.liveness(owner) for owner in owners])
            gone = {owner for owner, there in zip(owners, tokens, strict=True) if not there}
            found |= self._ask([lock for lock in live if lock.owner in gone], "dead")
        self._decided.update((start, fate) for start, fate in found.items() if fate.state != "live")
        return found

    def _ask(self, locks: Sequence[Lock], owner_is: Literal["dead", "alive"]) -> dict[int, Fate]:
        if not locks:
            return {}
        # The decisions are durable: a failover must not undo a decision on which other clients rely.
        asked = []
        for lock in locks:
            primary = decode_primary(lock.primary)
            cell = primary.tag, lock.start_ts, primary.row, primary.column
            asked.append(calls.resolve_primary(*cell, owner_is, lock.wall, lock.ttl_ms))
        fates = self._client.store.run_all(asked, durably=True)
        return {lock.start_ts: fate for lock, fate in zip(locks, fates, strict=True)}


class Patience:
    """Waits for a live lock, in pauses that grow, until the time limit for locks is over."""

    __slots__ = ("_client", "_deadline", "_pause")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._deadline = time.monotonic() + client.timeouts.lock_wait
        self._pause = 0.001

    def wait(self) -> bool:
        """Pause; return False without a pause once the time limit is over."""
        if time.monotonic() >= self._deadline:
            return False
        self._client.store.sleep(self._pause)
        self._pause = min(self._pause * 2, 0.05)
        return True


def settling(
    client: Client, fate: Fate, start_ts: int, tags: Sequence[bytes], cells: Sequence[bytes | int]
) -> Command:
    """Return the command that rolls a transaction's locks on some cells forward or back, as ``fate`` says.

    ``cells`` has four elements for each cell: the tag's position, row, column and kind. Cells that the
    transaction has not locked are skipped.
    """
    if fate.state == "committed":
        return client.store.command(calls.commit(tags, (), "secondaries", start_ts, fate.commit_ts, cells))
    return client.store.command(calls.rollback(tags, start_ts, cells))
