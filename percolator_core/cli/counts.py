"""The counts of a worker, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from percolator_core.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table

    from percolator_core.worker import Counts, ObserverCounts

_COLUMNS: Final = {
    "ran": "ran",
    "collapsed": "collapsed",
    "conflicts": "conflicts",
    "failed": "failed",
    "quarantined": "quarantined",
    "reads": "operations",
    "sent": "sent",
}
"""The columns of the table, and the attribute that each of them shows."""


def counts_table(counts: Counts) -> Table:
    """Return a table with a line per observer and the totals."""
    shown = table("observer", *_COLUMNS, numbers=tuple(_COLUMNS))
    for name, one in counts.observers.items():
        shown.add_row(name, *_numbers(one))
    shown.add_row(f"in {counts.seconds:.1f} s", *_numbers(counts.total()), style="bold")
    return shown


def _numbers(one: ObserverCounts) -> list[str]:
    return [str(getattr(one, name)) for name in _COLUMNS.values()]


def counts_data(counts: Counts) -> dict[str, Any]:
    """Return the same numbers by name, for JSON."""
    return {
        "seconds": round(counts.seconds, 3),
        "observers": {name: asdict(one) for name, one in counts.observers.items()},
        "total": asdict(counts.total()),
    }
