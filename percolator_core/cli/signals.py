"""Handle signals while observers run: the first one stops them, a second Ctrl-C interrupts at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Received:
    """The number of the first signal; 0 while there is none."""

    number: int = 0


@contextmanager
def stopping(stop: Callable[[], object]) -> Iterator[Received]:
    """Call ``stop`` on the first SIGINT or SIGTERM, instead of raising in the middle of a step."""
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
