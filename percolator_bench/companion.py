"""A process that works during a measurement, at the other end of a pipe."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@contextmanager
def companion(name: str, target: Callable[..., object], *arguments: Any) -> Iterator[Connection]:
    """Run ``target`` with the arguments and its end of a pipe, until the block ends; yield the other end.

    ``target`` has to send a first message when it is up, and to end when the pipe is closed.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=(*arguments, theirs), name=f"percolator-bench-{name}", daemon=True
    )
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
    finally:
        ours.close()
        process.join(10.0)
        if process.is_alive():
            process.kill()
            process.join()
