"""The worker's side: starts children, gives each one cell at a time, ends those that are overdue."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.notifications.dirty import Lease
from percolator_core.observers import Chain
from percolator_core.runtime.log import Log
from percolator_core.worker.offload.messages import Began, Broken, Done, Left, Logged, Orders, Term, Up

_PROGRAM: Final = "percolator_core.worker.offload.child"

START: Final = 60.0
"""Seconds that a child may take until it is ready, and for the store's part before and after a run."""

GRACE: Final = 2.0
"""Seconds beyond its timeout after which a run is ended with its process; before, it is interrupted there.

Counted anew when a conflict has the run repeated, and not while it commits: as in the worker itself, only the
observer's own code is under the timeout.
"""

log = Log("percolator.worker")


class RunLost(PercolatorError):
    """The child process died during a run, or was ended since it ran for too long."""


class _Child:
    """One child process; used by one thread at a time, but any may kill it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            # A new interpreter, because threads and greenlets of this one would not survive a fork.
            command = [sys.executable, "-m", _PROGRAM, str(descriptor)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(descriptor,))

    def start(self, orders: Orders) -> None:
        """Wait until it is ready; raises as `Offload.run`."""
        self._tell(orders)
        self._hear("was not ready")

    def run(self, lease: Lease, timeout: float) -> Done:
        """Have a cell observed; raises as `Offload.run`."""
        self._tell(lease)
        done = self._hear("did not end its run", lease, timeout)
        assert isinstance(done, Done)
        return done

    def hang_up(self) -> None:
        """Let it end: it does at once when it has nothing to do."""
        self._pipe.close()

    def await_end(self) -> None:
        """Wait until it has ended; one that does not is killed."""
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it without asking. Whoever waits for its answer learns that it is gone."""
        self.process.kill()
        self.process.wait()

    def _tell(self, message: Orders | Lease | Term) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise RunLost(self._obituary()) from None

    def _hear(self, what: str, lease: Lease | None = None, timeout: float = 0.0) -> Up | Done:
        seconds, since = START, time.monotonic()
        while True:
            message = self._next_message(seconds, since, what)
            if isinstance(message, Logged):
                tell = {"error": log.error, "warning": log.warning, "debug": log.debug}.get(
                    message.level, log.info
                )
                tell(message.event, **message.fields)
            elif isinstance(message, Began):
                seconds, since = timeout + GRACE, time.monotonic()
            elif isinstance(message, Left):
                assert lease is not None
                self._tell(Term(lease.deadline, lease.before))
                seconds, since = START, time.monotonic()
            elif isinstance(message, Broken):
                raise _error_of(message)
            else:
                assert isinstance(message, Up | Done)
                return message

    def _next_message(self, seconds: float, since: float, what: str) -> object:
        try:
            if self._pipe.poll(max(0.0, since + seconds - time.monotonic())):
                return self._pipe.recv()
        except (EOFError, OSError):
            raise RunLost(self._obituary()) from None
        self.kill()
        raise RunLost(f"the process {what} within {seconds:g} s, and was killed")

    def _obituary(self) -> str:
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the process that ran the observer died: {how}"


def _error_of(message: Broken) -> PercolatorError:
    error = StoreUnavailable(message.message) if message.away else PercolatorError(message.message)
    error.add_note(f"in a child process:\n{message.traceback}")
    return error


class Offload:
    """Child processes, started when they are needed. Many threads use it: each borrows a child for a run."""

    def __init__(self, db: Database, chain: Chain, *, prefetch: bool) -> None:
        self._db = db
        self._chain = str(chain.path.resolve())
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._every: set[_Child] = set()
        self._idle: list[_Child] = []
        self._closed = False

    def run(self, lease: Lease, timeout: float) -> Done:
        """Have a cell observed in a child, with a run of at most ``timeout`` seconds, and wait for it.

        Raises:
            RunLost: the child died or had to be killed; whether the run committed, its acknowledgement tells.
            StoreUnavailable: the store is away.
            PercolatorError: the child could not begin, or has a fault.
        """
        child = self._borrow()
        try:
            done = child.run(lease, timeout)
        except BaseException:
            self._bury(child)
            raise
        with self._lock:
            self._idle.append(child)
        return done

    def close(self, *, kill: bool) -> None:
        """End all children: at once, or those that have nothing to do, which must be all. Idempotent."""
        with self._lock:
            self._closed = True
            children, self._every, self._idle = self._every, set(), []
        # One that is killed is in use by a thread, perhaps: that one closes the pipe.
        for child in children:
            if kill:
                child.kill()
            else:
                child.hang_up()
        for child in children:
            child.await_end()

    def _borrow(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        orders = Orders(self._db.connect_arguments(), self._chain, self._prefetch, tuple(sys.path))
        child = _Child()
        # Known before it is ready: what it imports may take longer than a worker has that is told to stop.
        with self._lock:
            closed = self._closed
            self._every.add(child)
        if closed:
            self._bury(child)
            raise RunLost("the worker has ended")
        try:
            child.start(orders)
        except BaseException:
            self._bury(child)
            raise
        return child

    def _bury(self, child: _Child) -> None:
        child.kill()
        child.hang_up()
        with self._lock:
            self._every.discard(child)


__all__ = ["Offload", "RunLost"]
