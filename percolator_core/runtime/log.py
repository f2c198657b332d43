"""The library's log. It uses the program's configuration of structlog or, if there is none, writes to stderr.

The default of structlog is stdout, where a program writes its results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import structlog


class Log:
    """A logger that reads the configuration at each call, not when the logger is made."""

    __slots__ = ("_name", "_repeated")

    def __init__(self, name: str) -> None:
        self._name = name
        self._repeated: dict[str, tuple[float, int]] = {}

    def debug(self, event: str, **fields: Any) -> None:
        """Log a detail that helps to find a fault."""
        self._logger().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event that needs no action."""
        self._logger().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that may need action."""
        self._logger().warning(event, **fields)

    def warning_once_in(self, seconds: float, event: str, **fields: Any) -> None:
        """Log an event as a warning, but not more than once in ``seconds``: hundreds of runs may have it.

        The field ``left_out`` counts the events that were not logged since the last one.
        """
        now = time.monotonic()
        until, left_out = self._repeated.get(event, (now, 0))
        if now < until:
            self._repeated[event] = until, left_out + 1
            return
        self._repeated[event] = now + seconds, 0
        if left_out:
            fields["left_out"] = left_out
        self.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an event that needs action."""
        self._logger().error(event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an unexpected error with the traceback of the current exception."""
        self._logger().exception(event, **fields)

    def relay(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        """Log a line of another process at its level, or at ``info`` if the level is unknown."""
        write = {"debug": self.debug, "warning": self.warning, "error": self.error, "critical": self.error}
        write.get(level, self.info)(event, **fields)

    def _logger(self) -> Any:
        if structlog.is_configured():
            return structlog.get_logger(self._name)
        return structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
