"""Serve the application of ``percolator ui`` with uvicorn, until a signal."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import uvicorn

from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_GRACE: Final = 3
"""Seconds that requests may go on after a signal."""


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of the server. Port 0 takes a free port.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(found[0][4][:2], family=found[0][0])
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on port {port} of {host} ({error.strerror or error}): choose another --port or "
            "--host"
        ) from None


def is_loopback(host: str) -> bool:
    """Return True if only programs of this machine reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PagesServer(uvicorn.Server):
    """A server that leaves signals to its caller, who calls `stop`."""

    def __init__(self, app: ASGIApp, on_stop: Callable[[], object]) -> None:
        # No log of requests: the first one has the token in its URL.
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE,
                ws="none",
                lifespan="off",
            )
        )
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave all signals to the caller."""
        yield

    def stop(self) -> None:
        """End the server, from a signal handler or another thread."""
        self._on_stop()
        self.should_exit = True
