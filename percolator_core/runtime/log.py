"""The library's log lines: as the program configured structlog, or else on stderr.

structlog's own default writes to stdout, where a program's results are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import structlog


class Log:
    """A logger that looks at the configuration when it is used, not when it is made."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **fields: Any) -> None:
        """Something for whoever looks for a fault."""
        self._logger().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Something that mends itself."""
        self._logger().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something that somebody may have to mend."""
        self._logger().warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something that somebody has to mend."""
        self._logger().error(event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error that nobody foresaw, with the traceback of the exception at hand."""
        self._logger().exception(event, **fields)

    def relay(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        """Log a line of another process at its level; lines of an unknown level are ``info``."""
        write = {"debug": self.debug, "warning": self.warning, "error": self.error, "critical": self.error}
        write.get(level, self.info)(event, **fields)

    def _logger(self) -> Any:
        if structlog.is_configured():
            return structlog.get_logger(self._name)
        return structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
