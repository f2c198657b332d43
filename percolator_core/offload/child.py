"""A child process of a worker: ``python -m percolator_core.offload.child DESCRIPTOR``.

It ends when its parent closes the pipe, or is gone. Signals of a terminal or a service manager reach it along
with its parent: that one decides what follows, and here they do nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import structlog

from percolator_core.attempt import Attempts, ObserverCounts
from percolator_core.database import connect
from percolator_core.dirty import DirtyIndex, Lease
from percolator_core.errors import StoreUnavailable
from percolator_core.observers import Chain, guards
from percolator_core.offload.messages import Broken, Done, Logged, Orders, Up
from percolator_core.prefetch import Habits
from percolator_core.runs import EndedRun
from percolator_core.watchdog import Watchdog


def main() -> None:
    """Run one cell after another until the parent closes the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What an observer prints must not get into the results of the parent.
    os.dup2(2, 1)
    with Connection(int(sys.argv[1])) as pipe:
        _tell_logs_through(pipe)
        try:
            _serve(pipe, pipe.recv())
        except (EOFError, ConnectionError):
            return  # the parent is gone, or needs us no more
        except Exception as error:  # noqa: BLE001 - the parent tells it
            pipe.send(_broken(error))


def _serve(pipe: Connection, orders: Orders) -> None:
    sys.path[:] = orders.path
    chain = Chain.load(orders.chain)
    with connect(**orders.connect) as db, Watchdog(None) as watchdog:
        counts = {name: ObserverCounts() for name in chain.observers}
        habits = {name: Habits() for name in chain.observers} if orders.prefetch else None
        dirty = DirtyIndex(db.client, chain.observed)
        ended: list[EndedRun] = []
        attempts = Attempts(
            db.client, dirty, guards(chain), counts, habits, traced=chain.trace, listener=ended.append
        )
        pipe.send(Up())
        while True:
            lease = pipe.recv()
            assert isinstance(lease, Lease)
            counts[lease.observer] = ObserverCounts()
            ended.clear()
            try:
                conflicts = attempts.attempt(lease, watchdog)
            except Exception as error:  # noqa: BLE001 - nothing that an observer does comes here
                pipe.send(_broken(error))
            else:
                pipe.send(Done(conflicts, counts[lease.observer], ended))


def _broken(error: BaseException) -> Broken:
    trace = "".join(traceback.format_exception(error))
    return Broken(f"{type(error).__name__}: {error}", trace, isinstance(error, StoreUnavailable))


def _tell_logs_through(pipe: Connection) -> None:
    def send(_: Any, level: str, event: Any) -> Any:
        fields = {
            key: value if isinstance(value, bytes | int | float) else str(value)
            for key, value in event.items()
        }
        pipe.send(Logged(level, str(fields.pop("event", "")), fields))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, send])


if __name__ == "__main__":
    main()
