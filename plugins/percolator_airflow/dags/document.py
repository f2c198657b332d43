"""The documentation of a chain's DAGs in Airflow: tables, observers, graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from percolator_core.observers.drawing.render import mermaid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from percolator_core.observers import Chain, Observer

_PARTS: Final = {
    "load": "Loads the declared files, and writes only differences, so it may run again at any time. Trigger "
    "it with parameters to load other files.",
    "observe": "Runs each observer as a task, in the order of the graph. The last task runs all observers "
    "until the chain is idle. A task without pending cells ends at once. Several drains and workers may run "
    "at the same time.",
    "monitor": "Measures the backlog, failures, locks and memory, records them, and compares them with the "
    "declared thresholds. Starts the observers if cells are due and no worker or drain is alive.",
    "maintain": "Resolves the locks of dead clients, drops old versions, and moves cold rows to the bases of "
    "tables. It may run at any time.",
}


def document(chain: Chain, part: str, description: str) -> str:
    """Return Markdown about one of the chain's DAGs."""
    tables = [
        f"| `{table.name}` | {table.tablets} | {_columns(table.notify_only)} |" for table in chain.tables
    ]
    typed = [f"| of `{module}` | | typed |" for module in chain.schemas]
    observers = [
        f"| {number} | `{one.name}` | {_columns(f'{table}.{column}' for table, column in one.observe)} "
        f"| {_columns(f'{table}.{column}' for table, column in one.writes)} | {_cell(one)} |"
        for number, generation in enumerate(chain.order(), 1)
        for one in generation
    ]
    return "\n".join(
        [
            f"## {description}",
            "",
            _PARTS[part],
            "",
            "### Observers",
            "",
            "| generation | observer | observes | writes | |",
            "|---|---|---|---|---|",
            *observers,
            "",
            "### Tables",
            "",
            "| table | tablets | notify-only columns |",
            "|---|---|---|",
            *tables,
            *typed,
            "",
            "### Graph",
            "",
            "```mermaid",
            mermaid(chain.graph).rstrip(),
            "```",
            "",
        ]
    )


def _columns(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(observer: Observer) -> str:
    return " ".join(observer.description.split()).replace("|", "\\|")
