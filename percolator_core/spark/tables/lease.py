"""Pin a snapshot against garbage collection during a read or write of Spark.

A pin is valid until a liveness token expires (`Snapshot.__enter__`). Usually this is the token of the reading
process. A scan of Spark has no such process: a short-lived process plans the scan, tasks in other processes
read, and only Spark's Java notices the end of the scan. So the pin has a token of its own, a lease. The
driver takes the lease when it plans the scan, and every running task renews it. The lease expires some
minutes after the end of the last task, because Spark may repeat a task at any time.

Spark plans the scans of a query together, but runs them one after another. So a task also renews the leases
of the other scans. Leases that were taken in the same minute share a token. A task renews this token, and the
tokens of the minute before and the minute after.

A task takes its pin again at its start. If the lease has expired and garbage collection has passed the
snapshot, the scan is refused.
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
"""A minute in microseconds."""


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
            # XX: an expired token is not set again, because the scans of that minute have no running task.
            *((b"SET", token(_owner(minute)), b"", b"PX", life, b"XX") for minute in neighbours),
            (b"ZADD", pins, self.oldest, self.pin),
        )

    @contextmanager
    def kept(self, db: Database) -> Iterator[None]:
        """Renew the lease regularly during the ``with`` block."""
        self.renew(db)

        def keep() -> None:
            with suppress(PercolatorError):  # the reader gets and raises the same error
                self.renew(db)

        with periodically(keep, self.seconds / 4, "percolator-lease"):
            yield


def take_lease(db: Database, at: int | None, oldest: int | None, seconds: float) -> Lease:
    """Pin the snapshot at a timestamp, by default a fresh one, and all snapshots since ``oldest``."""
    now = db.timestamp()
    minute = now // _MINUTE
    pin = _owner(minute) + b":" + uuid.uuid4().bytes
    chosen = now if at is None else at
    lease = Lease(chosen, min(chosen, oldest or chosen), minute, pin, seconds)
    lease.renew(db)
    return lease


def _owner(minute: int) -> bytes:
    return b"spark-%d" % minute
