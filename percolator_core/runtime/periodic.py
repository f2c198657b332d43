"""What is done again and again, in a thread of its own, while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def periodically(act: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Calls ``act`` every so many seconds until the block ends, at first after one such pause.

    What it raises ends the calls, and is told as of any thread. ``name`` is the thread's. The block's end
    waits for a call that is under way.
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
