"""A child process of a worker: ``python -m percolator_core.worker.offload.child DESCRIPTOR``.

The child ends when its parent closes the pipe or dies. Signals of a terminal or a service manager reach
parent and child. The child ignores them, because the parent reacts to them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import structlog

from percolator_core import telemetry
from percolator_core.database import connect
from percolator_core.errors import StoreUnavailable
from percolator_core.notifications.dirty import DirtyIndex, Lease
from percolator_core.observers import Chain
from percolator_core.transaction.prefetch import Habits
from percolator_core.worker.attempt import Attempts, ObserverCounts
from percolator_core.worker.offload.messages import Broken, Done, Logged, Orders, Signal, Term
from percolator_core.worker.runs import EndedRun
from percolator_core.worker.watchdog import Deadline, Watchdog


def main() -> None:
    """Run one cell after another until the parent closes the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # An observer may print, but its text must not get into the parent's output.
    os.dup2(2, 1)
    # A process that an observer starts must not inherit the pipe: it would keep the pipe open.
    os.set_inheritable(int(sys.argv[1]), False)
    with Connection(int(sys.argv[1])) as connection:
        pipe = _Pipe(connection)
        _send_logs_through(pipe)
        try:
            _serve(pipe, pipe.recv())
        except (EOFError, ConnectionError):
            return  # the parent has ended, or does not need this process any more
        except Exception as error:  # noqa: BLE001 - the parent reports it
            pipe.send(_broken(error))
        finally:
            telemetry.flush()


class _Pipe:
    """The pipe to the parent. Threads of an observer may log at the same time, so sending is locked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def recv(self) -> Any:
        return self._connection.recv()


class _ReportingWatchdog(Watchdog):
    """Reports begin and end of the observer's own code to the parent, which answers the end with `Term`."""

    def __init__(self, pipe: _Pipe) -> None:
        super().__init__(None)
        self._pipe = pipe
        self.lease: Lease | None = None

    def guard(self, deadline: Deadline) -> None:
        self._pipe.send(Signal.BEGAN)
        super().guard(deadline)

    def release(self, deadline: Deadline) -> None:
        super().release(deadline)
        try:
            self._pipe.send(Signal.LEFT)
            term = self._pipe.recv()
        except (EOFError, OSError):
            return  # the parent has ended; the run commits nevertheless
        assert isinstance(term, Term)
        assert self.lease is not None
        self.lease.deadline, self.lease.before = term.deadline, term.before


def _serve(pipe: _Pipe, orders: Orders) -> None:
    sys.path[:] = orders.path
    chain = Chain.load(orders.chain)
    with connect(**orders.connect) as db, _ReportingWatchdog(pipe) as watchdog:
        counts = {name: ObserverCounts() for name in chain.observers}
        habits = {name: Habits() for name in chain.observers} if orders.prefetch else None
        dirty = DirtyIndex(db.client, chain.observed)
        ended: list[EndedRun] = []
        attempts = Attempts(db.client, dirty, chain, counts, habits, listener=ended.append)
        pipe.send(Signal.UP)
        while True:
            lease = pipe.recv()
            assert isinstance(lease, Lease)
            watchdog.lease = lease
            counts[lease.observer] = ObserverCounts()
            ended.clear()
            try:
                conflicts = attempts.attempt(lease, watchdog)
            except Exception as error:  # noqa: BLE001 - no exception of an observer arrives here
                pipe.send(_broken(error))
            else:
                pipe.send(Done(conflicts, counts[lease.observer], ended))


def _broken(error: BaseException) -> Broken:
    trace = "".join(traceback.format_exception(error))
    return Broken(f"{type(error).__name__}: {error}", trace, isinstance(error, StoreUnavailable))


_PLAIN: Final = frozenset({bytes, int, float, bool})


def _send_logs_through(pipe: _Pipe) -> None:
    def send(_: Any, level: str, event: Any) -> Any:
        # The type is compared exactly: the parent cannot unpickle a subclass, such as an enumeration of the
        # user.
        fields = {key: value if type(value) in _PLAIN else str(value) for key, value in event.items()}
        with suppress(OSError):  # the parent has ended: not a failure of the observer that logs
            pipe.send(Logged(level, str(fields.pop("event", "")), fields))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, send])


if __name__ == "__main__":
    main()
