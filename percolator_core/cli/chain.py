"""Check and draw a chain, without a store: ``check`` and ``graph``."""

from __future__ import annotations

from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.options import ChainPath, StoreOptions, load_chain
from percolator_core.cli.output import Failure
from percolator_core.cli.schema import table_data
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of

if TYPE_CHECKING:
    from percolator_core.observers import Chain


Form = Literal["mermaid", "dot", "svg", "png"]
"""The forms of the graph."""


def check(
    path: ChainPath,
    functions: Annotated[
        bool, typer.Option("--import/--no-import", help="Also import the observers' functions.")
    ] = True,
    data: Annotated[
        bool, typer.Option("--data", help="Compute the views anew, and compare them with those in the store.")
    ] = False,
    *,
    store: StoreOptions,
) -> None:
    """Validate a chain and list its observers in dependency order.

    Each problem is one line with its file and line number. The command needs no store, except with --data.
    """
    chain = load_chain(path, import_functions=functions)
    if data:
        _compare(chain, store)
        return
    shown = outputs.table(">", "observer", "observes", "mode", "writes", "function")
    for number, generation in enumerate(chain.order(), 1):
        for position, observer in enumerate(generation):
            shown.add_row(
                str(number) if position == 0 else "",
                observer.name + (" (feedback)" if observer.feedback else ""),
                _names(observer.observe),
                observer.mode,
                _names(observer.writes),
                observer.function_name,
            )
    sizes = f"{count_of(len(chain.tables), 'table')}, {count_of(len(chain.observers), 'observer')}"
    if chain.schemas and not chain.models:
        sizes += f"; the typed tables of {', '.join(chain.schemas)} were not checked"
    title = Text(f"chain {chain.name}: {sizes}")
    outputs.current().result(_as_data(chain), title, "", shown)


def _compare(chain: Chain, store: StoreOptions) -> None:
    """Compare the views of a chain with their queries. Raises Failure if one differs."""
    from percolator_core.admin.views import compare, leftover_views

    output = outputs.current()
    with store.existing(chain) as db:
        found, left = [compare(db, chain, name) for name in chain.views], leftover_views(db, chain)
    if left:
        output.note(f"the store has views that the chain does not have: {', '.join(left)}")
    shown = outputs.table("view", ">rows", ">missing", ">extra", ">different", ">waiting")
    for one in found:
        shown.add_row(one.name, *(f"{number:,}" for number in astuple(one)[1:]))
    views = [asdict(one) for one in found]
    wrong = [one.name for one in found if one.missing or one.extra or one.different]
    if wrong:
        if not output.as_json:
            output.console.print(shown)
        waiting = any(one.waiting for one in found if one.name in wrong)
        mend = "wait until the chain is idle, and check again" if waiting else "fill it again"
        raise Failure(f"{', '.join(wrong)} differ from their queries: {mend}", views=views)
    output.result({"chain": chain.name, "views": views}, shown)


def graph(
    path: ChainPath,
    form: Annotated[
        Form | None,
        typer.Option("--format", help="The format. Default: from the file's suffix, else mermaid."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout.")
    ] = None,
) -> None:
    """Draw a chain: its observers, the columns that wake them, and the columns that they write."""
    from percolator_core.observers.drawing.render import render

    output = outputs.current()
    chosen = form or _guess(file)
    if chosen == "png" and file is None and (output.as_json or output.console.is_terminal):
        raise typer.BadParameter("a png cannot go to stdout: add --output graph.png")
    # The graph needs no code of the project.
    drawn = render(load_chain(path, import_functions=False).graph, chosen)
    if file is not None:
        try:
            file.write_bytes(drawn if isinstance(drawn, bytes) else drawn.encode())
        except OSError as error:
            raise Failure(f"{file} cannot be written ({error.strerror}): name another file") from error
        output.result({"format": chosen, "output": str(file)}, f"{file} written")
    elif isinstance(drawn, bytes):
        output.raw(drawn)
    elif output.as_json:
        output.result({"format": chosen, "graph": drawn})
    else:
        output.raw(drawn.encode())


def _guess(file: Path | None) -> Form:
    suffix = file.suffix.removeprefix(".").lower() if file is not None else "mermaid"
    forms: dict[str, Form] = {"mmd": "mermaid", "md": "mermaid", "gv": "dot"}
    forms |= {form: form for form in get_args(Form)}
    if suffix not in forms:
        known = "|".join(get_args(Form))
        raise typer.BadParameter(f"the suffix of {file} is no known format: add --format {known}")
    return forms[suffix]


def _as_data(chain: Chain) -> dict[str, Any]:
    return {
        "chain": chain.name,
        "path": str(chain.path),
        "tables": [table_data(one) for one in chain.tables],
        "schemas": list(chain.schemas),
        "generations": [[observer.name for observer in generation] for generation in chain.order()],
        "observers": [
            {
                "name": observer.name,
                "file": str(observer.file),
                "function": observer.function_name,
                "observe": [".".join(column) for column in observer.observe],
                "mode": observer.mode,
                "reads": [".".join(column) for column in observer.reads],
                "writes": [".".join(column) for column in observer.writes],
                "feedback": observer.feedback,
                "timeout": observer.timeout,
                "description": observer.description,
            }
            for observer in chain.observers.values()
        ],
    }


def _names(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(abbreviated(".".join(column)) for column in columns)
