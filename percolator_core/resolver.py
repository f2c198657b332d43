"""Finding out what became of the owner of a lock, and finishing its work (paper, section 2.2).

A transaction's fate is decided at its primary. A lock whose primary is committed is rolled forward, one whose
primary is rolled back is removed; a primary that has outlived its time to live, or whose owner is gone, is
rolled back here, which leaves a tombstone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from percolator_core.client import Client
from percolator_core.keys import decode_primary
from percolator_core.model import Lock, unpack_lock
from percolator_core.store.packing import Command


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a transaction. ``commit_ts`` is 0 unless committed; ``wait`` (s) is 0 unless live."""

    state: Literal["committed", "rolled back", "live"]
    commit_ts: int = 0
    wait: float = 0.0


class Resolver:
    """Decides and settles."""

    __slots__ = ("_client", "_decided")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._decided: dict[int, Fate] = {}

    def resolve(self, tag: bytes, row: bytes, column: bytes, packed_lock: bytes) -> Fate:
        """Settle one lock if its transaction is over, or can be ended; returns the transaction's fate."""
        lock = unpack_lock(packed_lock)
        fate = self.fate(lock)
        if fate.state != "live":
            self._client.store.one(
                settling(self._client, fate, lock.start_ts, [tag], [1, row, column, lock.kind])
            )
        return fate

    def fate(self, lock: Lock) -> Fate:
        """The fate of the transaction that holds the lock; rolls it back when it may."""
        known = self._decided.get(lock.start_ts)
        if known is not None:
            return known
        fate = self._ask(lock, "alive")
        if fate.state == "live":
            token = self._client.token_of(lock.owner)
            if not self._client.store.one((b"EXISTS", token)):
                fate = self._ask(lock, "dead")
        if fate.state != "live":
            self._decided[lock.start_ts] = fate
        return fate

    def _ask(self, lock: Lock, owner_is: str) -> Fate:
        client = self._client
        primary = decode_primary(lock.primary)
        # Durably: what was decided here must not come out otherwise after a failover.
        (reply,) = client.store.call_durably(
            client.store.script(
                "resolve_primary",
                [primary.tag],
                lock.start_ts,
                primary.row,
                primary.column,
                owner_is,
                lock.wall,
                lock.ttl_ms,
            )
        )
        state = reply[0].decode()
        if state == "committed":
            return Fate("committed", commit_ts=reply[1])
        if state == "live":
            return Fate("live", wait=reply[1] / 1000)
        return Fate("rolled back")


class Patience:
    """Waiting for a live lock: short at first, longer later, not for ever."""

    __slots__ = ("_client", "_deadline", "_pause")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._deadline = time.monotonic() + client.timeouts.lock_wait
        self._pause = 0.001

    def wait(self) -> bool:
        """Wait a little; False when it has been long enough."""
        if time.monotonic() >= self._deadline:
            return False
        self._client.store.sleep(self._pause)
        self._pause = min(self._pause * 2, 0.05)
        return True


def settling(
    client: Client, fate: Fate, start_ts: int, tags: Sequence[bytes], cells: Sequence[bytes | int]
) -> Command:
    """The command that rolls the locks of a transaction on some cells forward or back, as its fate is.

    ``cells`` are tag's position, row, column and kind, flat. Cells that it has no lock on are left alone.
    """
    if fate.state == "committed":
        return client.store.script("commit", tags, "secondaries", start_ts, fate.commit_ts, *cells)
    return client.store.script("rollback", tags, start_ts, *cells)
