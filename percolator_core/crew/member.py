"""One worker process of a crew: ``python -m percolator_core.crew.member``, its orders on stdin.

It ends when it is told to, on SIGTERM, and when its parent is gone; each time as a worker that is stopped:
the runs under way are finished, or given back when they take too long. A Ctrl-C in a terminal reaches parent
and children alike: it is the parent's to decide what follows, and here it does nothing.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any, Final

import structlog

from percolator_core.crew.messages import (
    BREAK_OFF,
    FAILED,
    HELD_BACK,
    INTERRUPTED,
    STOP,
    LineCutter,
    Orders,
    counts_content,
    error_content,
    report,
)
from percolator_core.crew.pulse import Pulse
from percolator_core.database import connect
from percolator_core.observers import Chain
from percolator_core.runtime.exit import end_process
from percolator_core.runtime.log import Log
from percolator_core.worker import Worker
from percolator_core.worker.runs import RunTimes

_BEAT: Final = 0.25
"""Seconds between two reports of the counts. What a killed process did after its last is unknown."""

_PARENT_LOOK: Final = 1.0
"""Seconds between two looks whether the parent lives; its end of the pipe tells it at once, as a rule."""

_LAST_REPORT: Final = 10.0
"""Seconds to wait for a parent that does not read."""

log = Log("percolator.worker")


class Reports:
    """What goes to the parent, in order, written by a thread of its own.

    An observer that logs thus never waits for the parent, and its timeout cannot cut a line in two.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._pulse: Pulse | None = None
        self._times: RunTimes | None = None
        self._began = 0.0
        self._thread = threading.Thread(target=self._write, name="percolator-reports", daemon=True)
        self._thread.start()

    def up(self, worker: Worker, times: RunTimes, name: str) -> None:
        """The worker begins; its counts and the times of its runs are reported from now on.

        ``name`` is that of its client in locks.
        """
        self._pulse, self._times, self._began = Pulse(worker), times, time.monotonic()
        self._worker = worker
        self._lines.put(report("up", name))

    def log(self, _: Any, __: str, event: Any) -> Any:
        """A structlog processor, the last one."""
        self._lines.put(report("log", dict(event)))
        raise structlog.DropEvent

    def error(self, error: BaseException) -> None:
        """What the process ends with."""
        trace = "".join(traceback.format_exception(error))
        self._lines.put(report("error", error_content(error, trace)))

    def close(self) -> None:
        """Report the counts for the last time, and wait until all is written."""
        self._lines.put(None)
        self._thread.join(_LAST_REPORT)

    def _write(self) -> None:
        next_beat = time.monotonic() + _BEAT
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, next_beat - time.monotonic()))
            except queue.Empty:
                next_beat = time.monotonic() + _BEAT
                line = self._counts()
            self._send(self._counts() if line is None else line)
            if line is None:
                return

    def _counts(self) -> bytes:
        if self._worker is None or self._pulse is None or self._times is None:
            return b""
        content = counts_content(
            self._worker.counts,
            time.monotonic() - self._began,
            times=self._times.histograms(),
            stalled=self._pulse.stalled(),
            begun=self._pulse.begun,
        )
        return report("counts", content)

    def _send(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            pass  # the parent is gone, which is noticed elsewhere


class Member:
    """The worker of this process, and what may end it."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._worker: Worker | None = None
        self._stopping = False
        self._breaking_off = False

    def work(self, orders: Orders) -> None:
        """Run the observers until told to stop; raises what ends it earlier."""
        chain = Chain.load(orders.chain)
        times = RunTimes(chain.observers, logged=orders.log_level == "debug")
        with connect(orders.url, orders.namespace) as db:
            db.client.declare_dead(orders.dead)
            # Known first, and asked afterwards: a stop in between is seen by one of the two.
            self._worker = worker = Worker(db, chain, **orders.settings, listener=times.take)
            if self._stopping:
                worker.stop()
            self._reports.up(worker, times, db.client.owner().decode())
            worker.run()
            if worker.abandoned:
                log.warning(
                    "runs that took too long were given back, and end with the process", runs=worker.abandoned
                )

    def stop(self) -> None:
        """Have `work` return once the runs under way are over, or given back as they take too long.

        For any thread, and for signal handlers.
        """
        self._stopping = True
        if self._worker is not None:
            self._worker.stop()

    def take_signal(self, number: int, _: FrameType | None) -> None:
        """The handler of SIGINT and SIGTERM."""
        if number == signal.SIGTERM:
            self.stop()
        elif self._breaking_off:
            self._breaking_off = False
            raise KeyboardInterrupt

    def obey(self, words: int, given: list[bytes], lines: LineCutter, parent: int) -> None:
        """Do what the parent says, as long as it lives. Runs in a thread of its own."""
        while True:
            for word in given:
                self._do(word)
            readable, _, _ = select.select([words], [], [], _PARENT_LOOK)
            received = os.read(words, 4096) if readable else b""
            # A process that somebody forked from the parent may hold the pipe open.
            if not received and (readable or os.getppid() != parent):
                _print_nowhere()
                self.stop()
                return
            given = lines.feed(received)

    def _do(self, word: bytes) -> None:
        if word == STOP:
            self.stop()
        elif word == BREAK_OFF:
            self._breaking_off = True
            # Not raised from here: only a signal gets the main thread out of the middle of an observer.
            main_thread = threading.main_thread().ident
            assert main_thread is not None
            signal.pthread_kill(main_thread, signal.SIGINT)


def main() -> None:
    """Do what the parent says, and exit."""
    words, reports = _take_pipes()
    lines = LineCutter()
    given: list[bytes] = []
    while not given:
        received = os.read(words, 4096)
        if not received:
            return  # the parent is gone already
        given = lines.feed(received)
    code = _serve(Orders.from_line(given[0]), Reports(reports), words, given[1:], lines)
    end_process(code)
    sys.exit(code)


def _serve(orders: Orders, reports: Reports, words: int, given: list[bytes], lines: LineCutter) -> int:
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info, reports.log],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[orders.log_level.upper()]
        ),
    )
    member = Member(reports)
    for number in HELD_BACK:
        signal.signal(number, member.take_signal)
    # Held back by the parent until somebody was there to take them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    told = (words, given, lines, orders.parent)
    threading.Thread(target=member.obey, args=told, name="percolator-orders", daemon=True).start()
    try:
        return _work(member, orders, reports)
    except KeyboardInterrupt:
        return INTERRUPTED


def _work(member: Member, orders: Orders, reports: Reports) -> int:
    try:
        member.work(orders)
    except Exception as error:  # noqa: BLE001 - the parent tells it
        reports.error(error)
        return FAILED
    finally:
        reports.close()
    return 0


def _take_pipes() -> tuple[int, int]:
    """The ends of the pipes for words and reports, out of reach of an observer that reads or prints.

    What that prints, on stdout or stderr, goes to the pipe of stderr.
    """
    words, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return words, reports


def _print_nowhere() -> None:
    """Without a parent nobody reads the pipe, and an observer that prints would fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.close(nothing)


if __name__ == "__main__":
    main()
