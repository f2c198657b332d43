"""Results as a part of a Markdown page."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from percolator_core.notation.amounts import count_of
from percolator_core.store.embedded.binary import find_binary
from percolator_torture.suites.result import Result, Table
from percolator_torture.workloads import WORKLOADS

_HEADINGS: Final = ("suite", "done", "found", "minutes")


def write_report(path: Path, section: str, where: str, command: str, results: Sequence[Result]) -> None:
    """Write results into a page, between ``<!-- torture: SECTION -->`` and ``<!-- end -->``.

    If the page has no such part, it is added at the end; a missing page is created. ``where`` describes the
    machine, ``command`` is the command line.
    """
    text = f"<!-- torture: {section} -->\n\n{page(where, command, results)}\n\n<!-- end -->"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    place = re.compile(rf"<!-- torture: {re.escape(section)} -->.*?<!-- end -->", re.DOTALL)
    if place.search(before):
        after = place.sub(lambda _: text, before, count=1)
    else:
        after = f"{before.rstrip()}\n\n{text}\n" if before else f"{text}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(after, encoding="utf-8")


def this_machine() -> str:
    """Cores, versions and the date, in a line."""
    server = ".".join(map(str, find_binary().version))
    today = datetime.now(UTC).date().isoformat()
    return f"{today}, {os.cpu_count() or 1} cores, Python {platform.python_version()}, Redis {server}"


def page(where: str, command: str, results: Sequence[Result]) -> str:
    """The results in Markdown."""
    parts = [f"{where}: `{command}`", _table(Table("", _HEADINGS, _rows(results)))]
    together = _workloads_together(results)
    if together:
        parts.insert(1, together)
    for result in results:
        parts += [f"**{table.title}**\n\n{_table(table)}" for table in result.tables if table.rows]
    faults = _faults(results)
    if faults.rows:
        parts.append(f"**{faults.title}**\n\n{_table(faults)}")
    wrong = [f"- {result.suite}: {sentence}" for result in results for sentence in result.wrong[:20]]
    if wrong:
        parts.append("**Wrong**\n\n" + "\n".join(wrong))
    return "\n\n".join(parts)


def _rows(results: Sequence[Result]) -> list[Sequence[str]]:
    return [
        (
            result.suite + (" (ended early)" if result.interrupted else ""),
            result.run,
            result.found,
            f"{result.seconds / 60:.1f}",
        )
        for result in results
    ]


def _workloads_together(results: Sequence[Result]) -> str:
    """The sums over the workloads, in a sentence."""
    mine = [result.figures for result in results if result.suite in WORKLOADS and result.figures]
    if not mine:
        return ""

    def total(name: str) -> int:
        return sum(figures[name] for figures in mine)

    struck: Counter[str] = Counter()
    undetermined: Counter[str] = Counter()
    for figures in mine:
        struck.update(figures["struck"])
        undetermined.update(figures["undetermined"])
    return (
        f"All workloads together: {count_of(total('transactions'), 'transaction')}, "
        f"{count_of(struck['kill'], 'client')} killed, {struck['stop']:,} stopped; {total('lost'):,} lost, "
        f"{total('doubled'):,} doubled, {count_of(total('violations'), 'violation')}; "
        f"{sum(undetermined.values()):,} undetermined, of which "
        f"{undetermined['committed']:,} committed whole, {undetermined['not_committed']:,} not at all and "
        f"{undetermined['torn']:,} in part; {count_of(total('locks_left'), 'lock')} left."
    )


def _faults(results: Sequence[Result]) -> Table:
    """The faults, by suite."""
    mine = [result for result in results if result.figures.get("faults")]
    kinds = list(dict.fromkeys(kind for result in mine for kind in result.figures["faults"]))
    table = Table("Faults of the network", ("suite", *kinds))
    for result in mine:
        faults = result.figures["faults"]
        table.rows.append((result.suite, *(f"{faults.get(kind, 0):,}" for kind in kinds)))
    return table


def _table(table: Table) -> str:
    lines = [table.headings, ["---"] * len(table.headings), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
