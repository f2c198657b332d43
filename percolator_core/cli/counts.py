"""The counts of a worker, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from percolator_core.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table

    from percolator_core.worker import Counts

_COLUMNS: Final = {
    "ran": "ran",
    "collapsed": "collapsed",
    "conflicts": "conflicts",
    "failed": "failed",
    "quarantined": "quarantined",
    "reads": "operations",
    "sent": "sent",
}
"""The attribute that each column of the table shows."""


def counts_table(counts: Counts) -> Table:
    """Return a table with a line per observer and the totals."""
    shown = table("observer", *(f">{name}" for name in _COLUMNS))
    total = f"in {counts.seconds:.1f} s"
    for name, one in {**counts.observers, total: counts.total()}.items():
        numbers = [str(getattr(one, attribute)) for attribute in _COLUMNS.values()]
        shown.add_row(name, *numbers, style="bold" if name == total else None)
    return shown


def counts_data(counts: Counts) -> dict[str, Any]:
    """Return the counts for JSON."""
    return {
        "seconds": round(counts.seconds, 3),
        "observers": {name: asdict(one) for name, one in counts.observers.items()},
        "total": asdict(counts.total()),
    }
