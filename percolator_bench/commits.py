"""Another process that commits single writes one after the other, and reports how long each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from percolator_bench.companion import companion
from percolator_bench.servers import NAMESPACE
from percolator_core.database import connect

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

COMMITTED: Final = "bench_commits"
_ROWS: Final = 1000
_PAUSE: Final = 0.001
_PERCENT: Final = 0.99


class Commits:
    """The process: it commits while `during` runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def during(self, run: Callable[[], object]) -> float:
        """Call ``run``; return the 99th percentile of the commits' durations meanwhile, in milliseconds."""
        self._connection.send("begin")
        run()
        self._connection.send("end")
        seconds: list[float] = sorted(self._connection.recv())
        return 1e3 * seconds[int(_PERCENT * len(seconds))]


@contextmanager
def commits(url: str) -> Iterator[Commits]:
    """Run the process until the block ends."""
    with companion("commits", commit, url) as connection:
        yield Commits(connection)


def commit(url: str, connection: Connection) -> None:
    """After each message, commit until the next message arrives; then send the seconds of each commit."""
    with connect(url, namespace=NAMESPACE) as db:
        db.create_table(COMMITTED)

        def one(number: int) -> float:
            began = time.perf_counter()
            db.run(lambda t: t.set(COMMITTED, f"row {number % _ROWS}", "value", b"%d" % number))
            return time.perf_counter() - began

        one(0)
        connection.send("up")
        try:
            while connection.recv():
                found = [one(0)]
                while not connection.poll():
                    found.append(one(len(found)))
                    time.sleep(_PAUSE)
                connection.recv()
                connection.send(found)
        except (EOFError, OSError):
            return
