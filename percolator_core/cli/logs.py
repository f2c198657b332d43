"""Log lines of the library, on stderr: stdout belongs to the result."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import structlog

from percolator_core.cli.bytestext import show_bytes

if TYPE_CHECKING:
    from percolator_core.cli.output import Output


class _Stderr:
    """Whatever is stderr when a line is written: a status line on a terminal puts itself in between."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure(output: Output) -> None:
    """Log for people, or under ``--json`` one JSON object a line."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _printable_rows,
    ]
    if output.as_json:
        processors.append(structlog.processors.JSONRenderer(ensure_ascii=False))
    else:
        colors = output.errors.is_terminal
        processors.append(structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, pad_level=False))
    stderr: Any = _Stderr()
    structlog.configure(processors=processors, logger_factory=structlog.PrintLoggerFactory(stderr))


def _printable_rows(_: Any, __: str, event: Any) -> Any:
    """A structlog processor: row keys as the commands print them."""
    return {name: show_bytes(value) if isinstance(value, bytes) else value for name, value in event.items()}
