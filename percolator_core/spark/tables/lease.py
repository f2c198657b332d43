"""What keeps a snapshot from garbage collection while Spark works at it.

A pin counts as long as a liveness token lives (`Snapshot.__enter__`), and in a process of one's own that is
this process's token. A scan of Spark has no such process: a short-lived one plans it, tasks in others read,
and only Spark's Java, where no code of ours runs, knows when it is over. So the pin hangs on a token of its
own, a lease: it is taken when the scan is planned, every task renews it while it runs, and it ends by itself
some minutes after the last task has ended, or died. Nobody ends it sooner, because Spark may run tasks again
at any time: one that failed, one whose output was lost, a speculative copy.

Scans of one query are planned together but run one after the other, so tasks renew the leases of scans that
were planned within a minute or two of their own, too: leases of one minute share a token.

A task takes its pin anew when it begins. If the lease had ended and collection has passed the snapshot, the
scan is refused; it never reads what is no longer whole.
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
    """A pin of the snapshots from ``oldest`` to ``at``, for ``seconds`` from its last renewal on."""

    at: int
    oldest: int
    minute: int
    pin: bytes
    seconds: float

    def renew(self, db: Database) -> None:
        """Have the whole time again, in one round trip."""
        life = int(self.seconds * 1000)
        token = db.client.token_of
        pins = db.store.keyspace.pins
        neighbours = (self.minute - 1, self.minute + 1)
        db.store.call_apart(
            (b"SET", token(_owner(self.minute)), b"", b"PX", life),
            # Only if they are there still: who does not read has no need of one.
            *((b"SET", token(_owner(minute)), b"", b"PX", life, b"XX") for minute in neighbours),
            (b"ZADD", pins, self.oldest, self.pin),
        )

    @contextmanager
    def kept(self, db: Database) -> Iterator[None]:
        """Renews it all the time while the block runs."""
        self.renew(db)

        def keep() -> None:
            with suppress(PercolatorError):  # the reader meets the same and says so
                self.renew(db)

        with periodically(keep, self.seconds / 4, "percolator-lease"):
            yield


def take_lease(db: Database, at: int | None, oldest: int | None, seconds: float) -> Lease:
    """Pin the snapshot at a timestamp, or at a fresh one; and those since ``oldest``, if it is given."""
    now = db.timestamp()
    minute = now // _MINUTE
    pin = _owner(minute) + b":" + uuid.uuid4().bytes
    chosen = now if at is None else at
    lease = Lease(chosen, min(chosen, oldest or chosen), minute, pin, seconds)
    lease.renew(db)
    return lease


def _owner(minute: int) -> bytes:
    return b"spark-%d" % minute
