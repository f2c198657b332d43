"""One worker process of a crew: ``python -m percolator_core.crew.member``, with commands on stdin.

The process ends on the parent's command, on SIGTERM, and after the end of its parent, as `Worker.stop` ends a
worker. A Ctrl-C in a terminal reaches parent and children. The parent reacts to it, and the child ignores it.
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
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import structlog

from percolator_core.crew.messages import (
    BLOCKED,
    BREAK_OFF,
    FAILED,
    INTERRUPTED,
    STOP,
    LineCutter,
    Orders,
    counts_content,
    error_content,
    report,
)
from percolator_core.database import connect
from percolator_core.observers import Chain
from percolator_core.runtime.exit import end_process
from percolator_core.runtime.log import Log
from percolator_core.worker import Worker
from percolator_core.worker.runs import RunTimes

_BEAT: Final = 0.25
"""Seconds between two reports of the counts. If a process is killed, its last counts are lost."""

_PARENT_LOOK: Final = 1.0
"""Seconds between two checks that the parent lives. Usually the pipe closes as soon as the parent dies."""

_LAST_REPORT: Final = 10.0
"""Seconds to wait for a parent that does not read its pipe."""

log = Log("percolator.worker")


class Reports:
    """The reports to the parent, written by a thread.

    So an observer that logs never waits for the parent, and a timeout never interrupts the writing of a line.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._times: RunTimes | None = None
        self._began = 0.0
        self._thread = threading.Thread(target=self._write, name="percolator-reports", daemon=True)
        self._thread.start()

    def up(self, worker: Worker, times: RunTimes, name: str) -> None:
        """Report the start of the worker with its name in locks; from now on, report its counts and times."""
        self._times, self._began = times, time.monotonic()
        self._worker = worker
        self._lines.put(report("up", name))

    def log(self, _: Any, __: str, event: Any) -> Any:
        """Report a log line; structlog calls this as its last processor."""
        self._lines.put(report("log", dict(event)))
        raise structlog.DropEvent

    def error(self, error: BaseException) -> None:
        """Report the error that ends the process."""
        trace = "".join(traceback.format_exception(error))
        self._lines.put(report("error", error_content(error, trace)))

    def close(self) -> None:
        """Report the last counts, and wait until all reports are written."""
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
        if self._worker is None or self._times is None:
            return b""
        content = counts_content(
            self._worker.counts,
            time.monotonic() - self._began,
            times=self._times.histograms(),
            stalled=self._worker.stalled(),
            begun=self._worker.begun,
        )
        return report("counts", content)

    def _send(self, line: bytes) -> None:
        with suppress(OSError):  # the parent has ended; `Member.obey` notices
            while line:
                line = line[os.write(self._descriptor, line) :]


class Member:
    """The worker of this process, and the commands and signals that end it."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._worker: Worker | None = None
        self._stopping = False
        self._breaking_off = False

    def work(self, orders: Orders) -> None:
        """Run the observers until `stop` is called. If an error ends them earlier, raise it."""
        chain = Chain.load(orders.chain)
        times = RunTimes(chain.observers, logged=orders.log_level == "debug")
        with connect(orders.url, orders.namespace) as db:
            db.client.declare_dead(orders.dead)
            # First set the worker, then check for a stop. A stop before the check is found by the check, and
            # a later one finds the worker.
            self._worker = worker = Worker(db, chain, **orders.settings, listener=times.take)
            if self._stopping:
                worker.stop()
            self._reports.up(worker, times, db.client.owner().decode())
            worker.run()
            if worker.abandoned:
                log.warning(
                    "the cells of runs that took too long were given back; the runs end with the process",
                    runs=worker.abandoned,
                )

    def stop(self) -> None:
        """Stop as `Worker.stop` does. Any thread and any signal handler may call this method."""
        self._stopping = True
        if self._worker is not None:
            self._worker.stop()

    def take_signal(self, number: int, _: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        if number == signal.SIGTERM:
            self.stop()
        elif self._breaking_off:
            self._breaking_off = False
            raise KeyboardInterrupt

    def obey(self, words: int, given: list[bytes], lines: LineCutter, parent: int) -> None:
        """Execute the commands in the pipe ``words`` as long as the parent lives. Runs in a thread."""
        while True:
            for word in given:
                self._do(word)
            readable, _, _ = select.select([words], [], [], _PARENT_LOOK)
            received = os.read(words, 4096) if readable else b""
            # Another process that was forked from the parent may keep the pipe open, so the parent's id is
            # checked, too.
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
            # Only a signal can interrupt the main thread in the middle of an observer.
            main_thread = threading.main_thread().ident
            assert main_thread is not None
            signal.pthread_kill(main_thread, signal.SIGINT)


def main() -> None:
    """Run the worker that the parent has described on stdin, and exit."""
    words, reports = _take_pipes()
    lines = LineCutter()
    given: list[bytes] = []
    while not given:
        received = os.read(words, 4096)
        if not received:
            return  # the parent has ended already
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
    for number in BLOCKED:
        signal.signal(number, member.take_signal)
    # The parent started this process with these signals blocked; now they have handlers.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    arguments = (words, given, lines, orders.parent)
    threading.Thread(target=member.obey, args=arguments, name="percolator-orders", daemon=True).start()
    try:
        return _work(member, orders, reports)
    except KeyboardInterrupt:
        return INTERRUPTED


def _work(member: Member, orders: Orders, reports: Reports) -> int:
    try:
        member.work(orders)
    except Exception as error:  # noqa: BLE001 - the parent reports it
        reports.error(error)
        return FAILED
    finally:
        reports.close()
    return 0


def _take_pipes() -> tuple[int, int]:
    """Move the pipes of commands and reports away from stdin and stdout; return their descriptors.

    Then observers do not use these pipes by accident: their stdout and stderr go to the pipe of stderr.
    """
    words, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return words, reports


def _print_nowhere() -> None:
    """Discard the output of observers, whose printing would fail without a reader of the pipe."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.close(nothing)


if __name__ == "__main__":
    main()
