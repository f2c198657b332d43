"""Write log lines to stderr; stdout is for the result."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import structlog

from percolator_core.notation.bytestext import show_bytes

if TYPE_CHECKING:
    from percolator_core.cli.output import Output

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


def configure(output: Output, level: LogLevel = "info") -> None:
    """Log lines of ``level`` and above: as text, or with ``--json`` as one JSON object per line."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _printable_rows,
    ]
    if output.as_json:
        processors += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=output.errors.is_terminal,
            pad_event_to=0,
            pad_level=False,
            # rich's tracebacks print the values of variables, which are the user's data.
            exception_formatter=structlog.dev.plain_traceback,
        )
        processors.append(renderer)
    structlog.configure(
        processors=processors,
        # A status line on a terminal replaces sys.stderr, so it is looked up for each log line.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
    )


def _printable_rows(_: Any, __: str, event: Any) -> Any:
    """Show row keys as the commands print them. This function is a structlog processor."""
    return {name: show_bytes(value) if isinstance(value, bytes) else value for name, value in event.items()}
