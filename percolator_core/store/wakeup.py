"""How another thread wakes a hub that waits for its sockets."""

from __future__ import annotations

import select
import socket
from typing import Any


class Wakeup:
    """A pair of sockets: the hub's thread polls one end, any thread writes to the other."""

    __slots__ = ("_receiving", "_sending")

    def __init__(self) -> None:
        self._receiving, self._sending = socket.socketpair()
        self._receiving.setblocking(False)
        self._sending.setblocking(False)

    def wake(self) -> None:
        """End the current `wait`, or the next one."""
        try:
            self._sending.send(b"!")
        except (BlockingIOError, OSError):
            pass  # a full pipe wakes the hub as well; a closed one belongs to a hub that has ended

    def wait(self, seconds: float | None, *sockets: Any) -> None:
        """Wait for `wake`, for input on one of the sockets, or for ``seconds`` (None: no limit)."""
        poll = select.poll()
        for waited_for in (self._receiving, *sockets):
            poll.register(waited_for, select.POLLIN)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        if any(descriptor == self._receiving.fileno() for descriptor, _ in ready):
            try:
                while self._receiving.recv(4096):
                    pass
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Close both sockets."""
        self._receiving.close()
        self._sending.close()
