"""What a worker did, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from percolator_core.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table

    from percolator_core.worker import Counts

_COLUMNS: Final = ("ran", "collapsed", "conflicts", "failed", "quarantined")


def counts_table(counts: Counts) -> Table:
    """A line an observer, and the sums."""
    shown = table("observer", *_COLUMNS, numbers=_COLUMNS)
    for name, one in counts.observers.items():
        shown.add_row(name, *(str(getattr(one, column)) for column in _COLUMNS))
    total = counts.total()
    shown.add_row(
        f"in {counts.seconds:.1f} s", *(str(getattr(total, column)) for column in _COLUMNS), style="bold"
    )
    return shown


def counts_data(counts: Counts) -> dict[str, Any]:
    """The same numbers by name."""
    return {
        "seconds": round(counts.seconds, 3),
        "observers": {name: asdict(one) for name, one in counts.observers.items()},
        "total": asdict(counts.total()),
    }
