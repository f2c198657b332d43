"""``trace``: the runs of observers that were caused by changes to a row."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.text import Text
from rich.tree import Tree

from percolator_core.cli import output as outputs
from percolator_core.cli.data import AnyRow, TableName
from percolator_core.cli.options import ChainPath, StoreOptions, load_chain
from percolator_core.cli.output import Failure
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of
from percolator_core.notation.bytestext import json_bytes, show_bytes
from percolator_core.notation.times import show_time
from percolator_core.notation.typedtext import Rows, parse_row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from percolator_core.admin.trace import Change, Outcome, Run, Trace
    from percolator_core.observers import Chain
    from percolator_core.schema.definitions import TableDefinition

_BRANCHES: Final = 20
"""At most this many branches of a run are drawn; --json has all."""

_LONGEST_ROW: Final = 80
"""At most this many bytes of a row key are shown."""

_STYLES: Final = {"quarantined": "red", "collected": "dim", "unobserved": "dim"}


def trace(
    path: ChainPath,
    table: TableName,
    row: AnyRow,
    *,
    column: Annotated[str | None, typer.Option("--column", metavar="C", help="Only this column.")] = None,
    change: Annotated[
        str,
        typer.Option(
            "--change", metavar="latest|all|TIMESTAMP", help="Which changes of each column to follow."
        ),
    ] = "latest",
    depth: Annotated[int, typer.Option(min=1, help="Follow chains of at most this many runs.")] = 20,
    store: StoreOptions,
) -> None:
    """Show all runs of observers that were caused by changes to a row, with their times."""
    from percolator_core.admin.trace import trace as read_trace
    from percolator_core.admin.trace.text import missing_parts, summary

    wanted = _parse_change(change)
    chain = load_chain(path, import_functions=False)
    with store.existing(chain) as db:
        key = parse_row(db.catalog.table(table).definition, row)
        found = read_trace(db, chain, table, key, column, change=wanted, depth=depth)
        rows = _Rows(chain, db.tables())
    if not found.changes:
        raise Failure(
            f"row {rows.show(table, key, _LONGEST_ROW)} of {table} has no such change in an observed "
            f"column, or garbage collection has dropped it: `percolator scan {table}` lists the rows"
        )
    output = outputs.current()
    sums = ("seconds", "waiting", "quarantined", "unrecorded", "unfollowed")
    data = _plain(asdict(found), rows) | {name: getattr(found, name) for name in sums}
    output.result(data, *_Drawing(found, rows).trees, Text(summary(found, _ms)))
    for note in missing_parts(found, chain, str(path / "chain.yaml"), "--depth goes further"):
        output.note(note)


class _Rows(Rows):
    """Row keys for a trace. Rows of export queues are shown with the key of their items, too."""

    def __init__(self, chain: Chain, definitions: Iterable[TableDefinition]) -> None:
        super().__init__(definitions)
        self._chain = chain

    def show(self, table: str, row: bytes, longest: int | None = None) -> str:
        shown, key = super().show(table, row, longest), self.exported(table, row)
        return shown if key is None else f"{shown} (key {show_bytes(key, longest)})"

    def exported(self, table: str, row: bytes) -> bytes | None:
        """Return the key of the item of an export queue's row; None for other rows."""
        from percolator_core.recipes.export import exported_key

        return exported_key(self._chain, table, row)


class _Drawing:
    """Draws the trace as trees. Each run is drawn once; later lines refer to its number."""

    def __init__(self, found: Trace, rows: Rows) -> None:
        self._rows = rows
        self._runs = {run.number: run for run in found.runs}
        self._met = Counter(outcome.run for outcome in found.outcomes if outcome.run is not None)
        self._drawn: set[int] = set()
        self.trees = [self._tree(change) for change in found.changes]

    def _tree(self, change: Change) -> Tree:
        from percolator_core.admin.trace.text import KIND_VERBS

        when = "" if change.timestamp is None else f" {_time(change.timestamp)}"
        root = Tree(Text.assemble((self._cell(change), "bold"), f"  {KIND_VERBS[change.kind]}{when}"))
        # A stack, not recursion: a feedback loop of the chain may be a thousand runs deep.
        todo: list[tuple[Tree, Change, Outcome | int]] = [
            (root, change, outcome) for outcome in reversed(change.outcomes)
        ]
        while todo:
            tree, cause, outcome = todo.pop()
            if isinstance(outcome, int):
                tree.add(Text(f"and {outcome:,} more", "dim"))
                continue
            run = self._runs.get(outcome.run or 0)
            branch = tree.add(self._line(cause, outcome, run, top=tree is root))
            if run is None or run.number in self._drawn:
                continue
            self._drawn.add(run.number)
            pairs = [(one, each) for one in run.changes for each in one.outcomes]
            more = len(pairs[_BRANCHES:]) + run.unfollowed
            if more:
                todo.append((branch, cause, more))
            todo += [(branch, one, each) for one, each in reversed(pairs[:_BRANCHES])]
        return root

    def _line(self, change: Change, outcome: Outcome, run: Run | None, *, top: bool) -> Text:
        from percolator_core.admin.trace.text import state_text

        line = Text.assemble((outcome.observer, "bold"))
        if run is not None and self._met[run.number] > 1:
            line.append(f" #{run.number}")
        if not top:
            line.append(f"  {self._cell(change)}", "dim")
        if run is None:
            state = state_text(outcome, " ".join((outcome.error or "").split()))
            return line.append(f"  {state}", _STYLES.get(outcome.state, "yellow"))
        line.append("  again, began" if outcome.again else "  began")
        line.append(f" {_time(run.start_timestamp)}" if outcome.lag is None else f" +{_ms(outcome.lag)}")
        if run.number in self._drawn:
            return line.append(", shown above")
        return line.append(f", took {_ms(run.seconds)}{_details(run)}")

    def _cell(self, change: Change) -> str:
        row = self._rows.show(change.table, change.row, _LONGEST_ROW)
        return f"{change.table} {row} {abbreviated(change.column)}"


def _details(run: Run) -> str:
    from percolator_core.admin.trace.text import run_notes

    said = "".join(f", {what}" for what in run_notes(run))
    if not run.recorded:
        return said
    counts = Counter((f"{cell.table}.{abbreviated(cell.column)}", cell.kind) for cell in run.cells)
    wrote = [
        (f"{count:,} " if count > 1 else "") + name + ("" if kind == "put" else f" ({kind})")
        for (name, kind), count in counts.items()
    ]
    if run.written > len(run.cells):
        wrote.append(f"{count_of(run.written - len(run.cells), 'cell')} more")
    return f"{said}: {', '.join(wrote) or 'wrote nothing'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _time(timestamp: int) -> str:
    # Several commits may fall into one millisecond.
    return show_time(timestamp, to="microseconds")


def _plain(data: Any, rows: _Rows) -> Any:
    """Convert a trace, or a part of it, to types that JSON has."""
    if isinstance(data, bytes):
        return json_bytes(data)
    if isinstance(data, dict):
        # Every object with a row key has the table, too.
        found = {
            name: rows.data(data["table"], value) if name == "row" else _plain(value, rows)
            for name, value in data.items()
        }
        key = rows.exported(data["table"], data["row"]) if "row" in data else None
        return found if key is None else found | {"key": json_bytes(key)}
    return [_plain(value, rows) for value in data] if isinstance(data, list | tuple) else data


def _parse_change(text: str) -> Literal["latest", "all"] | int:
    if text == "latest":
        return "latest"
    if text == "all":
        return "all"
    if text.isascii() and text.isdecimal() and 0 < int(text) < 2**53:
        return int(text)
    raise typer.BadParameter(
        f"--change {text!r}: write latest, all, or a commit timestamp that `percolator history` lists"
    )
