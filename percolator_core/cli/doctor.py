"""``percolator doctor``: check the installation and the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.findings import Finding
from percolator_core.cli.options import StoreOptions
from percolator_core.cli.output import ExitCode
from percolator_core.notation.amounts import count_of

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    indexes: Annotated[
        bool, typer.Option("--indexes", help="Also compare the indexes of large tables with their rows.")
    ] = False,
    *,
    store: StoreOptions,
) -> None:
    """Check the installation and the store, and say how to fix each problem.

    The exit code is 0 if no check failed; a warning is not a failure.
    """
    from percolator_core.cli.check_installation import check_installation
    from percolator_core.cli.check_store import check_store
    from percolator_core.store.redaction import redacted

    output = outputs.current()
    with output.status("checking"):
        findings = [
            *check_installation(embedded=store.url.startswith("embedded:")),
            *check_store(*store, indexes=indexes),
        ]
    counts: Counter[str] = Counter(finding.verdict for finding in findings)
    output.result(
        {
            "url": redacted(store.url),
            "findings": [asdict(finding) for finding in findings],
            "healthy": not counts["fail"],
        },
        _table(findings),
        "",
        _summary(counts),
    )
    if counts["fail"]:
        raise typer.Exit(ExitCode.FAILURE)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("result, and what to do", overflow="fold")
    for finding in findings:
        text = Text(finding.found)
        if finding.mend:
            text.append(f"\n→ {finding.mend}", _COLOURS[finding.verdict])
        table.add_row(Text(finding.verdict, _COLOURS[finding.verdict]), finding.check, text)
    return table


def _summary(counts: Counter[str]) -> Text:
    warnings = count_of(counts["warn"], "warning")
    if counts["fail"]:
        return Text(f"{counts['fail']} failed, {warnings}.", "bold red")
    if counts["warn"]:
        return Text(f"No check failed; {warnings}.", "yellow")
    return Text("All checks passed.", "green")
