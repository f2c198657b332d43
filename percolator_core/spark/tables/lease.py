"""Keep a snapshot from garbage collection while Spark reads or writes with it.

A pin is valid while a liveness token lives (`Snapshot.__enter__`). Usually this is the token of the process
that reads. A scan of Spark has no such process: a short-lived process plans the scan, tasks in other
processes read, and only Spark's Java, which runs no code of this library, knows when the scan is over. So the
pin has a token of its own, a lease. The driver takes the lease when it plans the scan, every task renews the
lease while the task runs, and the lease expires some minutes after the last task has ended or died. It does
not end sooner, because Spark may run a task again at any time: after a failure, after a loss of its output,
or as a speculative copy.

Spark plans the scans of a query together, but runs them one after another. So tasks also renew the leases of
scans that were planned within a minute or two of their own scan: leases of one minute share a token.

A task takes its pin again when it begins. If the lease has expired and garbage collection has passed the
snapshot, the scan is refused; it never reads an incomplete snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.runtime.periodic import periodically

_MINUTE: Final = 60_000_000
"""Microseconds."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A pin of the snapshots from ``oldest`` to ``at``, valid for ``seconds`` after its last renewal."""

    at: int
    oldest: int
    minute: int
    pin: bytes
    seconds: float

    def renew(self, db: Database) -> None:
        """Renew the lease for its whole time, in one round trip."""
        life = int(self.seconds * 1000)
        token = db.client.token_of
        pins = db.store.keyspace.pins
        neighbours = (self.minute - 1, self.minute + 1)
        db.store.call_apart(
            (b"SET", token(_owner(self.minute)), b"", b"PX", life),
            # A token that has expired is not set again: without a reader no lease is needed.
            *((b"SET", token(_owner(minute)), b"", b"PX", life, b"XX") for minute in neighbours),
            (b"ZADD", pins, self.oldest, self.pin),
        )

    @contextmanager
    def kept(self, db: Database) -> Iterator[None]:
        """Renew the lease again and again while the block runs."""
        self.renew(db)

        def keep() -> None:
            with suppress(PercolatorError):  # the reader gets the same error, and raises it
                self.renew(db)

        with periodically(keep, self.seconds / 4, "percolator-lease"):
            yield


def take_lease(db: Database, at: int | None, oldest: int | None, seconds: float) -> Lease:
    """Pin the snapshot at a timestamp, or at a fresh one, and all since ``oldest``, if that is given."""
    now = db.timestamp()
    minute = now // _MINUTE
    pin = _owner(minute) + b":" + uuid.uuid4().bytes
    chosen = now if at is None else at
    lease = Lease(chosen, min(chosen, oldest or chosen), minute, pin, seconds)
    lease.renew(db)
    return lease


def _owner(minute: int) -> bytes:
    return b"spark-%d" % minute
