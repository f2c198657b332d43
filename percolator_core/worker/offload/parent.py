"""The worker's side: starts child processes, gives each child one cell at a time, and kills late children."""

from __future__ import annotations

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
from percolator_core.runtime.exit import ending_of
from percolator_core.runtime.log import Log
from percolator_core.worker.offload.messages import Broken, Done, Logged, Orders, Signal, Term

_PROGRAM: Final = "percolator_core.worker.offload.child"

START: Final = 60.0
"""Seconds in which a child must start. Before the observer's code, and after it, the same limit holds."""

GRACE: Final = 2.0
"""The child interrupts a run at its timeout. If it is still late after this many seconds, it is killed."""

log = Log("percolator.worker")


class RunLost(PercolatorError):
    """The child process died during a run, or was killed because it was late."""


class _Child:
    """A child process. One thread at a time uses it; any thread may kill it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            # The child is a new interpreter, because threads and greenlets of this one would not survive a
            # fork.
            command = [sys.executable, "-m", _PROGRAM, str(descriptor)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(descriptor,))

    def start(self, orders: Orders) -> None:
        """Wait until the child is ready."""
        self._send(orders)
        ready = self._receive("was not ready")
        assert ready is Signal.UP

    def run(self, lease: Lease, timeout: float) -> Done:
        self._send(lease)
        done = self._receive("did not end its run", lease, timeout)
        assert isinstance(done, Done)
        return done

    def hang_up(self) -> None:
        """Close the pipe: a child without a run ends at once."""
        self._pipe.close()

    def await_end(self) -> None:
        """Wait for the end of the child, and kill the child if it does not end in time."""
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the child. A thread that waits for the child's reply gets RunLost."""
        self.process.kill()
        self.process.wait()

    def _send(self, message: Orders | Lease | Term) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._died() from None

    def _receive(self, what: str, lease: Lease | None = None, timeout: float = 0.0) -> object:
        seconds, since = START, time.monotonic()
        while True:
            message = self._next_message(seconds, since, what)
            if isinstance(message, Logged):
                log.relay(message.level, message.event, message.fields)
            elif message is Signal.BEGAN:
                seconds, since = timeout + GRACE, time.monotonic()
            elif message is Signal.LEFT:
                assert lease is not None
                self._send(Term(lease.deadline, lease.before))
                seconds, since = START, time.monotonic()
            elif isinstance(message, Broken):
                raise _error_of(message)
            else:
                return message

    def _next_message(self, seconds: float, since: float, what: str) -> object:
        try:
            if self._pipe.poll(max(0.0, since + seconds - time.monotonic())):
                return self._pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        self.kill()
        raise RunLost(f"the process {what} within {seconds:g} s, and was killed")

    def _died(self) -> RunLost:
        return RunLost(f"the process that ran the observer died: {ending_of(self.process.wait())}")


def _error_of(message: Broken) -> PercolatorError:
    error = StoreUnavailable(message.message) if message.away else PercolatorError(message.message)
    error.add_note(f"in a child process:\n{message.traceback}")
    return error


class Offload:
    """Child processes, started when they are needed. Each of many threads borrows a child for its run."""

    def __init__(self, db: Database, chain: Chain, *, prefetch: bool) -> None:
        self._db = db
        self._chain = str(chain.folder("executor: processes").resolve())
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._every: set[_Child] = set()
        self._idle: list[_Child] = []
        self._closed = False

    def run(self, lease: Lease, timeout: float) -> Done:
        """Run the observer of a cell in a child, with a timeout in seconds, and wait for the result.

        Raises:
            RunLost: the child died or was killed. If the run committed, the store has its acknowledgement.
            StoreUnavailable: the store does not answer.
            PercolatorError: the child could not start, or failed.
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
        """With ``kill``, kill all children; otherwise, if no run is under way, let them end. Idempotent."""
        with self._lock:
            self._closed = True
            children, self._every, self._idle = self._every, set(), []
        # A killed child that a thread still uses is not closed here: that thread closes its pipe.
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
        # The child is registered before it is ready, so that `close` finds it: its imports may take longer
        # than the grace period of a stop.
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
