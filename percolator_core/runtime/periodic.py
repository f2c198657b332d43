"""Calls a function at regular intervals in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def periodically(act: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Call ``act`` every ``seconds`` until the block ends. The first call comes after one interval.

    An exception of ``act`` ends the calls, and `threading.excepthook` reports it. ``name`` is the thread's
    name. The end of the block waits for the current call.
    """
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
