"""The worker processes of one store, and the CPU time of all processes while they work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from percolator_bench.tpce.orders import Done, Share, Task
from percolator_core.errors import StoreUnavailable

_STOP_LIMIT: Final = 30.0
"""A worker has to end within this many seconds."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stream of items, processed by some workers.

    ``seconds`` is wall time. ``clients`` and ``server`` are CPU seconds for each transaction: those of the
    worker processes, and those of all processes of the server.
    """

    transactions: int
    attempts: int
    seconds: float
    clients: float
    server: float

    @property
    def rate(self) -> float:
        """Transactions a second."""
        return self.transactions / self.seconds


class Fleet:
    """Worker processes connected to one store; ``server_cpu`` returns the store's CPU time so far."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]], server_cpu: Callable[[], float]) -> None:
        self._processes = processes
        self.server_cpu = server_cpu

    def run(self, workers: int, seed: str, first_trade: int, count: int) -> Run:
        """Let ``workers`` of the processes do the first ``count`` items of a stream.

        Raises:
            StoreUnavailable: a worker failed; its error is on the standard error.
        """
        crew = self._processes[:workers]
        for number, process in enumerate(crew):
            _tell(process, json.dumps(asdict(Share(seed, first_trade, count, number, workers))))
        for process in crew:
            _hear(process)
        server, started = self.server_cpu(), time.perf_counter()
        for process in crew:
            _tell(process, "go")
        done = [Done(**_hear(process)) for process in crew]
        seconds, server = time.perf_counter() - started, self.server_cpu() - server
        transactions = sum(one.transactions for one in done)
        return Run(
            transactions=transactions,
            attempts=sum(one.attempts for one in done),
            seconds=seconds,
            clients=sum(one.cpu for one in done) / transactions,
            server=server / transactions,
        )


@contextmanager
def fleet(task: Task, processes: int, server_cpu: Callable[[], float]) -> Iterator[Fleet]:
    """Start ``processes`` worker processes, connected and idle."""
    started: list[subprocess.Popen[str]] = []
    try:
        for _ in range(processes):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "percolator_bench.tpce.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    # Ctrl-C goes to the benchmark, which then ends its workers.
                    start_new_session=True,
                )
            )
            _tell(started[-1], json.dumps(asdict(task)))
        for process in started:
            _hear(process)
        yield Fleet(started, server_cpu)
    except BaseException:
        for process in started:
            process.terminate()
        raise
    finally:
        for process in started:
            _end(process)


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the missing answer is reported as an ended worker


def _hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise StoreUnavailable("a worker process of the tpce benchmark failed; its error is printed above")
    return json.loads(line)


def _end(process: subprocess.Popen[str]) -> None:
    """End the worker: it ends when its input does."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass
    process.stdout.close()
    try:
        process.wait(_STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
