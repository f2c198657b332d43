"""The client processes of a run: started, killed and replaced, until a number of transactions is done."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from percolator_torture.clients.client_process import Orders
from percolator_torture.clients.gauge import FIELDS, Gauge

_PAUSE: Final = 0.003
_FINISH_LIMIT: Final = 90.0


class _Seat:
    """A share of the work, and the processes that have done it."""

    def __init__(self, number: int, share: int) -> None:
        self.number = number
        self.share = share
        self.gauges: list[Gauge] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.name = ""

    @property
    def done(self) -> int:
        return sum(gauge["done"] for gauge in self.gauges)

    @property
    def at_work(self) -> bool:
        """True if its process has started and is not about to end."""
        return (
            self.process is not None
            and self.process.poll() is None
            and self.gauges[-1]["done"] > 0
            and self.done < self.share
        )


class Crew:
    """``orders.clients`` processes that run ``transactions`` steps together.

    A new process replaces a killed process and takes over the rest of its share. A context manager that
    leaves no process behind. ``program`` is the command of a client.
    """

    def __init__(self, orders: Orders, transactions: int, *, program: Sequence[str]) -> None:
        self._orders = orders
        self._program = list(program)
        self._folder = Path(orders.folder)
        self._killed: set[subprocess.Popen[bytes]] = set()
        self._finishing = False
        self.wrong: list[str] = []
        """Processes that ended unexpectedly."""
        share, rest = divmod(transactions, max(1, orders.clients))
        self._seats = [_Seat(number, share + (number < rest)) for number in range(orders.clients)]

    @property
    def active(self) -> bool:
        """True if any process runs."""
        return any(seat.process is not None for seat in self._seats)

    @property
    def done(self) -> int:
        """Finished transactions."""
        return sum(seat.done for seat in self._seats)

    @property
    def started(self) -> bool:
        """True if every process has finished a transaction, or has ended."""
        return all(seat.process is None or seat.done for seat in self._seats)

    def totals(self) -> Counter[str]:
        """The sums of all gauges."""
        totals: Counter[str] = Counter()
        for seat in self._seats:
            for gauge in seat.gauges:
                totals.update({field: gauge[field] for field in FIELDS})
        return totals

    def complaints(self) -> list[str]:
        """The errors of the workloads while they ran, and of the processes."""
        found = list(self.wrong)
        for path in sorted(self._folder.glob("*.wrong")):
            found += path.read_text(encoding="utf-8").splitlines()
        return found

    def tend(self) -> None:
        """Remove ended processes and replace killed processes; wait a moment."""
        for seat in self._seats:
            if seat.process is not None and seat.process.poll() is not None:
                self._bury(seat)
        time.sleep(_PAUSE)

    def strike(self, seat: int, signum: signal.Signals) -> subprocess.Popen[bytes] | None:
        """Send a signal to the process of the seat, or of the next seat with a running process."""
        for one in self._seats[seat:] + self._seats[:seat]:
            process = self.process_of(one.number)
            if process is not None:
                if signum == signal.SIGKILL:
                    self._killed.add(process)
                process.send_signal(signum)
                return process
        return None

    def kill(self, seat: int, order: str = "") -> subprocess.Popen[bytes] | None:
        """Kill the process of the seat, or send it the order to kill itself; None if it is not at work."""
        process = self.process_of(seat)
        if process is not None:
            self._killed.add(process)
            if order:
                self._tell(process, order)
            else:
                process.kill()
        return process

    def process_of(self, seat: int) -> subprocess.Popen[bytes] | None:
        """Return the process of a seat; None if it has not started, or is about to end."""
        return self._seats[seat].process if self._seats[seat].at_work else None

    def finish(self) -> None:
        """Let all processes finish their transactions, and wait for them. Idempotent."""
        self._finishing = True
        for seat in self._seats:
            if seat.process is not None:
                self._tell(seat.process, "finish")
        until = time.monotonic() + _FINISH_LIMIT
        while self.active:
            self.tend()
            if time.monotonic() > until:
                self.wrong.append(f"clients that had to finish still ran after {_FINISH_LIMIT:g} s")
                return

    def __enter__(self) -> Self:
        for seat in self._seats:
            if seat.share:
                self._start(seat)
        return self

    def __exit__(self, *_: object) -> None:
        for seat in self._seats:
            if seat.process is not None:
                seat.process.kill()
                seat.process.wait()
                self._close(seat.process)
                seat.process = None

    # Internals.

    def _start(self, seat: _Seat) -> None:
        seat.name = f"{self._orders.name}{seat.number}.{len(seat.gauges) + 1}"
        orders = dataclasses.replace(
            self._orders, name=seat.name, seat=seat.number, first=seat.done, stop=seat.share
        )
        seat.gauges.append(Gauge(self._folder / f"{seat.name}.gauge"))
        with (self._folder / f"{seat.name}.stderr").open("wb") as sink:
            seat.process = subprocess.Popen(
                self._program, stdin=subprocess.PIPE, stdout=sink, stderr=sink, start_new_session=True
            )
        assert seat.process.stdin is not None
        try:
            seat.process.stdin.write(orders.to_json().encode() + b"\n")
            seat.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is noticed like any other
        if self._finishing:
            self._tell(seat.process, "finish")

    def _bury(self, seat: _Seat) -> None:
        process = seat.process
        assert process is not None
        self._close(process)
        seat.process = None
        if process in self._killed and process.returncode == -signal.SIGKILL:
            if seat.done < seat.share and not self._finishing:
                self._start(seat)
        elif process.returncode:
            printed = (self._folder / f"{seat.name}.stderr").read_text(errors="replace").strip()
            self.wrong.append(
                f"client {seat.name} ended with {process.returncode}: {printed[-2000:] or 'without a word'}"
            )

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], order: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(f"{order}\n".encode())
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it has ended already
