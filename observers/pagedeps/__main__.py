"""``python -m observers.pagedeps FOLDER``: the demonstration on a folder of HTML."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from observers.pagedeps.demo import run
from percolator_core import ConfigurationError, PercolatorError

if TYPE_CHECKING:
    from observers.pagedeps.demo import Report


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0, 1 after an error or a violation, 2 for a wrong call, 130 if interrupted."""
    parser = argparse.ArgumentParser("python -m observers.pagedeps", description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="a folder of HTML with its style sheets and images; it is only read"
    )
    parser.add_argument("--out", type=Path, help="write the snapshots into this folder")
    parser.add_argument(
        "--state", type=Path, help="keep the store in this folder; a second run then loads only changes"
    )
    parser.add_argument("--limit", type=_count, help="load at most this many pages")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    chosen = parser.parse_args(arguments)
    try:
        report = run(chosen.folder, state=chosen.state, out=chosen.out, limit=chosen.limit)
    except ConfigurationError as error:
        Console(stderr=True).print(str(error), markup=False)
        return 2
    except (PercolatorError, OSError) as error:
        Console(stderr=True).print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: repeat the command; with --state it goes on from here")
        return 130
    if chosen.json:
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        show(report, Console())
    return 1 if report.violations else 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"1 or more, not {text!r}")
    return int(text)


def show(report: Report, console: Console) -> None:
    """Print the report as a table."""
    console.print(
        f"pages: {report.pages:,}, resources: {report.resources:,}, dependencies on them: "
        f"{report.dependencies:,}, missing: {report.missing:,}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("rendered", "runs", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("")
    for step in report.steps:
        note = ""
        if step.address and not step.rendered:
            note = f"none, though {step.depend:,} depend on it"
        elif step.address:
            only = "only the" if not step.others and step.rendered == step.depend else "of the"
            pages = "page that depends" if step.depend == 1 else "pages that depend"
            note = f"{only} {step.depend:,} {pages} on it"
        what = f"{step.address} {step.what}".strip()
        table.add_row(escape(what), f"{step.rendered:,}", f"{step.runs:,}", f"{step.seconds:.2f}", note)
    console.print(table)
    if report.violations:
        console.print(f"{len(report.violations)} VIOLATIONS", *report.violations, sep="\n", markup=False)
    else:
        console.print("Recomputed everything from the files: no difference.")


if __name__ == "__main__":
    sys.exit(main())
