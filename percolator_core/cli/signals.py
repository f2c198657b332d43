"""Handle signals while observers run: the first one stops them, a second Ctrl-C interrupts at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Received:
    """The number of the first signal; 0 while there is none."""

    number: int = 0


@contextmanager
def handling(handlers: Mapping[int, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    """Set these handlers, one for each signal number, during the block."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopping(stop: Callable[[], object], *others: int) -> Iterator[Received]:
    """Call ``stop`` on the first SIGINT, SIGTERM or signal of ``others``, and let the current step finish."""
    received = Received()

    def take(number: int, _: FrameType | None) -> None:
        if received.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.number = received.number or number
        stop()

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM, *others), take)):
        yield received
