"""What Airflow shows about a chain's DAGs: its tables, its observers, its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from percolator_core.observers.drawing.render import mermaid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from percolator_core.observers import Chain, Observer

_WHAT: Final = {
    "load": "Writes only what differs from what is there, so that it may run again at any time. Trigger it "
    "with parameters to load something else.",
    "observe": "One task an observer, in the order of the graph, and a last one that goes on until the chain "
    "is idle. A task without work ends at once. Several drains, or workers beside them, do no harm.",
    "monitor": "Compares what waits, fails and is locked with the thresholds of the declaration, keeps a "
    "history, and starts the observers where cells wait and nobody is at it.",
    "maintain": "Resolves what dead clients left and drops old versions. Safe beside everything else.",
}


def document(chain: Chain, part: str, description: str) -> str:
    """Markdown about one of the chain's DAGs."""
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
            _WHAT[part],
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
