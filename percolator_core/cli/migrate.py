"""``migrate``: change the tables of the store until they agree with a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import ChainPath, StoreOptions, load_chain
from percolator_core.cli.output import ExitCode
from percolator_core.notation.amounts import count_of

if TYPE_CHECKING:
    from percolator_core.migration.difference import Difference


def migrate(
    path: ChainPath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the differences and their changes.")
    ] = False,
    allow_drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Remove the data of this TABLE.COLUMN, or of this TABLE, which the chain does not declare. "
            "May be repeated.",
        ),
    ] = None,
    allow_narrowing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE.COLUMN",
            help="Allow a new type of this column without some values of the old type. May be repeated.",
        ),
    ] = None,
    *,
    store: StoreOptions,
) -> None:
    """Change the tables of the store until they agree with the chain, while clients read and write.

    Each difference between the chain's declarations and the tables is one line. A difference is refused if
    data would be lost and no option allows it, or if there is no online change. Then nothing changes, and the
    exit code is 2. Without a refusal the exit code is 0, also with --dry-run and if there is no difference.

    You may interrupt and repeat the command at any time. Several commands may run at the same time.
    """
    output = outputs.current()
    output.carry_on = "`percolator migrate` continues"
    chain = load_chain(path)
    with store.of_chain(chain) as db:
        done = chain.migrate(
            db,
            dry_run=dry_run,
            allow_drop=allow_drop or (),
            allow_narrowing=allow_narrowing or (),
            report=lambda one: output.note(f"{one.change} …"),
        )
    refused = sum(1 for one in done if one.refusal)
    shown = outputs.table("table", "difference", "change")
    for one in done:
        shown.add_row(one.table, one.kind, str(one))
    if not done:
        summary = "the tables agree with the chain"
    elif dry_run:
        summary = f"{count_of(len(done), 'difference')}, {refused} refused; nothing was changed"
    else:
        summary = f"{count_of(len(done), 'change')} made"
    data = {"dry_run": dry_run, "differences": [_data(one) for one in done]}
    output.result(data, *([shown] if done else []), summary)
    if refused:
        raise typer.Exit(int(ExitCode.USAGE))


def _data(one: Difference) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "table": one.table,
        "column": one.name or None,
        "change": one.change,
        "refused": one.refusal or None,
    }
