"""The output of a command: its result on stdout, as text or JSON; progress and errors on stderr.

``--json`` always prints one JSON value on stdout: the result, or ``{"error": …}``.
"""

from __future__ import annotations

import itertools
import json
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from percolator_core.errors import (
    ConfigurationError,
    PercolatorError,
    StoreUnavailable,
    UnknownColumn,
    UnknownTable,
)

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.progress import Progress
    from rich.status import Status
    from rich.table import Column

_GAP: Final = 2
"""The blanks between two columns of a table."""

_PIPE_WIDTH: Final = 10_000
"""The width of output to a file or a pipe, so that a table is neither cut nor folded."""


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 3
    NOT_IDLE = 4
    INTERRUPTED = 130


EXIT_CODES: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "the command failed; the error says why",
    ExitCode.USAGE: "wrong usage, an unknown table or other name, or an invalid declaration or setting",
    ExitCode.UNAVAILABLE: "the store does not exist, does not answer, or refuses writes",
    ExitCode.NOT_IDLE: "not idle within the timeout, or a cell is in quarantine",
    ExitCode.INTERRUPTED: "interrupted; the message says how to continue",
}
"""The meaning of each code, for ``percolator --help`` and the docs."""


class Failure(PercolatorError):
    """A command failed; ``details`` are added to the error in JSON."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILURE, **details: object) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


_CODES: Final[Mapping[type[BaseException], ExitCode]] = {
    KeyboardInterrupt: ExitCode.INTERRUPTED,
    StoreUnavailable: ExitCode.UNAVAILABLE,
    ConfigurationError: ExitCode.USAGE,
    UnknownTable: ExitCode.USAGE,
    UnknownColumn: ExitCode.USAGE,
    TimeoutError: ExitCode.NOT_IDLE,
}


class Output:
    """Print a command's results, notes and errors."""

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self.carry_on = "run the same command again to continue"
        """The way to continue after an interruption; long commands set a more exact text."""
        self.console = _console(sys.stdout)
        self.errors = _console(sys.stderr)
        self._printed_json = False

    def result(self, data: Any, *human: RenderableType) -> None:
        """Print a command's result: ``data`` as JSON with ``--json``, else the renderables."""
        if self.as_json:
            self._print_json(data)
            return
        for renderable in human:
            self.console.print(renderable, soft_wrap=isinstance(renderable, str), highlight=False)

    def stream(
        self,
        head: Mapping[str, Any],
        name: str,
        found: Iterable[tuple[Any, Sequence[RenderableType]]],
        tail: Mapping[str, Any] | None = None,
    ) -> int:
        """Print a long result item by item; return the number of items.

        Each item is a pair: the data for JSON, and the renderables. The JSON object has the keys of ``head``,
        then a list with the key ``name``, and then the keys of ``tail``.
        """
        count = 0
        pieces = iter(found)
        # The first item is read before anything is printed, so that an early error is one JSON value.
        first = list(itertools.islice(pieces, 1))
        if self.as_json:
            self._printed_json = True
            sys.stdout.write(
                f"{json.dumps(head, ensure_ascii=False)[:-1]}{', ' if head else ''}{json.dumps(name)}: ["
            )
        for count, (data, human) in enumerate(itertools.chain(first, pieces), 1):
            if self.as_json:
                separator = ",\n" if count > 1 else "\n"
                sys.stdout.write(separator + json.dumps(data, ensure_ascii=False))
            else:
                for renderable in human:
                    self.console.print(renderable, soft_wrap=True, highlight=False)
        if self.as_json:
            rest = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in (tail or {}).items())
            sys.stdout.write(f"]{rest}}}\n")
            sys.stdout.flush()
        return count

    def raw(self, data: bytes) -> None:
        """Write bytes to stdout unchanged."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def note(self, text: str) -> None:
        """Print a note on stderr that is not part of the result, such as the next step."""
        self.errors.print(Text(text), soft_wrap=True)

    def error(self, error: BaseException) -> ExitCode:
        """Report the error that ended the command, one line per problem; return the exit code."""
        code = exit_code(error)
        if self.debug:
            sys.stderr.write("".join(traceback.format_exception(error)))
        lines = _lines(error)
        for line in lines:
            self.errors.print(Text.assemble(("error:", "bold red"), " ", line), soft_wrap=True)
        if self.as_json and not self._printed_json:
            kind = type(error).__name__
            details: dict[str, Any] = {"kind": kind, "message": lines[0], "exit_code": int(code)}
            if len(lines) > 1:
                details["messages"] = lines
            if isinstance(getattr(error, "cycle", None), list):
                details["cycle"] = error.cycle  # type: ignore[attr-defined]
            self._print_json({"error": details | getattr(error, "details", {})})
        return code

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show a progress bar on stderr, on a terminal only."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.errors,
            transient=True,
            disable=not self.errors.is_terminal,
        ) as progress:
            yield progress

    @contextmanager
    def status(self, text: str) -> Iterator[Status]:
        """Show a line on stderr that can be updated, on a terminal only."""
        from rich.status import Status

        status = Status(text, console=self.errors)
        if self.errors.is_terminal:
            status.start()
        try:
            yield status
        finally:
            status.stop()

    def _print_json(self, data: Any) -> None:
        self._printed_json = True
        sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")
        sys.stdout.flush()


class PlainTable(Table):
    """A table that breaks lines between words only.

    rich itself makes wide columns narrower without regard to their words. This table divides the width so
    that each column has room for its longest word. If the width is too small for this, each row becomes a
    paragraph.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needs = [self._need(console, options, column) for column in self.columns]
        left = options.max_width - _GAP * (len(needs) - 1) - sum(need.minimum for need in needs)
        if left < 0 and self.row_count:
            yield from self._paragraphs(options.max_width)
            return
        # The columns that want least get it first, so that few columns have several lines.
        for need, column in sorted(zip(needs, self.columns, strict=True), key=lambda one: one[0].span):
            more = min(need.span, max(0, left))
            column.width = need.minimum + more
            left -= more
        yield from super().__rich_console__(console, options)

    def _need(self, console: Console, options: ConsoleOptions, column: Column) -> Measurement:
        """Return the widths of the column's longest word and of its longest line."""
        found = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
        widest = max(one.maximum for one in found)
        return Measurement(widest if column.no_wrap else max(one.minimum for one in found), widest)

    def _paragraphs(self, width: int) -> Iterator[Text]:
        """Yield the lines of a paragraph for each row: the row's first cell, then ``name value`` pairs."""
        if self.title:
            yield Text(str(self.title), "bold")
        cells = [list(column.cells) for column in self.columns]
        for row in range(self.row_count):
            line = Text()
            for column, found in zip(self.columns, cells, strict=True):
                cell = found[row]
                value = cell if isinstance(cell, Text) else Text(str(cell))
                if not value.plain:
                    continue
                pair = Text.assemble((f"{column.header} " if line and column.header else "", "dim"), value)
                if line and line.cell_len + _GAP + pair.cell_len > width:
                    yield line
                    line = Text(" " * _GAP)
                elif line:
                    line.append(" " * _GAP)
                line.append_text(pair)
            yield line


def table(*columns: str, title: str | None = None) -> Table:
    """Return a plain table. A column whose name begins with ``>`` has numbers, and is right-aligned."""
    made = PlainTable(
        title=title, box=None, title_justify="left", title_style="bold", header_style="dim", pad_edge=False
    )
    for column in columns:
        right = column.startswith(">")
        name = column.removeprefix(">")
        made.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return made


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an error."""
    if isinstance(error, Failure):
        return error.code
    if is_usage_error(error):
        return ExitCode.USAGE
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ExitCode.FAILURE)


def is_usage_error(error: BaseException) -> bool:
    """Return True if typer refused the arguments. The class of the error depends on typer's version."""
    return hasattr(error, "format_message")


def _lines(error: BaseException) -> list[str]:
    """Return the lines of the error; a ConfigurationError has one line per problem."""
    if is_usage_error(error):
        text = str(error.format_message())  # type: ignore[attr-defined]
    elif isinstance(error, PercolatorError | TimeoutError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)"
    if not isinstance(error, ConfigurationError):
        text = " ".join(text.split())
    return [line for line in text.splitlines() if line.strip()] or [type(error).__name__]


def _console(file: Any) -> Console:
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


_CURRENT: ContextVar[Output | None] = ContextVar("output", default=None)


def begin(*, as_json: bool, debug: bool) -> Output:
    """Create the output of the command that starts now."""
    made = Output(as_json=as_json, debug=debug)
    _CURRENT.set(made)
    return made


def current() -> Output:
    """Return the output of the running command."""
    found = _CURRENT.get()
    return found if found is not None else begin(as_json=False, debug=False)
