"""Signals while observers run: the first asks them to end, a second Ctrl-C ends at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Received:
    """The first signal that came; 0 while none has."""

    number: int = 0


@contextmanager
def stopping(stop: Callable[[], object]) -> Iterator[Received]:
    """Call ``stop`` on SIGINT and SIGTERM instead of breaking off in the middle of something."""
    received = Received()

    def take(number: int, _: FrameType | None) -> None:
        if received.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.number = received.number or number
        stop()

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
